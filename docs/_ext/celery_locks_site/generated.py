"""The generated parts of pages: a line `<!-- generated: NAME -->` stands for Markdown.

<!-- generated: options -->
<!-- generated: api celery_locks: Locks Lease -->
<!-- generated: chart roundtrip -->
"""

from __future__ import annotations

import re
from collections.abc import Callable

from celery_locks_site import (
    api,
    capacity,
    commands,
    errors,
    events,
    glossary,
    metrics,
    options,
    project,
    rest,
    settings,
)

PARTS: dict[str, Callable[[], str]] = {
    "options": options.page,
    "settings": settings.page,
    "errors": errors.page,
    "events": events.page,
    "commands": commands.page,
    "rest": rest.page,
    "metrics": metrics.page,
    "glossary": glossary.page,
    "layers": project.layers,
    "compatibility": project.compatibility,
    "capacity_times": capacity.times,
    "capacity_memory": capacity.memory,
    "capacity_inputs": capacity.inputs,
    "capacity_plans": capacity.plans,
}
_MARKER = re.compile(r"^<!-- generated: (?P<name>\w+)(?: (?P<argument>.*?))? -->$", re.MULTILINE)


def expand(
    source: str, api_part: Callable[[str], str], chart: Callable[[str], str] = project.chart
) -> str:
    """Replace the markers of a page; `api_part` writes classes and functions, `chart` charts."""

    def part(match: re.Match[str]) -> str:
        if match["name"] == "api":
            return api_part(match["argument"])
        if match["name"] == "chart":
            return chart(match["argument"])
        return expand(PARTS[match["name"]](), api_part, chart)

    return _MARKER.sub(part, source)


def for_site(source: str) -> str:
    return expand(source, api.as_directives, project.chart)


def for_text(source: str) -> str:
    """Without charts: the tables beside them have the numbers."""
    return expand(source, api.as_markdown, lambda name: "")
