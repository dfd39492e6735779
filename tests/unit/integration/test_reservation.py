"""A message's reservation is released once if the message ends here, and never if it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.task import Context
from celery.exceptions import Ignore, Retry

from celery_locks import Holder, LockConflict, LockedTask
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable
from celery_locks.integration import reservation as module
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.headers import HEADER, VERSION
from celery_locks.integration.reservation import NO_RESERVATION, Reservation
from celery_locks.store.commands.locks import LockCommands, ended_mark, reservation_token
from celery_locks.testing import in_memory_locks
from celery_locks.types import LockSpec
from celery_locks.validation import QUEUED
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.sent_calls import renew_reply
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

NAME, TASK_ID = "job:a:queued", "id-1"
TOKEN = reservation_token(TASK_ID)
RESERVED = {HEADER: {"version": VERSION, "queued": NAME}}


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("reservation", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = "reservation"  # the queues of memory:// are the process's

    @app.task(name="job", base=LockedTask, lock_key="job:{key}", lock_scope="queued", shared=False)
    def job(key: str) -> str:
        return key

    class NeverBegins(LockedTask):
        def before_start(self, *_: Any) -> None:
            raise KeyError("of the user")

    @app.task(
        name="broken", base=NeverBegins, lock_key="job:{key}", lock_scope="queued", shared=False
    )
    def broken(key: str) -> None: ...

    app.finalize()
    with in_memory_locks(app):
        yield app
    app.close()


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch, app: Celery) -> list[tuple[str, str]]:
    """Every reservation that is released apart from the acquiring call."""
    calls: list[tuple[str, str]] = []
    release_later = renewer.release_later

    def record(release: PendingRelease) -> None:
        calls.append((release.name, release.token))
        release_later(release)

    monkeypatch.setattr(renewer, "release_later", record)
    locks = locks_of(app)
    holder = Holder(task_id=TASK_ID, task="job", retries=-1)
    locks.perform(locks.commands.acquire(LockSpec(NAME, 600), TOKEN, holder))
    return calls


def run(app: Celery, **lock: Any) -> Any:
    """Run the task as a worker does, with a message that has a reservation."""
    job: Any = app.tasks["job"]
    headers = {HEADER: {**RESERVED[HEADER], "options": lock}}
    job.push_request(
        id=TASK_ID, headers=headers, called_directly=False, args=("a",), kwargs={}, delivery_info={}
    )
    try:
        return job("a")
    finally:
        job.after_return(None, None, TASK_ID, ("a",), {}, None)
        job.pop_request()


def occupy(app: Celery, name: str = "job:a") -> AppLocks:
    locks = locks_of(app)
    assert locks.acquire(name, ttl=60)
    return locks


def test_run_in_the_same_shard_releases_it_with_the_acquire(app: Celery, released: Any) -> None:
    """One call is the price of a run, with a reservation as without."""
    assert run(app) == "a"
    assert released == []
    assert not locks_of(app).holders(NAME)


def test_run_in_another_shard_releases_it_apart(
    app: Celery, released: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher with other options may have reserved a name on another server of a cluster."""
    monkeypatch.setattr(Reservation, "released_by_acquire", lambda *_: ("", ""))
    assert run(app) == "a"
    assert released == [(NAME, TOKEN)]


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_conflict_releases_it(app: Celery, released: Any, policy: str) -> None:
    """The message is gone: the next one must be able to queue."""
    occupy(app)
    if policy == "raise":
        with pytest.raises(LockConflict):
            run(app, on_conflict=policy)
    else:
        assert run(app, on_conflict=policy)["skipped"]
    assert released == [(NAME, TOKEN)]


def test_requeue_keeps_it(app: Celery, released: Any) -> None:
    """The same message waits on: while it does, others are duplicates."""
    locks = occupy(app)
    with pytest.raises(Ignore):
        run(app, on_conflict="requeue")
    assert released == []
    assert [holder.token for holder in locks.holders(NAME)] == [TOKEN]


def test_retry_before_the_lock_keeps_it(app: Celery, released: Any, monkeypatch: Any) -> None:
    """Celery sends the next attempt, which has the header and so the reservation."""

    def raise_retry(*_: Any) -> None:
        raise Retry("not now")

    monkeypatch.setattr("celery_locks.integration.execution.lock_name", raise_retry)
    with pytest.raises(Retry):
        run(app)
    assert released == []


