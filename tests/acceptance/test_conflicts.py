"""A busy lock, with real workers: every policy in every canvas answers, and nothing hangs.

The lock is held by the test, so that a conflict is certain and lasts until the test lets go.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as ResultTimeout

from celery_locks import LockConflict
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig() as rig, rig.worker("-E", "-n", "one@%h") as worker:
        rig.log = lambda: worker.log  # type: ignore[attr-defined]
        yield rig


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


Shape = Callable[[Rig, Any], Any]


def _single(rig: Rig, locked: Any) -> Any:
    return locked.apply_async()


def _first_of_chain(rig: Rig, locked: Any) -> Any:
    return chain(locked, rig.task("echo").s()).apply_async()


def _middle_of_chain(rig: Rig, locked: Any) -> Any:
    key = locked.args[0]
    middle = locked.clone()
    middle.args = ()
    return chain(rig.task("echo").s(key), middle, rig.task("echo").s()).apply_async()


def _group(rig: Rig, locked: Any) -> Any:
    return group(rig.task("echo").s("other"), locked).apply_async()


def _chord(rig: Rig, locked: Any) -> Any:
    header = [rig.task("echo").s("other"), locked]
    return chord(header, app=rig.app)(rig.task("gather").s())


CANVASES: dict[str, Shape] = {
    "single": _single,
    "first of a chain": _first_of_chain,
    "middle of a chain": _middle_of_chain,
    "group": _group,
    "chord": _chord,
}
FOLLOWED = ("first of a chain", "middle of a chain")
LISTED = ("group", "chord")


def start(rig: Rig, canvas: str, key: str, **lock: Any) -> Any:
    return CANVASES[canvas](rig, rig.task("work").s(key).set(lock=lock))


@pytest.mark.parametrize("canvas", CANVASES)
def test_skip_is_answered(rig: Rig, canvas: str, key: str) -> None:
    """A skip is a value, and where a later link would be run on that value, an error."""
    with rig.locks.hold(key) as lease:
        result = start(rig, canvas, key, on_conflict="skip")
        if canvas in FOLLOWED:
            with pytest.raises(LockConflict) as raised:
                result.get(timeout=PATIENCE)
            assert raised.value.holder.fence == lease.fence  # type: ignore[union-attr]
        else:
            answer = result.get(timeout=PATIENCE)
            skipped = answer[1] if canvas in LISTED else answer
            assert skipped["skipped"] is True
            assert skipped["lock"] == key
            assert skipped["holder"]["fence"] == lease.fence
            assert "token" not in skipped["holder"], "anybody may read results"
    assert not any(entry["lock"] == key for entry in rig.starts())


@pytest.mark.parametrize("canvas", CANVASES)
def test_raise_fails_with_the_holder(rig: Rig, canvas: str, key: str) -> None:
    """Whoever waits for the result learns who was in the way."""
    with rig.locks.hold(key) as lease:
        result = start(rig, canvas, key, on_conflict="raise")
        with pytest.raises(Exception, match=key) as raised:
            result.get(timeout=PATIENCE)
        if canvas != "chord":  # Celery puts a ChordError with the text of ours in its place
            assert isinstance(raised.value, LockConflict)
            assert raised.value.holder.fence == lease.fence  # type: ignore[union-attr]


@pytest.mark.parametrize("canvas", CANVASES)
@pytest.mark.parametrize("policy", ["requeue", "wait", "park"])
def test_patient_policies_run_it_in_the_end(rig: Rig, policy: str, canvas: str, key: str) -> None:
    """The same canvas goes on with the value of the task, as if there had been no conflict."""
    with rig.locks.hold(key):
        result = start(rig, canvas, key, on_conflict=policy)
        if policy == "wait":
            wait_until(lambda: _waiters(rig, key) == 1, PATIENCE, what="it to stand in line")
        else:
            rig.wait_event({"requeue": "requeued", "park": "parked"}[policy], key)
    answer = result.get(timeout=PATIENCE)
    assert answer == (["other", key] if canvas in LISTED else key)


@pytest.mark.parametrize("canvas", ["single", "middle of a chain", "chord"])
def test_wait_then_requeue_leaves_the_slot_and_waits_again(rig: Rig, canvas: str, key: str) -> None:
    """Twice, so that the requeued message is seen to wait as long as the first time."""
    policy = {"run": "wait", "then": "requeue"}
    with rig.locks.hold(key):
        result = start(rig, canvas, key, on_conflict=policy, wait=0.5)
        for times in (1, 2):
            wait_until(lambda: _waiters(rig, key) == 1, PATIENCE, what="it to stand in line")
            rig.wait_event("requeued", key, times)
    answer = result.get(timeout=PATIENCE)
    assert answer == (["other", key] if canvas in LISTED else key)
    assert [entry["retries"] for entry in rig.starts() if entry["lock"] == key] == [0]


def test_wait_then_skip_has_a_result_and_expires_ends_the_requeues(rig: Rig, key: str) -> None:
    with rig.locks.hold(key):
        skip = {"on_conflict": {"run": "wait", "then": "skip"}, "wait": 0.2}
        result = rig.task("work").apply_async((key,), lock=skip)
        assert result.get(timeout=PATIENCE)["lock"] == key
        requeue = {"on_conflict": {"run": "wait", "then": "requeue"}, "wait": 0.2}
        result = rig.task("work").apply_async((key,), lock=requeue, expires=6)
        rig.wait_event("requeued", key)
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE)


def _waiters(rig: Rig, key: str) -> int:
    info = rig.locks.info(key)
    return len(info.waiters) if info else 0


def test_a_skip_names_the_holding_task_everywhere(rig: Rig, key: str) -> None:
    """Result, log, Celery event and lock event: an operator sees it wherever they look."""
    received: list[dict[str, Any]] = []
    with _receiving(rig, "task-skipped", received):
        first = rig.task("work").delay(key, key)
        rig.wait_started(first)
        second = rig.task("work").delay(key)
        skipped = second.get(timeout=PATIENCE)
        wait_until(
            lambda: [event for event in received if event["uuid"] == second.id],
            PATIENCE,
            what="the event task-skipped",
        )
    holder = skipped["holder"]
    assert (holder["task_id"], holder["task"]) == (first.id, "work")
    assert holder["worker"].startswith("one@")
    [event] = [event for event in received if event["uuid"] == second.id]
    assert (event["lock"], event["holder"]["task_id"]) == (key, first.id)
    assert f"work[{second.id}] is skipped: lock '{key}' is held by task work[{first.id}]" in (
        rig.log()  # type: ignore[attr-defined]
    )
    [told] = rig.events("skipped", key)
    assert (told["kind"], told["name"], told["task"]) == ("skipped", key, "work")
    rig.open(key)
    assert first.get(timeout=PATIENCE) == key


class _receiving:
    """A real receiver of Celery's events, in a thread of its own while the block runs."""

    def __init__(self, rig: Rig, kind: str, into: list[dict[str, Any]]) -> None:
        self._rig = rig
        self._handlers = {kind: into.append}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._receive)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(PATIENCE)

    _over = False

    def _receive(self) -> None:
        with self._rig.app.connection_for_read() as connection:
            receiver = self._rig.app.events.Receiver(connection, handlers=self._handlers)
            with receiver.consumer_context() as (used, _channel, _consumers):
                self._ready.set()
                while not self._over:
                    try:
                        used.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_conflict_survives_the_result_serializer(serializer: str, key: str) -> None:
    """The error comes back as itself, with the holder, by either serialiser."""
    accept = {"result_serializer": serializer, "result_accept_content": ["json", "pickle"]}
    with (
        fresh_rig(**accept) as rig,
        rig.worker(pool="solo", concurrency=1),
        rig.locks.hold(key) as lease,
    ):
        result = rig.task("work").apply_async([key], lock={"on_conflict": "raise"})
        with pytest.raises(LockConflict, match=f"lock '{key}' is held by") as raised:
            result.get(timeout=PATIENCE)
        assert raised.value.holder.fence == lease.fence  # type: ignore[union-attr]
        assert raised.value.name == key


