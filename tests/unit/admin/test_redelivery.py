"""Whose job is looked for after a sweep, and what is said of brokers that cannot be looked into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import time_machine
from celery import Celery

from celery_locks import Locks, admin
from celery_locks.admin import redelivery as jobs
from celery_locks.admin.redelivery import JobSearch, _lost_before
from celery_locks.integration.broker_messages import Unacked
from celery_locks.integration.worker_inspection import MessageReport
from celery_locks.types import Holder, LockSpec

HOLDER = Holder(token="x", task_id="t", task="bill", worker="w", ttl=30.0)


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


@pytest.fixture
def clock() -> Iterator[Any]:
    with time_machine.travel(1_800_000_000, tick=False) as moved:
        yield moved


def take(locks: Locks, name: str, task_id: str = "") -> None:
    holder = Holder(task_id=task_id or name, task="bill", worker="w")
    locks.perform(locks.commands.acquire(LockSpec(name, 30.0), f"{name}-{task_id}", holder))


def bill() -> None:
    """A task."""


def app_on(broker: str, acks_late: bool = True) -> Celery:
    app = Celery("t", broker=broker, set_as_current=False)
    app.task(bill, name="bill", shared=False, acks_late=acks_late)
    return app


def test_only_jobs_whose_renewal_was_overdue_are_looked_for(locks: Locks, clock: Any) -> None:
    """A lock that an operator took from a healthy holder says nothing about the worker's life."""
    for name in ("healthy", "overdue", "lapsed", "at work", "ran again"):
        take(locks, name)
    admin.force_release(locks, "healthy")
    clock.shift(20)
    admin.force_release(locks, "overdue")
    clock.shift(20)
    for name in ("lapsed", "at work", "ran again"):
        take(locks, name, "the next one")
    take(locks, "elsewhere", "at work")
    take(locks, "another", "ran again")
    clock.shift(5)
    locks.perform(locks.commands.release("another", "another-ran again", history_note=""))
    found = {holder.task_id for holder in _lost_before(locks, set())}
    assert found == {"overdue", "lapsed"}
    assert list(_lost_before(locks, {"overdue", "lapsed"})) == []


@pytest.mark.parametrize(
    ("broker", "acks_late", "fate", "sentence"),
    [
        ("amqp://", True, "returns", "RabbitMQ delivers its message again when"),
        ("amqp://", False, "lost", "acknowledged before the task started (acks_late is off)"),
        ("memory://", True, "unknown", "a broker of type 'memory' cannot be asked"),
    ],
)
def test_other_brokers_are_not_looked_into(
    locks: Locks, broker: str, acks_late: bool, fate: str, sentence: str
) -> None:
    """With RabbitMQ there is nothing to restore, and whoever is on call should know that."""
    [job], doubt = JobSearch(app_on(broker, acks_late), 1.0, restore=True).jobs(locks, [HOLDER])
    assert (job.fate, doubt) == (fate, "")
    assert job.sentence.startswith("Task bill[t]: ")
    assert sentence in job.sentence


def test_a_task_that_the_app_does_not_know_may_have_either(locks: Locks) -> None:
    [job], _ = JobSearch(app_on("amqp://"), 1.0).jobs(locks, [HOLDER._replace(task="other")])
    assert "if it has acks_late: RabbitMQ" in job.sentence


def test_a_broker_that_is_down_is_said(locks: Locks) -> None:
    """The locks are freed by then; an error would hide that."""
    search = JobSearch(app_on("redis://127.0.0.1:1/0"), 0.5)
    found, doubt = search.jobs(locks, [HOLDER])
    assert found == []
    assert doubt.startswith("Could not search for the jobs of dead workers: the broker gives no")
    assert search.jobs(locks, []) == ([], "")


class OneBroker:
    """A broker that would restore anything."""

    def restore(self, message: Unacked) -> list[str]:
        return ["celery"]


def unacked(delivered_at: float) -> Unacked:
    return Unacked("tag", b"", delivered_at, visibility_timeout=3600.0)


@pytest.mark.parametrize(
    ("found", "fate", "sentence"),
    [
        ([unacked(1000.0)], "restored", "back in queue 'celery'"),
        ([unacked(1121.0)], "returns", "was delivered to a worker since"),
        ([unacked(1000.0), unacked(1001.0)], "returns", "it has 2 unacknowledged messages"),
    ],
    ids=["the dead worker's", "delivered since", "several"],
)
def test_only_the_message_that_the_dead_worker_had_is_restored(
    found: list[Unacked], fate: str, sentence: str
) -> None:
    """Another delivery may be under way with a worker that cannot answer, as of the solo pool."""
    holder = HOLDER._replace(expires_at=1120.0)
    job = JobSearch(None, 1.0, restore=True)._of_unacked(OneBroker(), holder, found)  # type: ignore[arg-type]
    assert job.fate == fate
    assert sentence in job.sentence


@pytest.mark.parametrize(
    ("answers", "taken", "times"),
    [
        ([MessageReport({"w": []})], set(), 1),
        ([MessageReport({"v": []}), MessageReport({"w": []}, frozenset({"t"}))], {"t"}, 2),
        ([MessageReport(), MessageReport()], set(), 2),
    ],
    ids=["its worker answers", "its worker is slow", "nobody answers"],
)
def test_a_worker_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, answers: list[MessageReport], taken: set[str], times: int
) -> None:
    """A busy worker may miss one question, and have the task."""
    asked: list[Any] = []
    monkeypatch.setattr(
        jobs, "inspect_messages", lambda app, ids, _: asked.append(ids) or answers[len(asked) - 1]
    )
    assert JobSearch(None, 1.0)._with_workers([HOLDER]) == taken
    assert asked == [["t"]] * times
