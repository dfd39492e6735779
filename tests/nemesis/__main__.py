"""``python -m tests.nemesis --only flushall,stop_child --seed 1``: fault by promise, measured."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator

from tests.nemesis.faults import FAULTS
from tests.nemesis.faults.fault import Fault
from tests.nemesis.promises import judge
from tests.nemesis.rig import Rig, open_rig
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
    rows = {fault: Row(fault, {}, skipped=fault.missing()) for fault in faults}
    possible = [fault for fault in faults if not rows[fault].skipped]
    for kind in dict.fromkeys(fault.rig for fault in possible):
        own = deque(fault for fault in possible if fault.rig == kind)
        while own:
            rows |= {row.fault: row for row in _run_on_one_rig(kind, own, seed)}
    yield from rows.values()


def _run_on_one_rig(kind: str, faults: deque[Fault], seed: int) -> Iterator[Row]:
    """Take faults one by one, until there is none left or the rig is no longer steady."""
    with open_rig(kind) as rig:
        while faults:
            row = _measure(faults.popleft(), rig, seed)
            cells = "; ".join(map(str, row.cells.values()))
            sys.stdout.write(f"{row.fault.name}: {cells or row.skipped}\n")
            sys.stdout.flush()
            yield row
            if row.skipped:
                return


def _measure(fault: Fault, rig: Rig, seed: int) -> Row:
    try:
        seen = observe(fault, rig, seed)
    except AssertionError as error:
        return Row(fault, {}, skipped=str(error))
    return Row(fault, judge(seen), len(seen.runs), len(seen.published), seen.stall)


if __name__ == "__main__":
    sys.exit(main())
