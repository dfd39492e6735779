"""The run of a task: copies of its message, retries, replacements."""

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from celery import Celery, Task, chain, chord
from celery.backends.rpc import RPCBackend
from celery.exceptions import Ignore, Retry

from celery_locks import Holder, LockedTask, Locks, current_lease
from celery_locks.core.lease import Lease
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockConflict, LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import AppLocks
from celery_locks.integration.execution import Execution
from celery_locks.integration.headers import HEADER, LockHeader
from celery_locks.store.commands.locks import ended_mark, reservation_token
from celery_locks.testing import in_memory_locks, lock_name_of
from celery_locks.types import LockSpec
from tests.support.keys import key_alone
from tests.support.waiting import wait_until


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("copies", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.runs = []
    app.conf.task_default_queue = "copies"  # the in-memory broker is the same for all apps

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
        assert connection.SimpleQueue("copies").qsize() == 0, "it was put back"


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


def test_call_whose_key_function_returns_none_runs_unlocked(app: Celery) -> None:
    @app.task(
        name="some", base=LockedTask, lock_key=lambda n: f"n:{n}" if n else None, shared=False
    )
    def some(n: int) -> str | None:
        lease = current_lease()
        return lease.name if lease else None

    with in_memory_locks(app) as locks:
        assert [some.apply((n,)).get() for n in (0, 1)] == [None, "n:1"]
        assert [some.lock_name(n) for n in (0, 1)] == [None, "n:1"]
        assert some.pending(0) is None
        assert lock_name_of(some, 1) == "n:1"
        with pytest.raises(LockUsageError, match="its key function returned None"):
            lock_name_of(some, 0)
        assert locks.info("n:1") is None


def test_reservation_of_a_message_that_runs_unlocked_is_released_before_the_body(
    app: Celery,
) -> None:
    """The publisher may have another release of the code, whose key function returned a name."""

    @app.task(name="some", base=LockedTask, lock_key=lambda key: None, shared=False)
    def some(key: str) -> bool:
        wait_until(lambda: not locks.holders(key), 10, what="the reservation to be released")
        return True

    with in_memory_locks(app) as locks:
        token = reservation_token("id-1")
        holder = Holder(task_id="id-1", task="some", retries=-1)
        locks.perform(locks.commands.acquire(LockSpec("k", 60), token, holder))
        headers = {HEADER: {"version": 1, "queued": "k"}}
        assert some.apply(("k",), task_id="id-1", headers=headers).get() is True


# The next attempt of a job carries the fences of the run that published it.


class Retried:
    """An app whose runs publish to a queue of the in-memory broker, where the test reads."""

    def __init__(self, body: Any, **options: Any) -> None:
        self.app = Celery("retried", broker="memory://", set_as_current=False)
        self.app.conf.task_default_queue = "retried"
        self.fences: dict[str, int] = {}

        @self.app.task(name="other", base=LockedTask, lock_key="other", shared=False)
        def other() -> None: ...

        self.other: Any = other

        @self.app.task(
            name="retried",
            base=LockedTask,
            bind=True,
            shared=False,
            **{"lock_key": "a", "default_retry_delay": 0, **options},
        )
        def retried(task: Any) -> Any:
            lease = current_lease()
            self.fences = dict(lease.fences) if isinstance(lease, Lease) else {}
            return body(self, task)

        self.task: Any = retried

    def run(self, header: LockHeader | None = None, **request: Any) -> list[Any]:
        """Run it as a worker does, and return the messages that it published."""
        headers = (header or LockHeader()).write({"x": 1})
        context = {"id": "j", "retries": 0, "headers": headers, "args": [], "kwargs": {}}
        self.task.push_request(**{**context, "called_directly": False, **request})
        try:
            with in_memory_locks(self.app):
                with suppress(Retry, Ignore, ConnectionError):
                    self.task()
                self.task.after_return("", None, "j", [], {}, None)
        finally:
            self.task.pop_request()
        messages = []
        with self.app.connection_for_read() as connection:
            queue = connection.SimpleQueue("retried")
            while queue.qsize():
                message = queue.get()
                message.ack()
                messages.append(message)
            queue.close()
        self.app.close()
        return messages


def raise_retry(world: Retried, task: Any) -> None:
    raise task.retry()


def fail(world: Retried, task: Any) -> None:
    raise ConnectionError


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (raise_retry, {}),
        (lambda world, task: task.retry(throw=False) and None, {}),
        (lambda world, task: task.retry(headers={"mine": 1}), {}),
        (fail, {"autoretry_for": (ConnectionError,)}),
        (raise_retry, {"lock_key": ["a", "b"]}),
        (raise_retry, {"lock_scope": "queued+running"}),
        (lambda world, task: task.replace(world.other.s().set(queue="retried")), {}),
        (lambda world, task: world.other() or task.retry(), {}),
    ],
    ids=[
        "retry",
        "throw=False",
        "headers",
        "autoretry",
        "several",
        "queued+running",
        "replace",
        "after a direct call",
    ],
)
def test_next_attempt_carries_the_fences_of_the_run_that_published_it(
    body: Any, options: Any
) -> None:
    """By which it tells this run, whose lock it takes over, from a redelivered copy of it."""
    world = Retried(body, **options)
    before = LockHeader({"ttl": 9}, since=time.time(), times=3, published_by=(3, 4))
    (message,) = world.run(before, retries=1)
    assert message.headers["id"] == "j"
    header = LockHeader.read(message.headers)
    assert world.fences
    assert header.published_by == tuple(world.fences.values())
    assert header.since is None


