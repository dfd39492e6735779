"""The run of a task: copies of its message, retries, replacements."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from celery import Celery, Task, chain, chord
from celery.backends.rpc import RPCBackend
from celery.exceptions import Retry

from celery_locks import Holder, LockedTask, Locks, current_lease
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable
from celery_locks.integration.app import AppLocks
from celery_locks.integration.execution import Execution
from celery_locks.integration.headers import HEADER
from celery_locks.store.commands.requests import ended_mark, reservation_token
from celery_locks.testing import in_memory_locks
from celery_locks.types import LockSpec
from tests.support.keys import key_alone
from tests.support.waiting import wait_until


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("copies", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.runs = []

    @app.task(
        name="job",
        base=LockedTask,
        lock_key=key_alone,
        lock_scope="queued+running",
        shared=False,
    )
    def job(key: str) -> None:
        app.conf.runs.append(key)

    app.finalize()
    yield app
    app.close()


def test_a_late_copy_leaves_the_retry_its_reservation(app: Celery) -> None:
    """It knows only the reservation of its own message, which the first attempt released."""
    job: Any = app.tasks["job"]
    with in_memory_locks(app) as locks:
        token = reserve(locks, "a", "id-1")
        first = Holder(task_id="id-1", task="job")
        locks.perform(
            locks.commands.release("a", "gone", marks=[ended_mark(first, 60, leaves_result=False)])
        )
        copy = {"queued": ["a", reservation_token("id-1")]}
        job.apply(("a",), task_id="id-1", headers={HEADER: copy})
        renewer.wait_idle(5)
        assert app.conf.runs == []
        assert [holder.token for holder in locks.holders("a")] == [token]


@pytest.mark.parametrize("why", ["it was ignored", "its result goes to its caller only"])
def test_a_copy_does_not_wait_for_a_result_that_nobody_will_see(
    app: Celery, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would come back again and again until nobody remembers that it has run, and run."""
    job: Any = app.tasks["job"]
    if "caller" in why:
        monkeypatch.setattr(job, "_backend", RPCBackend(app))
    with in_memory_locks(app) as locks:
        mark = ended_mark(Holder(task_id="id-2"), 60, leaves_result="caller" in why)
        locks.perform(locks.commands.release("a", "gone", marks=[mark]))
        headers = {HEADER: {"since": time.time()}}
        assert job.apply(("a",), task_id="id-2", headers=headers).state == "IGNORED"
    assert app.conf.runs == []
    with app.connection_for_read() as connection:
        assert connection.SimpleQueue("celery").qsize() == 0, "it was put back"


def reserve(locks: Locks, name: str, task_id: str) -> str:
    """Make the reservation that a retry has while it waits."""
    token = reservation_token(task_id, again=True)
    holder = Holder(task_id=task_id, task="job", retries=-1)
    assert isinstance(locks.perform(locks.commands.acquire(LockSpec(name, 60), token, holder)), int)
    return token


def test_replacement_is_counted_down_to_the_link_that_keeps_the_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise that link is taken for a copy of the task that it replaces."""
    app = Celery("replaced", broker="memory://", set_as_current=False)

    def nothing() -> None: ...

    host = app.task(name="host", base=LockedTask, lock_key="k")(nothing)
    part = app.task(name="part")(nothing)
    monkeypatch.setattr(Task, "on_replace", lambda self, sig: sig)
    inner = chord([part.s()], chain(part.s(), part.s()))
    host.push_request(replaced_task_nesting=2)
    sig = host.on_replace(chord([part.s()], chain(part.s(), inner)))
    host.pop_request()
    links = [sig.body, sig.body.tasks[-1], sig.body.tasks[-1].body.tasks[-1]]
    assert [link.options["replaced_task_nesting"] for link in links] == [3, 3, 3]
    app.close()


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    "when",
    [
        lambda: 10,
        lambda: datetime.now(UTC) + timedelta(seconds=10),
        lambda: datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=10),
        lambda: datetime.now(timezone(timedelta(hours=-5))) + timedelta(seconds=10),
    ],
    ids=["countdown", "aware", "naive", "another zone"],
)
def test_a_lock_is_kept_until_the_retry_is_due_and_a_ttl_more(when: Any) -> None:
    execution = object.__new__(Execution)
    execution.options = SimpleNamespace(on_retry="keep", scope="running", ttl=3.0)  # type: ignore[assignment]
    execution.task = SimpleNamespace(app=Celery(set_as_current=False))
    assert execution._seconds_to_keep(Retry(when=when())) == pytest.approx(13, abs=1)


def test_a_reservation_that_could_not_be_kept_in_time_is_kept_under_its_own_token_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By which a revoke finds it."""
    locks = AppLocks(fakeredis.FakeRedis())
    lease = locks.acquire("a", ttl=60)
    assert lease
    perform = locks._store.perform

    def away(call: Any) -> Any:
        monkeypatch.setattr(locks._store, "perform", perform)
        raise LockUnavailable("away")

    monkeypatch.setattr(locks._store, "perform", away)
    with pytest.raises(LockUnavailable):
        locks.run(locks.operations.release(lease, (), 30.0, reservation_token("job")))
    wait_until(lambda: [h.token for h in locks.holders("a")] == [reservation_token("job")])
    locks.close()


def test_end_of_a_task_releases_its_lock_also_if_the_body_entered_it_and_did_not_leave() -> None:
    """A forgotten reentrant acquire must not keep the lock for as long as the worker lives."""
    app = Celery(set_as_current=False, broker="memory://")

    @app.task(base=LockedTask, shared=False, lock_key="a")
    def enter_again() -> bool:
        lease = locks.acquire("a", reentrant=True)
        return lease is current_lease()

    with in_memory_locks(app) as locks:
        assert enter_again.apply().get() is True
        assert locks.holders("a") == ()
    app.close()