def test_dropped_copy_keeps_it(app: Celery, released: Any) -> None:
    """The run that ended has handled it, and a retry may have it now."""
    locks = locks_of(app)
    mark = ended_mark(Holder(task_id=TASK_ID), 60, leaves_result=False)
    locks.perform(locks.commands.release("job:a", "gone", marks=[mark]))
    with pytest.raises(Ignore):
        run(app)
    assert released == []


def test_error_before_the_lock_releases_it(
    app: Celery, released: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that cannot be rendered fails the task, and the message is gone."""

    def fail(*_: Any) -> None:
        raise KeyError("key")

    monkeypatch.setattr("celery_locks.integration.execution.lock_name", fail)
    with pytest.raises(KeyError):
        run(app)
    assert released == [(NAME, TOKEN)]


def test_unavailable_server_releases_it_if_the_task_fails(
    app: Celery, released: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once, as the server is away, but before the reservation would lapse."""
    from celery_locks.integration.execution import Execution

    def away(*_: Any) -> None:
        raise LockUnavailable("away")

    monkeypatch.setattr(Execution, "_acquire", away)
    with pytest.raises(LockUnavailable):
        run(app, on_unavailable="fail")
    assert released == [(NAME, TOKEN)]


def test_run_that_never_begins_releases_it_once(app: Celery, released: Any) -> None:
    """Both ``after_return`` and the signal see such an end."""
    app.tasks["broken"].apply(("a",), task_id=TASK_ID, headers=RESERVED)
    assert released == [(NAME, TOKEN)]


def test_revoked_or_expired_message_releases_it(app: Celery, released: Any) -> None:
    """The worker's main process drops the message, and no child ever sees it."""
    request = Context(id=TASK_ID, headers=RESERVED)
    for _ in range(2):
        signals.task_revoked.send(app.tasks["job"], request=request, terminated=False)
    assert released == [(NAME, TOKEN)]


def test_unreadable_header_is_looked_up_by_the_task_id(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer publisher may have made the reservation: only the store can tell."""
    found: list[Any] = []
    monkeypatch.setattr(module.revoked, "add", lambda ids, _: found.extend(ids))
    request = Context(id=TASK_ID, headers={HEADER: {"version": VERSION + 1}})
    Reservation.of(request, app).release()
    Reservation.of(request, app).release()
    assert found == [TASK_ID]


def test_release_happens_once_and_not_after_a_hand_over(app: Celery, released: Any) -> None:
    """The next owner has the same token: a late release would take it from that one."""
    reservation = Reservation(NAME, TOKEN, app)
    reservation.release()
    reservation.release()
    other = Reservation(NAME, TOKEN, app)
    other.pass_on()
    other.release()
    assert released == [(NAME, TOKEN)]


def test_interrupted_release_is_repeated(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit may interrupt between any two lines, and ``after_return`` comes after it."""
    calls: list[str] = []

    def interrupted(release: PendingRelease) -> None:
        calls.append(release.name)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(renewer, "release_later", interrupted)
    reservation = Reservation(NAME, TOKEN, app)
    with pytest.raises(KeyboardInterrupt):
        reservation.release()
    reservation.release()
    assert calls == [NAME, NAME]


def test_message_without_a_reservation_has_nothing_to_release(released: Any) -> None:
    """Most messages have none, and share this one."""
    NO_RESERVATION.release()
    NO_RESERVATION.on_acquired("job:a")
    assert released == []


SHARDS = LockCommands("p", 16)
SAME_SHARD, OTHER_SHARD = "job:a", "job:b"


class Ends:
    """Every way in which a message ends in one process, by the table of ``reservation.py``."""

    @staticmethod
    def run_in_the_same_shard(reservation: Reservation) -> None:
        reservation.on_acquired(SAME_SHARD)

    @staticmethod
    def run_in_another_shard(reservation: Reservation) -> None:
        reservation.on_acquired(OTHER_SHARD)

    @staticmethod
    def run_under_the_same_name(reservation: Reservation) -> None:
        reservation.on_acquired(reservation.name)

    @staticmethod
    def conflict_or_completed(reservation: Reservation) -> None:
        reservation.release()

    @staticmethod
    def requeued(reservation: Reservation) -> None:
        reservation.extend(60.0, 1.0)
        reservation.pass_on()

    @staticmethod
    def retried(reservation: Reservation) -> None:
        reservation.pass_on()

    @staticmethod
    def never_began(reservation: Reservation) -> None:
        reservation.release()
        reservation.release()

    @staticmethod
    def revoked_after_a_requeue(reservation: Reservation) -> None:
        reservation.pass_on()
        reservation.release()


@pytest.mark.parametrize(
    ("end", "releases"),
    [
        (Ends.run_in_the_same_shard, 0),
        (Ends.run_in_another_shard, 1),
        (Ends.run_under_the_same_name, 0),
        (Ends.conflict_or_completed, 1),
        (Ends.requeued, 0),
        (Ends.retried, 0),
        (Ends.never_began, 1),
        (Ends.revoked_after_a_requeue, 0),
    ],
)
def test_every_end_of_a_message_releases_its_reservation_exactly_as_often_as_it_should(
    scripted_app: Celery,
    scripted_locks: AppLocks,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    end: Any,
    releases: int,
) -> None:
    """``after_return`` and the signals come after each end: they release nothing twice."""
    scripted_locks.commands = SHARDS
    assert SHARDS.root(SAME_SHARD) == SHARDS.root(SAME_SHARD + QUEUED)
    assert SHARDS.root(OTHER_SHARD) != SHARDS.root(SAME_SHARD)
    if end is Ends.requeued:
        scripted_store.expect(("renew", renew_reply()))
    reservation = Reservation(SAME_SHARD + QUEUED, TOKEN, scripted_app)
    end(reservation)
    reservation.release()
    scripted_store.expect(*[("release", True)] * releases)
    still_renewer.run_due()
    still_renewer.run_due()
    assert [it[:2] for it in scripted_store.releases] == [(SAME_SHARD + QUEUED, TOKEN)] * releases
    assert not still_renewer.pending


@pytest.mark.parametrize(
    ("name", "released"),
    [
        (SAME_SHARD, (SAME_SHARD + QUEUED, TOKEN)),
        (OTHER_SHARD, ("", "")),
        (SAME_SHARD + QUEUED, ("", "")),
    ],
    ids=["same shard", "another shard", "same name"],
)
def test_acquire_releases_it_only_where_one_call_can(
    scripted_app: Celery, scripted_locks: AppLocks, name: str, released: tuple[str, str]
) -> None:
    """A run of the same name takes the lock over: to release it would be to lose it."""
    scripted_locks.commands = SHARDS
    reservation = Reservation(SAME_SHARD + QUEUED, TOKEN, scripted_app)
    assert reservation.released_by_acquire(name) == released


def test_release_that_fails_is_tried_again_for_an_hour(
    scripted_app: Celery,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A reservation may live as long as its message would have waited."""
    Reservation(NAME, TOKEN, scripted_app).release()
    scripted_store.expect(("release", LockUnavailable("away")))
    still_renewer.run_due()
    virtual_clock.advance(3599)
    scripted_store.expect(("release", reply_lost()))
    still_renewer.run_due()
    assert set(still_renewer.pending) == {TOKEN}
    virtual_clock.advance(2)
    still_renewer.run_due()
    assert not still_renewer.pending
    assert "could not be released and lapses: the reply is lost" in caplog.text


@pytest.mark.parametrize("reply", [renew_reply(), renew_reply(TOKEN), reply_lost()], ids=repr)
def test_extension_is_best_effort(
    scripted_app: Celery, scripted_store: ScriptedStore, reply: Any
) -> None:
    """The message is requeued in any case: without a reservation it is an ordinary one."""
    scripted_store.expect(("renew", reply))
    Reservation(NAME, TOKEN, scripted_app).extend(60.0, 1.0)
    assert scripted_store.renewals == [(NAME, TOKEN, 60.0)]


def test_extension_of_nothing_asks_nobody(scripted_store: ScriptedStore) -> None:
    NO_RESERVATION.extend(60.0, 1.0)
    assert scripted_store.performed == []