def test_requeue_changes_nothing_of_the_message(rig: Rig, key: str) -> None:
    """Id, retries, headers, priority, expiry and limits are those that the caller gave."""

    def shown() -> Any:
        return rig.task("shows").apply_async(
            [key],
            headers={"mine": "yes"},
            priority=3,
            time_limit=55,
            soft_time_limit=50,
            expires="2099-01-01T00:00:00",
            shadow="shown",
            link=rig.task("echo").s(),
            lock={"on_conflict": "requeue"},
        )

    expected = shown().get(timeout=PATIENCE)
    with rig.locks.hold(key):
        result = shown()
        rig.wait_event("requeued", key, times=2)
    assert result.get(timeout=PATIENCE) == expected
    assert expected["headers"]["mine"] == "yes"
    [linked] = wait_until(lambda: result.children, PATIENCE, what="the callback to be called")
    assert linked.get(timeout=PATIENCE) == expected


def test_requeue_frees_the_slot(rig: Rig, key: str) -> None:
    """More conflicting tasks than slots, and another task runs while all of them are put back."""
    with rig.locks.hold(key):
        blocked = [
            rig.task("work").apply_async([key], lock={"on_conflict": "requeue"}) for _ in range(5)
        ]
        rig.wait_event("requeued", key, times=5)
        assert rig.task("echo").delay("free").get(timeout=PATIENCE) == "free"
    assert [result.get(timeout=PATIENCE) for result in blocked] == [key] * 5


