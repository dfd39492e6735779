"""The report of a benchmark: a table, its goals with the measurements, and its files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.preliminary import PRELIMINARY, QUIET
from tests.servers.embedded import EmbeddedServer

RESULTS = Path(__file__).parent / "results"
Cell = str | int | float
# In the extra `bench`, with the names of their modules; most benchmarks do without them.
PEERS = {"python-redis-lock": "redis_lock", "pottery": "pottery"}


@dataclass(frozen=True)
class Goal:
    """A target for one figure, and whether it is met."""

    what: str
    target: str
    measured: str
    met: bool


@dataclass
class Report:
    """The outcome of one benchmark."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)  # numbers for charts and calculations
    sections: dict[int, str] = field(default_factory=dict)  # headings, by the row that follows

    def add(self, *cells: Cell) -> None:
        self.rows.append(cells)

    def begin_section(self, heading: str) -> None:
        """Begin a table of its own for the rows that follow."""
        self.sections[len(self.rows)] = heading

    def at_most(self, what: str, target: float, measured: float, unit: str = "") -> None:
        self.goals.append(
            Goal(what, f"≤ {target:g}{unit}", f"{measured:.3g}{unit}", measured <= target)
        )

    def at_least(self, what: str, target: float, measured: float, unit: str = "") -> None:
        self.goals.append(
            Goal(what, f"≥ {target:g}{unit}", f"{measured:.3g}{unit}", measured >= target)
        )

    def markdown(self) -> str:
        goals = [(g.what, g.target, g.measured, "met" if g.met else "MISSED") for g in self.goals]
        parts = [f"## {self.title}", *self._tables()]
        if goals:
            parts.append(_table(("goal", "target", "measured", ""), goals))
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def _tables(self) -> Iterator[str]:
        starts = sorted(self.sections) or [0]
        for start, end in pairwise([*starts, len(self.rows)]):
            if start in self.sections:
                yield f"**{self.sections[start]}**"
            yield _table(self.columns, self.rows[start:end])

    def write(self, surroundings: dict[str, Cell], folder: Path = RESULTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if float(surroundings.get("load at the start", 0.0)) > QUIET:
            self.notes.append(PRELIMINARY)
        facts = ", ".join(f"{key} {value}" for key, value in surroundings.items())
        (folder / f"{self.name}.md").write_text(f"{self.markdown()}\nMeasured with {facts}.\n")
        data = {"surroundings": surroundings, **asdict(self)}
        text = json.dumps(data, indent=1, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(text + "\n")


def surroundings() -> dict[str, Cell]:
    """Return what the figures depend on, without anything that identifies the machine."""
    with EmbeddedServer() as server:
        info = server.info("server")
    return {
        "Python": platform.python_version(),
        "redis-py": version("redis"),
        "Valkey": info.get("valkey_version", info["redis_version"]),
        **{name: version(name) for name in PEERS if find_spec(PEERS[name])},
        "cores": os.cpu_count() or 1,
        "load at the start": round(os.getloadavg()[0], 1),
    }


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Format a Markdown table that is readable as plain text too."""
    cells = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "| " + " | ".join([first.strip().ljust(widths[0]), *others]) + " |"


def _text(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
