"""The table as Markdown and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.nemesis.faults.fault import Fault
from tests.nemesis.promises import COLUMNS, Cell
from tests.nemesis.tasks import TTL

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "nemesis"


@dataclass(frozen=True)
class Row:
    """The cells of one fault, or the sentence that says why it was not measured."""

    fault: Fault
    cells: dict[str, Cell]
    runs: int = 0
    jobs: int = 0
    stall: float = 0.0
    skipped: str = ""

    def as_dict(self) -> dict[str, Any]:
        cells = {
            name: {"holds": cell.holds, "seconds": cell.seconds, "count": cell.count}
            for name, cell in self.cells.items()
        }
        facts = {"fault": self.fault.name, "title": self.fault.title, "skipped": self.skipped}
        lasted = {"seconds": self.fault.seconds, "runs": self.runs, "jobs": self.jobs}
        return {**facts, **lasted, "stall": round(self.stall, 3), "promises": cells}


def markdown(rows: Sequence[Row]) -> str:
    """Return the table, and a line of what it depends on."""
    lines = ["| fault | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n\n" + "\n".join(_notes(rows)) + "\n"


def _line(row: Row) -> str:
    cells = [str(row.cells[name]) if row.cells else "–" for name in COLUMNS]
    return f"| {heading(row.fault)} | " + " | ".join(cells) + " |"


def heading(fault: Fault) -> str:
    """Return what happens, and for how long."""
    return f"{fault.title}, {fault.seconds:g} s" if fault.seconds else fault.title


def _notes(rows: Iterable[Row]) -> Iterable[str]:
    measured = [row for row in rows if not row.skipped]
    jobs, runs = sum(row.jobs for row in measured), sum(row.runs for row in measured)
    stall = max((row.stall for row in measured), default=0.0)
    yield (
        f"{jobs} jobs in {runs} runs; the ttl is {TTL:g} s. The machine kept the observer waiting "
        f"for up to {stall:.1f} s. Python {platform.python_version()}, Celery {version('celery')}, "
        f"redis-py {version('redis')}."
    )
    for row in rows:
        if row.skipped:
            yield f"\nNot measured: {row.fault.title}. {row.skipped}"


def write(rows: Sequence[Row], seed: int) -> None:
    """Write both files."""
    data = {"ttl": TTL, "seed": seed, "rows": [row.as_dict() for row in rows]}
    text = json.dumps(data, indent=1, ensure_ascii=False)
    RESULTS.with_suffix(".json").write_text(text + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(rows))
