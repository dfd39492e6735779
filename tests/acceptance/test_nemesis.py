"""Two rows of ``make nemesis``, so that the command itself is known to work."""

import pytest

from tests.nemesis.__main__ import run
from tests.nemesis.faults import FAULTS
from tests.nemesis.promises import COLUMNS
from tests.nemesis.table import RESULTS, heading


@pytest.mark.timeout(300)
def test_rows_are_measured_and_these_promises_hold():
    """A killed child costs no promise; a wiped server delays new grants, and costs no other."""
    wanted = [fault for fault in FAULTS if fault.name in ("kill_child", "flushall")]
    killed, wiped = run(wanted, seed=3)
    for row in (killed, wiped):
        assert not row.skipped
        assert set(row.cells) == set(COLUMNS)
        for promise in ("fences rise", "no job twice at once", "no job lost"):
            assert row.cells[promise].holds, f"{row.fault.name}: {promise} {row.cells[promise]}"
        assert row.cells["at most `limit` inside"].holds, row.fault.name
    assert killed.cells["lock free again"].occasion


def test_recorded_table_has_a_row_for_each_fault():
    """Who adds a fault or a promise measures it: the page shows what the command would write."""
    head, _, *rows = RESULTS.with_suffix(".md").read_text().split("\n\n")[0].splitlines()
    assert head == "| fault | " + " | ".join(COLUMNS) + " |"
    assert [row.split(" | ")[0] for row in rows] == [f"| {heading(fault)}" for fault in FAULTS]
