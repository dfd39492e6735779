"""What is counted, how it gets to the server, and what Prometheus reads."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import httpx
import pytest
import yaml
from celery import Celery
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from celery_locks import LockedTask, Locks, LockUnavailable, admin, events, metrics
from celery_locks.admin.metric_sums import MetricField, read_counts
from celery_locks.core.lease import NOT_ON_SERVER
from celery_locks.errors import LockUsageError
from celery_locks.events import LockEvent, emit
from celery_locks.metrics import recorder as recorder_room
from celery_locks.metrics.collector import LocksCollector, exposition, families
from celery_locks.metrics.recorder import Recorder
from celery_locks.metrics.series import COUNTERS, HISTOGRAMS, counted
from celery_locks.store.calls import Call
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nobody_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(events, "_subscribers", ())
    yield
    metrics.uninstall()


@pytest.fixture
def locks() -> Locks:
    return Locks(fakeredis.FakeRedis())


def event(kind: Any, token: str = "abc", **detail: Any) -> LockEvent:
    return LockEvent(kind, "invoice:42", token, 7, detail=detail)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (event("acquired", task="t", waited=0.03), MetricField("acquired", "t")),
        (event("acquired", task="t", waited=0.03), MetricField("wait", "t", "0.05")),
        (event("acquired", task="t", waited=0.05), MetricField("wait", "t", "0.05")),
        (event("acquired", waited=9e9), MetricField("wait", "", "+Inf")),
        (event("acquired", "qjob", task="t", waited=0), MetricField("enqueued", "t")),
        (event("released", task="t", held_for=2.0), MetricField("hold", "t", "5")),
        (event("conflict", task="t", policy="skip"), MetricField("conflicts", "t", "skip")),
        (event("lost", task="t", why=NOT_ON_SERVER), MetricField("lost", "t", "gone")),
        (event("lost", task="t", why="x", revoked=True), MetricField("lost", "t", "revoked")),
        (event("lost", why="it could not be renewed: refused"), MetricField("lost", "", "late")),
        (event("duplicate", task="t", decision="raise"), MetricField("duplicates", "t", "raise")),
        (event("suspended", task="t"), MetricField("renew_failures", "t")),
        (event("unavailable", task="t"), MetricField("unavailable", "t")),
        (event("freed", task="t"), MetricField("freed", "t")),
    ],
)
def test_event_is_counted(said: LockEvent, expected: MetricField) -> None:
    assert dict(counted(said))[expected] == 1


def test_renewals_and_messages_conflicts_are_not_counted() -> None:
    """A renewal is no news; what a publisher finds busy is a duplicate, counted as such."""
    assert list(counted(event("renewed"))) == []
    assert list(counted(event("conflict", "qjob"))) == []


def test_lock_names_are_no_labels(locks: Locks) -> None:
    """There are as many as there are invoices: Prometheus would drown in them."""
    for kind in (*COUNTERS, "released", "conflict", "suspended"):
        for field, _ in counted(event(kind, task="t")):
            assert "invoice" not in "".join(field)


def test_seconds_are_summed_up() -> None:
    said = dict(counted(event("released", task="t", held_for=1.5)))
    assert said[MetricField("hold_us", "t")] == 1_500_000


def run_once(locks: Locks, name: str = "a") -> None:
    lease = locks.acquire(name)
    assert lease
    assert locks.acquire(name) is None
    lease.release()


def test_install_counts_what_happens(locks: Locks) -> None:
    metrics.install(locks)
    run_once(locks)
    metrics.uninstall()
    counts = read_counts(locks)
    assert counts[MetricField("acquired")] == 1
    assert counts[MetricField("conflicts", "", "direct")] == 1
    assert sum(n for field, n in counts.items() if field.series == "hold") == 1
    run_once(locks)
    assert read_counts(locks) == counts


def test_counts_are_sent_without_asking(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_room, "EVERY", 0.05)
    metrics.install(locks)
    run_once(locks)
    wait_until(
        lambda: MetricField("acquired") in read_counts(locks), 30, what="the counts to be sent"
    )


def test_installed_again_counts_once(locks: Locks) -> None:
    """Django imports an app's module twice more often than one thinks."""
    metrics.install(locks)
    metrics.install(locks)
    run_once(locks)
    metrics.uninstall()
    assert read_counts(locks)[MetricField("acquired")] == 1


