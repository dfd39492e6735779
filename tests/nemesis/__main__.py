"""``python -m tests.nemesis --only flushall,stop_child --seed 1``: fault by promise, measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby

from tests.nemesis.faults import FAULTS
from tests.nemesis.faults.fault import Fault
from tests.nemesis.promises import judge
from tests.nemesis.rig import open_rig
from tests.nemesis.row import observe
from tests.nemesis.table import RESULTS, Row, markdown, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="make nemesis", description=__doc__)
    names = ", ".join(fault.name for fault in FAULTS)
    parser.add_argument("--only", metavar="NAMES", help=f"some of {names}; writes no file")
    parser.add_argument("--seed", type=int, default=1, help="for the jobs")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [fault.name for fault in FAULTS]
    unknown = set(wanted) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {names}")
    rows = list(run([fault for fault in FAULTS if fault.name in wanted], options.seed))
    sys.stdout.write("\n" + markdown(rows))
    if not options.only:
        write(rows, options.seed)
        sys.stdout.write(f"\nwritten to {RESULTS}.md and .json\n")
    return 0


def run(faults: list[Fault], seed: int) -> Iterator[Row]:
    """Yield a row for each fault; those with the same kind of rig share one."""
    order = list(dict.fromkeys(fault.rig for fault in faults))
    rows = {}
    for kind in order:
        rows |= {row.fault: row for row in _run_on(kind, [f for f in faults if f.rig == kind], seed)}
    yield from (rows[fault] for fault in faults)


def _run_on(kind: str, faults: list[Fault], seed: int) -> Iterator[Row]:
    for missing, own in groupby(faults, lambda fault: fault.missing()):
        if missing:
            yield from (Row(fault, {}, skipped=missing) for fault in own)
            continue
        with open_rig(kind) as rig:
            for fault in own:
                seen = observe(fault, rig, seed)
                row = Row(fault, judge(seen), len(seen.runs), len(seen.published), seen.stall)
                sys.stdout.write(f"{fault.name}: {'; '.join(map(str, row.cells.values()))}\n")
                sys.stdout.flush()
                yield row


if __name__ == "__main__":
    sys.exit(main())
