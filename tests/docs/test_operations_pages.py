"""What the pages for operators repeat from other files is what those files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"

# Page, the text on it, and the file with the text that it stands for.
NUMBERS = [
    ("operations/capacity.md", "| 547 |", "memory.md", "| 547 |"),
    ("operations/capacity.md", "| 160, and", "memory.md", "| 160 |"),
    ("operations/capacity.md", "take 210 µs", "roundtrip.md", "| 210."),
    ("operations/capacity.md", "take 228 µs", "roundtrip.md", "| 228."),
    ("operations/capacity.md", "takes 8.7 ms", "renewal.md", "| 8.7"),
    ("operations/capacity.md", "for 2.1 ms", "renewal.md", "| 2.17"),
    ("operations/capacity.md", "3 in all", "handover.md", "| 3.00 |"),
    ("operations/capacity.md", "runs 0.85 times", "tasks.md", "| 0.85 |"),
    ("operations/capacity.md", "4.44 ms", "tasks.md", "| 4.44 |"),
    ("operations/capacity.md", "3.79 ms", "tasks.md", "| 3.79 |"),
    ("concepts/outcomes.md", "0.09 s after", "recovery.md", "| 0.09 |"),
    ("concepts/outcomes.md", "0.20 s after", "recovery.md", "| 0.20 |"),
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
