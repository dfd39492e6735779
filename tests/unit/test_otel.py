"""The lock's story in the task's trace, with the real SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from celery import Celery
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_locks import LockedTask, Locks, LockUnavailable, events, otel
from celery_locks.events import emit
from celery_locks.testing import hold_lock, in_memory_locks


@pytest.fixture(autouse=True)
def nobody_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_subscribers", ())


class Traced:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()


@pytest.fixture
def locks() -> Locks:
    return Locks(fakeredis.FakeRedis())


def names(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def test_lock_of_a_task_is_in_its_span(traced: Traced, locks: Locks) -> None:
    otel.install(tracer_provider=traced.provider)
    with traced.tracer.start_as_current_span("run/bill"):
        with locks.hold("invoice:42") as lease:
            assert locks.acquire("invoice:42") is None
    [task] = traced.spans("run/bill")
    acquired, conflict = traced.spans("lock.acquire")
    for span in (acquired, conflict):
        assert span.parent
        assert task.context
        assert span.parent.span_id == task.context.span_id
    attributes: Any = acquired.attributes
    assert attributes["celery_locks.outcome"] == "acquired"
    assert attributes["celery_locks.name"] == "invoice:42"
    assert attributes["celery_locks.fence"] == lease.fence
    assert conflict.attributes["celery_locks.outcome"] == "conflict"  # type: ignore[index]
    assert conflict.attributes["celery_locks.policy"] == "direct"  # type: ignore[index]
    assert names(task) == ["lock.released"]
    assert task.events[0].attributes["celery_locks.held_for"] >= 0  # type: ignore[index, operator]


def test_task_that_is_skipped_says_so_in_its_span(traced: Traced) -> None:
    otel.install(tracer_provider=traced.provider)
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @app.task(base=LockedTask, name="bill", lock_key="invoice", shared=False)
    def bill() -> None: ...

    with in_memory_locks(app), hold_lock("invoice", app=app):
        with traced.tracer.start_as_current_span("run/bill"):
            run = bill.apply_async()
    app.close()
    [task] = traced.spans("run/bill")
    assert names(task) == ["lock.skipped"]
    assert task.events[0].attributes["celery_locks.task_id"] == run.id  # type: ignore[index]
    attributes: Any = traced.spans("lock.acquire")[-1].attributes
    assert attributes["celery_locks.policy"] == "skip"
    assert attributes["celery_locks.outcome"] == "conflict"
    assert attributes["celery_locks.task"] == "bill"


def test_span_is_as_long_as_the_wait(traced: Traced) -> None:
    otel.install(tracer_provider=traced.provider)
    emit("acquired", "a", "t", 1, waited=1.5, task="bill", task_id="42")
    [span] = traced.spans("lock.acquire")
    assert span.end_time
    assert span.start_time
    assert span.end_time - span.start_time == pytest.approx(1.5e9, abs=1e6)
    assert span.attributes["celery_locks.task_id"] == "42"  # type: ignore[index]


def test_loss_told_by_another_thread_is_in_the_tasks_span(traced: Traced) -> None:
    """The keeper's thread has no span of its own; the task's is the one to look at."""
    otel.install(tracer_provider=traced.provider)
    with traced.tracer.start_as_current_span("run/bill"):
        emit("acquired", "a", "t", 1, waited=0.0)
        for kind in ("stop", "lost"):
            telling = threading.Thread(target=emit, args=(kind, "a", "t", 1))
            telling.start()
            telling.join()
    assert names(traced.spans("run/bill")[0]) == ["lock.stop", "lock.lost"]


def test_without_a_span_each_is_its_own(traced: Traced, locks: Locks) -> None:
    """Nobody instruments Celery here: what happened is still to be found."""
    otel.install(tracer_provider=traced.provider)
    with locks.hold("a"):
        pass
    emit("lost", "b", "t", 1, why="gone")
    assert len(traced.spans("lock.acquire")) == 1
    assert len(traced.spans("lock.released")) == 1
    [lost] = traced.spans("lock.lost")
    assert lost.attributes["celery_locks.why"] == "gone"  # type: ignore[index]


def test_names_can_be_left_out(traced: Traced, locks: Locks) -> None:
    """A name may be somebody's address."""
    otel.install(lock_names=False, tracer_provider=traced.provider)
    with traced.tracer.start_as_current_span("run/bill"):
        with locks.hold("anna@example.org"):
            assert locks.acquire("anna@example.org") is None
        emit("lost", "anna@example.org", "t", 1, why="of anna@example.org")
        emit("unavailable", "anna@example.org", "t", why="of anna@example.org")
    everything = [*traced.spans("run/bill"), *traced.spans("lock.acquire")]
    assert len(everything) == 4
    assert "anna" not in "".join(span.to_json() for span in everything)


def test_unavailable_server_is_an_error(traced: Traced) -> None:
    otel.install(tracer_provider=traced.provider)
    locks = Locks.from_url("redis://127.0.0.1:1/0", ttl=1)
    with pytest.raises(LockUnavailable):
        locks.acquire("a")
    [span] = traced.spans("lock.acquire")
    assert not span.status.is_ok
    assert "127.0.0.1" in span.attributes["celery_locks.why"]  # type: ignore[index, operator]


def test_without_an_sdk_nothing_happens(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """With opentelemetry-api alone every span is a non-recording one."""
    end = otel.install()
    with locks.hold("a"):
        pass
    end()
    assert caplog.text == ""
