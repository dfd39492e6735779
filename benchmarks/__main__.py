"""``python -m benchmarks [names]``: run them, print the tables, write ``benchmarks/results/``."""

from __future__ import annotations

import argparse
import importlib
import time

from benchmarks.report import surroundings
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
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    for name in names or NAMES:
        _run(name)


def _run(name: str) -> None:
    began = time.monotonic()
    with EmbeddedServer() as server:
        report = importlib.import_module(f"benchmarks.{name}").run(server)
        report.write(surroundings(server))
    print(report.markdown())
    print(f"({time.monotonic() - began:.0f} s; also in benchmarks/results/{name}.md)\n", flush=True)


if __name__ == "__main__":
    main()
