"""What the pages for operators repeat from other files is what those files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from celery_locks_site.generated import PARTS

from benchmarks import plan

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"

# Page, the text on it, and the file with the text that it stands for.
NUMBERS = [
    ("operations/capacity.md", "3 in all", "handover.md", "| 3.00 |"),
    ("concepts/outcomes.md", "0.09 s after", "recovery.md", "| 0.09 |"),
    ("concepts/outcomes.md", "0.17 s after", "recovery.md", "| 0.17 |"),
    ("concepts/faults.md", "measured 0.09 s", "recovery.md", "| 0.09 |"),
    ("concepts/faults.md", "541 jobs", "soak.md", "| 541 |"),
    ("concepts/faults.md", "gave 64", "soak.md", "| 64 |"),
    ("concepts/faults.md", "and 17 jobs", "soak.md", "| 17 |"),
]


def words(path: Path) -> str:
    """The text with every run of spaces as one, as tables and wrapped lines have them."""
    return re.sub(r"\s+", " ", path.read_text())


@pytest.mark.parametrize(("page", "shown", "result", "measured"), NUMBERS)
def test_number_is_the_measured_one(page: str, shown: str, result: str, measured: str) -> None:
    """Who measures again corrects the pages too."""
    assert measured in words(RESULTS / result), f"{result} has changed: correct {page}"
    assert shown in words(DOCS / page)


@pytest.mark.parametrize("part", ["times", "memory", "inputs", "plans"])
def test_generated_part_is_on_the_page_of_capacity(part: str) -> None:
    """Figures that are made from the result files cannot become stale."""
    page = (DOCS / "operations" / "capacity.md").read_text()
    assert f"<!-- generated: capacity_{part} -->" in page
    assert "None" not in PARTS[f"capacity_{part}"]()


def test_capacity_has_a_column_for_every_demand() -> None:
    """With the numbers of the calculation, for the inputs that were measured."""
    table = PARTS["capacity_plans"]()
    for demand in plan.DEMANDS:
        found = plan.calculate(demand, plan.read_inputs())
        assert demand.what in table
        assert f"{found.cores:.2f}" in table


def test_commands_of_the_hot_path_are_those_of_its_test() -> None:
    source = (ROOT / "tests/real_server/test_hot_path.py").read_text()
    costs = [
        sum(map(int, re.findall(r'"\w+": (\d+)', block)))
        for block in re.findall(r"== \{(.*?)\n    \}", source, re.DOTALL)
    ]
    acquire, renew, release, *_ = costs
    page = words(DOCS / "operations" / "capacity.md")
    assert f"| 2: acquire, release | {acquire} and {release} |" in page
    assert f"| {renew} for each lock |" in page


def test_every_alert_has_its_row() -> None:
    """Somebody is woken by it and looks for what to do."""
    [group] = yaml.safe_load((ROOT / "examples" / "alerts.yml").read_text())["groups"]
    page = words(DOCS / "operations" / "metrics.md")
    for rule in group["rules"]:
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in page


def test_every_panel_is_explained() -> None:
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    page = words(DOCS / "operations" / "grafana.md")
    for panel in dashboard["panels"]:
        assert re.search(rf"\| [^|]*{re.escape(panel['title'])}[^|]* \|", page), panel["title"]
