"""What Prometheus reads."""

from __future__ import annotations

import httpx
import pytest
from celery import Celery
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from celery_locks import LockedTask, Locks, admin, metrics
from celery_locks.events import emit
from celery_locks.metrics.collector import LocksCollector, exposition, families
from celery_locks.metrics.series import COUNTERS


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
    for counter in COUNTERS.keys() - {"lost", "conflicts", "duplicates", "limited"}:
        assert found[f"celery_locks_{counter}_total", "bill"] == (counter == "acquired")
    assert found["celery_locks_conflicts_total", "bill", "skip"] == 0
    assert found["celery_locks_limited_total", "bill", "delay"] == 0
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


def ask_port(locks: Locks, hosts: dict[str, int], *address: str) -> None:
    """Serve the metrics, and expect these answers to these ``Host`` headers."""
    server, thread = metrics.serve(locks, 0, *address)
    try:
        for host, status in hosts.items():
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            answer = httpx.get(url, headers={"Host": host})
            assert (host, answer.status_code) == (host, status)
            assert ("celery_locks_up" in answer.text) == (status == 200)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_port_answers_to_this_machine_only(locks: Locks) -> None:
    """A foreign page whose name was made to lead here must not read which tasks there are."""
    ask_port(locks, {"localhost": 200, "127.0.0.1:9187": 200, "evil.example": 403})


def test_port_on_another_address_answers_to_any_name(locks: Locks) -> None:
    """A Prometheus elsewhere asks for the machine by its name."""
    ask_port(locks, {"worker-7.example:9187": 200}, "0.0.0.0")


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