def test_counts_from_many_threads_are_all_there(locks: Locks) -> None:
    metrics.install(locks)
    threads = [
        threading.Thread(target=lambda: [emit("acquired", "a", task="t") for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics.uninstall()
    assert read_counts(locks)[MetricField("acquired", "t")] == 8000


class Flaky:
    """A store that takes the call and loses the reply, as often as it is told to."""

    def __init__(self, locks: Locks, losses: int, before: bool = False) -> None:
        self.locks, self.losses, self.before = locks, losses, before
        self.commands = locks.commands

    def store_for_thread(self) -> Any:
        return self

    def perform(self, call: Call) -> Any:
        self.losses -= 1
        if self.losses >= 0:
            if not self.before:
                self.locks.perform(call)
            raise LockUnavailable("away")
        return self.locks.perform(call)


@pytest.mark.parametrize("before", [True, False])
def test_lost_replies_neither_lose_nor_double(locks: Locks, before: bool) -> None:
    flaky: Any = Flaky(locks, 2, before)
    recorder = Recorder(lambda: flaky)
    recorder._is_started.acquire()  # no thread: the test is the thread
    recorder(event("skipped", task="t"))
    for _ in range(2):
        with pytest.raises(LockUnavailable):
            recorder.flush()
        recorder(event("skipped", task="t"))
    recorder.flush()
    assert read_counts(locks) == {MetricField("skipped", "t"): 3}


def test_trouble_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two seconds for a night would be all that the log has."""
    monkeypatch.setattr(recorder_room, "EVERY", 0.001)
    asked = threading.Semaphore(0)

    def broken() -> Any:
        asked.release()
        raise RuntimeError("no such server")

    recorder = Recorder(broken)
    recorder(event("skipped", task="t"))
    for _ in range(3):
        assert asked.acquire(timeout=30)
    recorder.wait_idle(0)
    recorder.after_fork()
    assert caplog.text.count("could not send the lock metrics") == 1


def test_server_that_is_away_at_the_end_is_not_waited_for(locks: Locks) -> None:
    flaky: Any = Flaky(locks, 10**9)
    recorder = Recorder(lambda: flaky)
    recorder(event("skipped", task="t"))
    recorder.wait_idle(0.2)
    recorder.close()


def test_nothing_is_opened_at_install() -> None:
    """The module of an app calls it before the app is set up, and where no server is."""

    class Unready:
        @property
        def conf(self) -> Any:
            raise AssertionError("asked too early")

    metrics.install(Unready())


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_exposition_says_it_all(locks: Locks) -> None:
    metrics.install(locks)
    held = locks.acquire("held")
    assert held
    emit("acquired", "a", task="bill", waited=0.003)
    emit("acquired", "a", task="bill", waited=0.7)
    metrics.uninstall()
    found = samples(exposition(locks))
    held.release()
    assert found["celery_locks_up",] == 1
    assert found["celery_locks_held", ""] == 1
    assert found["celery_locks_held", "bill"] == 0
    assert found["celery_locks_acquired_total", "bill"] == 2
    assert found["celery_locks_wait_seconds_bucket", "0.005", "bill"] == 1
    assert found["celery_locks_wait_seconds_bucket", "0.5", "bill"] == 1
    assert found["celery_locks_wait_seconds_bucket", "1", "bill"] == 2
    assert found["celery_locks_wait_seconds_bucket", "+Inf", "bill"] == 2
    assert found["celery_locks_wait_seconds_count", "bill"] == 2
    assert found["celery_locks_wait_seconds_sum", "bill"] == pytest.approx(0.703)


def test_counters_of_known_tasks_begin_with_zero(locks: Locks) -> None:
    """``increase()`` sees nothing of a series that appears with 1: the first loss is the one."""
    metrics.install(locks)
    emit("acquired", "a", task="bill", waited=0.003)
    metrics.uninstall()
    found = samples(exposition(locks))
    for reason in ("gone", "late", "revoked"):
        assert found["celery_locks_lost_total", *sorted(("bill", reason))] == 0
    for counter in COUNTERS.keys() - {"lost", "conflicts", "duplicates"}:
        assert found[f"celery_locks_{counter}_total", "bill"] == (counter == "acquired")
    assert found["celery_locks_conflicts_total", "bill", "skip"] == 0
    assert found["celery_locks_duplicates_total", "bill", "return_existing"] == 0


def test_app_tells_its_locked_tasks_before_they_run() -> None:
    app = Celery("t", broker="memory://", set_as_current=False)

    @app.task(base=LockedTask, name="locked", shared=False)
    def locked() -> None: ...

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    # Shared tasks of other tests may be there too.
    assert {"locked", "plain"}.intersection(admin.locked_tasks(app)) == {"locked"}
    found = {family.name: family.samples for family in families({}, {}, ["locked"])}
    for name in ("celery_locks_skipped", "celery_locks_held"):
        assert [(sample.labels, sample.value) for sample in found[name]] == [
            ({"task": "locked"}, 0)
        ]


@pytest.mark.parametrize(
    ("host", "status"), [("localhost", 200), ("127.0.0.1:9187", 200), ("evil.example", 403)]
)
def test_port_answers_to_this_machine_only(locks: Locks, host: str, status: int) -> None:
    """A foreign page whose name was made to lead here must not read which tasks there are."""
    server, thread = metrics.serve(locks, 0)
    try:
        answer = httpx.get(f"http://127.0.0.1:{server.server_port}/", headers={"Host": host})
        assert answer.status_code == status
        assert ("celery_locks_up" in answer.text) == (status == 200)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_port_on_another_address_answers_to_any_name(locks: Locks) -> None:
    """A Prometheus elsewhere asks for the machine by its name."""
    server, thread = metrics.serve(locks, 0, "0.0.0.0")
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        assert httpx.get(url, headers={"Host": "worker-7.example:9187"}).status_code == 200
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_exposition_without_server_says_so() -> None:
    """A scrape that fails altogether looks like a broken exporter."""
    locks = Locks.from_url("redis://127.0.0.1:1/0")
    assert samples(exposition(locks)) == {("celery_locks_up",): 0}


def test_registering_asks_no_server() -> None:
    """A web app that starts while the lock server is away must start."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(LocksCollector(Locks.from_url("redis://127.0.0.1:1/0")))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(LocksCollector(Locks.from_url("redis://127.0.0.1:1/0")))


def test_install_refuses_what_has_no_server() -> None:
    with pytest.raises((LockUsageError, AttributeError)):
        metrics.locks_of(object())


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
    text = (ROOT / "docs" / "operations" / "metrics.md").read_text()
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


Subscriber = Callable[[LockEvent], None]


def _raises(event: LockEvent) -> None:
    raise RuntimeError("broken")


def test_subscriber_that_raises_keeps_no_lock(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    events.subscribe(_raises)
    with locks.hold("a"):
        assert locks.is_locked("a")
    assert not locks.is_locked("a")
    assert "broken" in caplog.text


def test_subscriber_that_is_slow_keeps_no_lock(locks: Locks) -> None:
    """It is told of a release when the lock is free already."""
    seen: list[tuple[str, bool]] = []
    events.subscribe(lambda event: seen.append((event.kind, locks.is_locked(event.name))))
    with locks.hold("a"):
        pass
    assert seen == [("acquired", True), ("released", False)]
