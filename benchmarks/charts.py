"""``python -m benchmarks.charts``: draw the charts of the documentation from the result files.

Each is written to ``docs/_static/charts`` twice, for light and for dark pages. A test fails if a
picture is older than its file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.svg import THEMES, Bar, Bars, Chart, Lines, Theme, render

ROOT = Path(__file__).parent.parent
RESULTS, PICTURES = ROOT / "benchmarks/results", ROOT / "docs/_static/charts"
Result = dict[str, Any]


def first_column(result: Result, unit: str, title: str) -> Chart:
    """Return bars for the first column of numbers, a bar for each candidate."""
    # A row without the last column, the ratio, is something else than a candidate.
    rows = [row for row in result["rows"] if row[-1] not in ("", None)]
    bars = [Bar(_short(row[0]), float(row[1])) for row in rows]
    return Bars(f"{title}, p50", unit, {"": bars})


def _short(label: str) -> str:
    """Return a label that fits beside a bar; the table has the whole one."""
    for long, short in ((" one by one", " one each"), ("floor: SET NX PX, Lua delete", "floor")):
        label = label.replace(long, short)
    return label


def cost_per_task(result: Result, key: str, what: str) -> Chart:
    """Return the microseconds above plain Celery, with intervals, by pool and phase."""
    groups: dict[str, list[Bar]] = {}
    for cost in result["data"]["costs"]:
        if cost["name"] != "plain Celery":
            low, middle, high = (value * 1e6 for value in cost[key])
            bar = Bar(cost["name"], middle, low, high)
            groups.setdefault(f"{cost['phase']}, {cost['pool']}", []).append(bar)
    return Bars(f"A no-op task: {what} above plain Celery, with 95 % intervals", "µs", groups)


def recovery(result: Result) -> Chart:
    """Return the seconds after kill -9; "> 3" is a bar without an end."""
    bars = []
    for name, seconds, *_, ttl in result["rows"]:
        is_open = str(seconds).startswith(">")
        text = f"{seconds} s; ttl {ttl}" if is_open else f"{float(seconds):.2f} s"
        value = float(str(seconds).lstrip("> "))
        bars.append(Bar(name, value, text=text, is_open=is_open))
    return Bars("Seconds from kill -9 to the next run of the key", "s", {"": bars})


def growth(
    result: Result,
    x: str,
    y: str,
    columns: dict[str, tuple[int, float]],
    from_zero: bool = False,
) -> Lines:
    """Return lines; ``columns`` has the position in a point, and a factor, by name."""
    points = result["data"]["points"]
    series = {
        name: [(point[0], point[column] * factor) for point in points]
        for name, (column, factor) in columns.items()
    }
    return Lines(result["title"], x, y, series, from_zero)


def memory(result: Result) -> Chart:
    chart = growth(result, "held locks", "bytes", {"bytes a lock": (1, 1)}, from_zero=True)
    return chart._replace(title="Memory of a held lock on the server")


# The result file and the function that makes the chart, by the name of the picture.
CHARTS: dict[str, tuple[str, Callable[[Result], Chart]]] = {
    "roundtrip": ("roundtrip", partial(first_column, unit="µs", title="Acquire and release")),
    "renewal": ("renewal", partial(first_column, unit="ms", title="Renewing 1,000 leases")),
    "handover": (
        "handover",
        partial(first_column, unit="ms", title="Hand-over, 20 waiting processes"),
    ),
    "publishing": (
        "publishing",
        partial(first_column, unit="µs", title="Publishing a duplicate of a queued call"),
    ),
    "tasks": ("tasks", partial(cost_per_task, key="above", what="time")),
    "tasks-cpu": ("tasks", partial(cost_per_task, key="cpu_above", what="processor time")),
    "recovery": ("recovery", recovery),
    "growth-handover": (
        "growth-handover",
        partial(
            growth,
            x="waiters",
            y="ms from release to entry",
            columns={"p50": (1, 1e3), "p99": (2, 1e3)},
        ),
    ),
    "growth-renewal": (
        "growth-renewal",
        partial(
            growth,
            x="leases",
            y="ms for all of them",
            columns={"time": (1, 1e3), "server's processor time": (2, 1e3)},
        ),
    ),
    "growth-listing": (
        "growth-listing",
        partial(
            growth,
            x="held locks",
            y="ms for a page",
            columns={
                "a page": (3, 1e3),
                "a call of it, server's processor time": (4, 1e3),
                "the longest call": (5, 1e3),
            },
        ),
    ),
    "memory": ("growth-listing", memory),
    "growth-rates": (
        "growth-rates",
        partial(
            growth,
            x="callers with a promise",
            y="µs of a call",
            columns={"time": (1, 1e6), "server's processor time": (2, 1e6)},
            from_zero=True,
        ),
    ),
    "growth-parking": (
        "growth-parking",
        partial(
            growth,
            x="messages that one tenant has parked",
            y="for the last of the other nine",
            columns={"runs before it": (1, 1), "ms until it starts": (2, 1e3)},
            from_zero=True,
        ),
    ),
}


def load(name: str, results: Path = RESULTS) -> Chart:
    """Return a chart with the figures of its result file."""
    file, make = CHARTS[name]
    return make(json.loads((results / f"{file}.json").read_text()))


def picture_of(name: str, theme: Theme) -> Path:
    return PICTURES / f"{name}-{theme.name}.svg"


def pictures(results: Path = RESULTS) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every picture."""
    for name in CHARTS:
        for theme in THEMES:
            yield picture_of(name, theme), render(load(name, results), theme)


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path, text in pictures():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