def test_message_of_another_job_carries_no_fences() -> None:
    def body(world: Retried, task: Any) -> None:
        task.apply_async()
        task.apply_async(task_id="k", retries=1)
        world.other.apply_async(queue="retried")

    messages = Retried(body).run()
    assert len(messages) == 3
    assert not [it for it in messages if HEADER in it.headers]


def test_run_without_a_lock_publishes_no_fences() -> None:
    (message,) = Retried(raise_retry, lock_key=lambda: None).run()
    assert message.headers["retries"] == 1
    assert HEADER not in message.headers


def test_requeued_message_keeps_the_fences_of_its_publisher() -> None:
    """It is the same attempt. Its run found another lock busy, and released its own."""

    def body(world: Retried, task: Any) -> None:
        commands = task.locks.commands
        task.locks.perform(commands.acquire(LockSpec("busy", 60), "t", Holder()))
        with task.locks.hold("busy", on_conflict="requeue"):
            pass

    (message,) = Retried(body).run(LockHeader(published_by=(7,)), retries=1)
    assert message.headers["retries"] == 1
    header = LockHeader.read(message.headers)
    assert (header.published_by, header.times) == ((7,), 1)


def test_link_that_keeps_the_id_carries_the_fences() -> None:
    """The run of the link before it publishes it, which is another job."""

    def body(world: Retried, task: Any) -> None:
        first, last = (world.other.s().set(queue="retried") for _ in range(2))
        task.replace(chain(first, last))

    world = Retried(body)
    (message,) = world.run()
    assert HEADER not in message.headers
    (link,) = message.decode()[2]["chain"]
    assert link["options"]["task_id"] == "j"
    header = LockHeader.read(link["options"]["headers"])
    assert header.published_by == tuple(world.fences.values())


def test_acquire_of_a_retry_names_its_publisher(app: Celery) -> None:
    """A copy of the attempt before has the lock: the retry does not take it and is not skipped."""
    job: Any = app.tasks["job"]
    with in_memory_locks(app) as locks:
        commands, first = locks.commands, Holder(task_id="id-3", task="job")
        fence = locks.perform(commands.acquire(LockSpec("a", 60), "one", first))
        headers = LockHeader(published_by=(fence - 1,)).write({})
        result = job.apply(("a",), task_id="id-3", retries=1, headers=headers)
        assert isinstance(result.result, LockConflict), "an eager call cannot be requeued"
        assert app.conf.runs == []
        headers = LockHeader(published_by=(fence,)).write({})
        job.apply(("a",), task_id="id-3", retries=1, headers=headers).get()
        assert app.conf.runs == ["a"]
