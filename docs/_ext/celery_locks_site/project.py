"""The generated parts of the section Project: layers, tested versions, charts of benchmarks."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path

from celery_locks_site import markdown

_ROOT = Path(__file__).parents[3]
_VERSIONS = {
    "python": "Python",
    "celery": "Celery",
    "redis_py": "redis-py",
    "servers": "lock server",
    "topologies": "topology",
    "pools": "pools",
    "suite": "tests",
}


def layers() -> str:
    """Return the section of CONTRIBUTING.md, which is its source."""
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("\n## Layers\n")[2].partition("\n## ")[0]
    if "\n| " not in section:
        raise ValueError("CONTRIBUTING.md has no table in a section Layers")
    return section.strip() + "\n"


def compatibility() -> str:
    """Return the versions that were tested together, a row for each combination."""
    with (_ROOT / "docs/project/compatibility.csv").open() as file:
        rows = list(csv.DictReader(file))
    return markdown.table(
        list(_VERSIONS.values()), ([row[name] for name in _VERSIONS] for row in rows)
    )


def chart(name: str) -> str:
    """Return bars for the first column of numbers of a benchmark's result."""
    result = json.loads((_ROOT / f"benchmarks/results/{name}.json").read_text())
    # A row without the last column, the ratio, is something else than a candidate.
    values = {row[0]: float(row[1]) for row in result["rows"] if row[-1] not in ("", None)}
    longest = max(values.values())
    bars = [_bar(label, value, longest) for label, value in values.items()]
    title = html.escape(f"{result['title']}: {result['columns'][1]}")
    caption = f"<figcaption>{title}</figcaption>"
    return "\n".join(
        ["```{raw} html", f'<figure class="bars">{caption}', *bars, "</figure>", "```\n"]
    )


def _bar(label: str, value: float, longest: float) -> str:
    ours = ' class="ours"' if label.startswith("celery-locks") else ""
    width = f"width: {100 * value / longest:.1f}%"
    shown = f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return (
        f'<div{ours}><span>{html.escape(label)}</span><i style="{width}"></i><b>{shown}</b></div>'
    )
