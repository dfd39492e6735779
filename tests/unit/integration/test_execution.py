"""A copy of a message whose attempt has ended: what there is left belongs to others."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, chain, chord
from celery.backends.rpc import RPCBackend

from celery_locks import Holder, LockedTask, Locks
from celery_locks.core.renewer import renewer
from celery_locks.integration.headers import HEADER
from celery_locks.store.commands.requests import ended_mark, reservation_token
from celery_locks.testing import in_memory_locks
from celery_locks.types import LockSpec
from tests.support.keys import key_alone


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