def test_requeue_ends_with_its_patience(rig: Rig, key: str) -> None:
    """``wait`` bounds how long a requeued task goes on; then it fails with the conflict."""
    with rig.locks.hold(key):
        began = time.time()
        result = rig.task("work").apply_async([key], lock={"on_conflict": "requeue", "wait": 1})
        with pytest.raises(LockConflict):
            result.get(timeout=PATIENCE)
        assert time.time() - began >= 1


def test_wait_ends_with_its_patience(rig: Rig, key: str) -> None:
    """The same for a task that blocks; afterwards nobody stands in line."""
    with rig.locks.hold(key):
        began = time.time()
        result = rig.task("work").apply_async([key], lock={"on_conflict": "wait", "wait": 1})
        with pytest.raises(LockConflict):
            result.get(timeout=PATIENCE)
        assert time.time() - began >= 1
        assert _waiters(rig, key) == 0


def test_wait_without_patience_outlasts_the_ttl(rig: Rig, key: str) -> None:
    """No ``wait`` means for as long as it takes."""
    with rig.locks.hold(key, ttl=1):
        result = rig.task("work").apply_async([key], lock={"on_conflict": "wait", "ttl": 1})
        with pytest.raises(ResultTimeout):
            result.get(timeout=1.5)
    assert result.get(timeout=PATIENCE) == key


def test_wait_is_first_come_first_served_over_two_workers(rig: Rig, key: str) -> None:
    """Who asked first runs first, whichever worker it is in."""
    order = []
    with rig.worker("-n", "two@%h", "-Q", "two", pool="threads", concurrency=4):
        with rig.locks.hold(key):
            for position, queue in enumerate(["celery", "two", "two", "celery", "two"], 1):
                task = rig.task("work")
                result = task.apply_async([key], lock={"on_conflict": "wait"}, queue=queue)
                wait_until(
                    lambda position=position: _waiters(rig, key) == position,
                    PATIENCE,
                    what=f"{position} in line",
                )
                order.append(result.id)
            pids = {waiter.pid for waiter in rig.locks.info(key).waiters}  # type: ignore[union-attr]
            workers = {waiter.worker for waiter in rig.locks.info(key).waiters}  # type: ignore[union-attr]
        for task_id in order:
            assert rig.app.AsyncResult(task_id).get(timeout=PATIENCE) == key
    assert len(pids) > 1
    assert len(workers) == 2
    assert [entry["id"] for entry in rig.starts() if entry["lock"] == key] == order
    rig.never_two_at_once()
