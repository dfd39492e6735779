"""The dashboard, the alert rules and the documentation name the metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_locks import Locks
from celery_locks.metrics.collector import LocksCollector
from celery_locks.metrics.series import COUNTERS, HISTOGRAMS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def dashboard() -> Any:
    return json.loads((ROOT / "examples" / "grafana.json").read_text())


def test_dashboard_asks_for_metrics_that_exist(dashboard: Any) -> None:
    """A panel that says "no data" for ever is worse than none."""
    exposed = exposed_names()
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"celery_locks_\w+", target["expr"])
    }
    assert asked <= exposed
    wanted = {f"celery_locks_{name}_total" for name in COUNTERS}
    wanted |= {f"celery_locks_{name}_seconds_bucket" for name in HISTOGRAMS}
    assert wanted - {"celery_locks_enqueued_total"} <= asked


def exposed_names() -> set[str]:
    families = list(LocksCollector(Locks.from_url("redis://127.0.0.1:1/0")).describe())
    return {family.name + end for family in families for end in _ends(family.type)}


def test_alert_rules_are_whole_and_ask_for_metrics_that_exist() -> None:
    """An alert on a misspelt metric never fires, and nobody notices."""
    [group] = yaml.safe_load((ROOT / "examples" / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for rule in group["rules"]:
        asked = set(re.findall(r"celery_locks_\w+", rule["expr"]))
        assert asked, rule
        assert asked <= exposed_names()
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in rule["expr"], f"{rule['alert']} sums the label {label} away"


def test_documentation_names_every_series() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    documented = set(re.findall(r"`(celery_locks_\w+)`", text))
    histograms = {f"celery_locks_{name}_seconds" for name in HISTOGRAMS}
    plain = {name for name in exposed_names() if not name.startswith(tuple(histograms))}
    assert documented == plain | histograms


def _ends(kind: str) -> tuple[str, ...]:
    return {
        "counter": ("_total",),
        "histogram": ("_bucket", "_sum", "_count"),
    }.get(kind, ("",))


def test_dashboard_is_whole(dashboard: Any) -> None:
    """What Grafana needs to import it: a source to choose, panels that do not overlap."""
    assert dashboard["__inputs"][0]["pluginId"] == "prometheus"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        mine = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & mine, panel["title"]
        cells |= mine
