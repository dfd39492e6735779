"""What the pages of docs/project name exists, and their generated parts are there."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from celery_locks_site import project

from benchmarks import charts
from benchmarks.svg import THEMES

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/project"
TESTS = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))


def names_of_tests() -> list[str]:
    text = "".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
    return sorted(set(re.findall(r"`(test_\w+)`", text)))


@pytest.mark.parametrize("name", names_of_tests())
def test_test_on_a_page_exists(name: str) -> None:
    """A fact is as good as its test; one that was renamed or removed proves nothing."""
    assert f"def {name}(" in TESTS


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_files_on_a_page_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:celery_locks|tests|benchmarks|docs|tools)/[\w./-]+)`", page.read_text()
    )
    assert not [name for name in named if not (ROOT / name).exists()]


def test_facts_have_a_test_or_say_that_they_are_an_experiment() -> None:
    text = (PAGES / "facts.md").read_text()
    facts = re.findall(r"^- \*\*.*\\\n  (.*)$", text, re.MULTILINE)
    assert len(facts) == text.count("\n- ")
    assert all(re.match(r"\*Test:\* `test_|\*Experiment:\* ", line) for line in facts)


def test_layers_are_those_of_the_guide() -> None:
    table = project.layers()
    assert all(f"`{name}" in table for name in ("core", "store", "integration", "admin", "cli"))


def test_every_combination_of_versions_is_on_the_page() -> None:
    with (PAGES / "compatibility.csv").open() as file:
        rows = list(csv.DictReader(file))
    shown = project.compatibility()
    assert shown.count("\n") == len(rows) + 2
    described = set(re.findall(r"^- \*\*(\w+)\*\*", (PAGES / "compatibility.md").read_text(), re.M))
    assert {row["suite"] for row in rows} == described


@pytest.mark.parametrize("name", charts.CHARTS)
def test_chart_is_on_the_page_for_light_and_dark(name: str) -> None:
    """A chart that no page shows is drawn for nobody; a marker without a picture is empty."""
    assert f"<!-- generated: chart {name} -->" in (PAGES / "benchmarks.md").read_text()
    shown = project.chart(name)
    for theme in THEMES:
        assert f":figclass: diagram only-{theme.name}" in shown
        assert charts.picture_of(name, theme).is_file()


def test_chart_of_the_round_trip_has_the_numbers_of_the_table() -> None:
    table = (ROOT / "benchmarks/results/roundtrip.md").read_text()
    rows = re.findall(r"^\| (\S.*?) +\| +([\d.]+) \|", table, re.MULTILINE)
    shown = project.chart("roundtrip")
    assert len(rows) >= 7
    for _, value in rows:
        assert f" {float(value):.0f} µs" in shown
