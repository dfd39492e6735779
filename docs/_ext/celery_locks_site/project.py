"""The generated parts of the section Project: layers, tested versions, charts of benchmarks."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks import charts
from benchmarks.svg import THEMES
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
    """Return the picture of a benchmark, drawn by `make charts`, for light and dark pages."""
    alt = charts.load(name).describe()
    return "\n".join(
        f"""```{{figure}} ../_static/charts/{charts.picture_of(name, theme).name}
:figclass: diagram only-{theme.name}
:alt: {alt}
```
"""
        for theme in THEMES
    )
