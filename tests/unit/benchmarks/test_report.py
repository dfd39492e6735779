"""The report of a benchmark: what its files say about the machine and about the effort."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.effort import FULL, QUICK
from benchmarks.preliminary import PRELIMINARY
from benchmarks.report import Report


@pytest.mark.parametrize(("load", "is_preliminary"), [(0.2, False), (3.0, True)])
def test_figures_of_a_busy_machine_are_marked(
    tmp_path: Path, load: float, is_preliminary: bool
) -> None:
    """They could be published by mistake otherwise."""
    Report("name", "Title", ("", "ms")).write({"load at the start": load}, tmp_path)
    assert (PRELIMINARY in (tmp_path / "name.md").read_text()) == is_preliminary


def test_report_without_goals_has_one_table(tmp_path: Path) -> None:
    report = Report("name", "Title", ("", "ms"), rows=[("a", 1.0)])
    assert "goal" not in report.markdown()
    report.at_most("a", 2, 1)
    assert "| goal" in report.markdown()


def test_sections_are_tables_with_all_rows() -> None:
    """A long table is unreadable; none of its rows may be lost in between."""
    report = Report("name", "Title", ("", "ms"))
    for section in ("publish", "run"):
        report.begin_section(section)
        report.add("plain", 1.0)
        report.add("ours", 2.0)
    text = report.markdown()
    assert text.index("**publish**") < text.index("plain") < text.index("**run**")
    assert text.count("| ours ") == text.count("| plain ") == 2


def test_quick_effort_does_less_of_everything() -> None:
    assert FULL.count(60) == 60
    assert QUICK.count(60) == 3
    assert QUICK.count(3) == 1
    assert QUICK.count(3, least=2) == 2
    assert FULL.sizes(1, 10, 100) == (1, 10, 100)
    assert QUICK.sizes(1, 10, 100) == (1,)
