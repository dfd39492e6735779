"""``python -m benchmarks [names]``: run them, print the tables, write ``benchmarks/results/``.

``--quick`` runs all of them in under two minutes, for development: its tables say so, and are
written only with ``--write FOLDER``. ``--times 2`` doubles rounds and time, if the intervals of
``tasks`` are too wide.
"""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from benchmarks.effort import QUICK, Effort
from benchmarks.report import RESULTS, Cell, surroundings
from tests.servers.embedded import EmbeddedServer

NAMES = (
    "roundtrip",
    "renewal",
    "handover",
    "memory",
    "tasks",
    "recovery",
    "imports",
    "publishing",
    "recipes",
    "rates",
    "parking",
    "guard",
    "growth.handover",
    "growth.renewal",
    "growth.listing",
    "growth.rates",
    "growth.parking",
    "capacity",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is written")
    parser.add_argument("--times", type=float, default=1, help="as many times the rounds and time")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where to write the results")
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    folder = given.write or (None if given.quick else RESULTS)
    # Once, before the benchmarks load the machine themselves.
    facts, began = surroundings(), time.monotonic()
    for name in given.names or NAMES:
        _run(name, QUICK if given.quick else Effort(given.times), facts, folder)
    print(f"{time.monotonic() - began:.0f} s in all")


def _run(name: str, effort: Effort, facts: dict[str, Cell], folder: Path | None) -> None:
    began = time.monotonic()
    with EmbeddedServer() as server:
        report = importlib.import_module(f"benchmarks.{name}").run(server, effort)
    if effort.label:
        report.title += f" ({effort.label})"
    where = "not written"
    if folder:
        report.write(facts, folder)
        where = f"also in {folder.name}/{report.name}.md"
    print(report.markdown())
    print(f"({time.monotonic() - began:.0f} s; {where})\n", flush=True)


if __name__ == "__main__":
    main()
