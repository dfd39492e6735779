"""Tables and texts on a terminal."""

from __future__ import annotations

import pytest
from celery.utils import uuid

from celery_locks.cli.render import HEADS, fit, printable


@pytest.mark.parametrize("width", [40, 60, 70, 80, 200])
def test_a_narrow_screen_keeps_the_names_of_the_locks(width: int) -> None:
    """A list of locks without their names is of no use; a pid can be looked up."""
    name = "invoice:2026-11-17:42"
    row = (name, f"shop.bill {uuid()}", "celery@shop-1", "4711", "7 s", "23 s", "2")
    table_ = fit([HEADS, row], width, gap=2)
    assert all(one[0] in ("LOCK", name) for one in table_)
    assert "HELD FOR" in table_[0]
    assert ("PID" in table_[0]) is (width == 200)
    widths = [max(map(len, column)) + 2 for column in zip(*table_, strict=True)]
    assert sum(widths) <= max(width, 56), table_


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é ✓", "plain é ✓"),
        ("a\nb\t\x1b[0m\x00", r"a\nb\t\x1b[0m\x00"),
        ("\u202e\u2028\x9b", r"\u202e\u2028\x9b"),
        ('it\'s "so"', 'it\'s "so"'),
        ("back\\slash", "back\\slash"),
    ],
)
def test_plain_writes_out_what_a_terminal_would_obey(text: str, shown: str) -> None:
    assert printable(text) == shown
