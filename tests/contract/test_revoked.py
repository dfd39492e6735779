"""An operator takes a lock: its holder learns by whom and why, and cannot write any more."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import Holder, LeaseLost, LockEvent, LockRevoked, State, admin, subscribe
from celery_locks.store.commands.locks import reservation_token
from celery_locks.store.commands.replies import Renewal
from celery_locks.types import LockSpec, Revocation
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.support.waiting import wait_until

BY, WHY = "ann: the ✓\none", "it hung: 12 € a\nminute"


def test_renewal_says_by_whom_and_why(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    admin.force_release(backend.locks(), "a", by=BY, reason=WHY)
    for ask in (lambda: api.renew(lease), lease.check):
        with pytest.raises(LockRevoked) as caught:
            ask()
        assert (caught.value.name, caught.value.by, caught.value.why) == ("a", BY, WHY)
    assert lease.state is State.LOST
    assert "revoked by ann" in lease.reason


def test_renewer_reports_it_and_the_event_says_so(api: LocksApi, backend: Backend) -> None:
    describe_entry: list[Any] = []
    heard: list[LockEvent] = []
    ends = subscribe(heard.append)
    lease = api.acquire("a", ttl=2, on_lost=lambda _, error: describe_entry.append(error))
    admin.force_release(backend.locks(), "a", by="ann", reason="stuck")
    wait_until(lambda: describe_entry, 20, what="on_lost")
    wait_until(lambda: [e for e in heard if e.kind == "lost"], 20, what="the event")
    ends()
    assert [(type(e), e.by, e.why) for e in describe_entry] == [(LockRevoked, "ann", "stuck")]
    [event] = [e for e in heard if e.kind == "lost" and e.token == lease.token]
    assert {"why": "revoked by ann: stuck", "revoked": True}.items() <= event.detail.items()


def test_hold_raises_it_at_its_end(api: LocksApi, backend: Backend) -> None:
    with pytest.raises(LockRevoked, match="stuck"):
        with api.hold("a", ttl=2) as lease:
            admin.force_release(backend.locks(), "a", reason="stuck")
            wait_until(lambda: lease.state is State.LOST, 20, what="the loss")


def test_only_those_it_was_taken_from_are_told(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    """A neighbour in the batch whose lock was wiped or taken over has another reason."""
    locks = backend.locks(shards=1)
    for name in ("taken", "gone", "kept"):
        locks.perform(locks.commands.acquire(LockSpec(name), name, Holder()))
    admin.force_release(locks, "taken", by="ann", reason="stuck")
    locks.perform(locks.commands.release("gone", "gone"))
    admin.stop(locks, "kept")
    batch = [Renewal(name, name, 30) for name in ("gone", "kept", "taken")]
    reply = locks.perform(locks.commands.renew(batch, 3))
    assert reply.lost == {"gone", "taken"}
    assert reply.revoked == {"taken": Revocation("ann", "stuck")}
    assert reply.stops == {"kept"}


def test_note_outlives_the_next_renewals_and_no_more(backend: Backend) -> None:
    """Two ttl, and a minute at least: a holder that was away still gets the reason."""
    locks = backend.locks(shards=1)
    for name, ttl in (("short", 1.0), ("long", 600.0)):
        locks.perform(locks.commands.acquire(LockSpec(name, ttl), name, Holder()))
        admin.force_release(locks, name)
    key, now = backend.key("notices"), time.time() * 1000
    left = {name: int(note.split()[0]) - now for name, note in backend.raw.hgetall(key).items()}
    assert 50_000 < left[b"short"] <= 60_000
    assert 1_190_000 < left[b"long"] <= 1_200_000
    assert 1_190_000 < backend.raw.pttl(key) <= 1_200_000


def test_note_is_not_read_after_its_time(backend: Backend) -> None:
    locks = backend.locks(shards=1)
    for name in ("a", "b"):
        locks.perform(locks.commands.acquire(LockSpec(name), name, Holder()))
        admin.force_release(locks, name)
    key = backend.key("notices")
    text = backend.raw.hget(key, "a").split(b" ", 1)[1]
    backend.raw.hset(key, "a", b"%d %s" % (time.time() * 1000 - 1, text))
    reply = locks.perform(locks.commands.renew([Renewal("a", "a", 9), Renewal("b", "b", 9)], 3))
    assert reply.lost == {"a", "b"}
    assert set(reply.revoked) == {"b"}
    assert locks.perform(locks.commands.locate(locks.commands.root(""), ["a"], 3)).revoked == set()


def test_notes_do_not_pile_up(backend: Backend) -> None:
    """Each release that leaves a note deletes some that are over."""
    locks = backend.locks(shards=1)
    key, over = backend.key("notices"), b"%d 3 ann" % (time.time() * 1000 - 1)
    backend.raw.hset(key, mapping={f"old{number}": over for number in range(40)})
    for number in range(40):
        locks.perform(locks.commands.acquire(LockSpec("a"), f"t{number}", Holder()))
        admin.force_release(locks, "a")
    assert backend.raw.hlen(key) < 60


def test_a_message_in_the_queue_gets_no_note(backend: Backend) -> None:
    locks = backend.locks()
    holder = Holder(task_id="j", retries=-1)
    locks.perform(locks.commands.acquire(LockSpec("a"), reservation_token("j"), holder))
    assert admin.force_release(locks, "a")
    assert backend.keys() == {"fence", "log"}


def test_foreign_note_is_no_reason(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    backend.raw.delete(backend.key("h:", "a"))
    backend.raw.lpush(backend.key("notices", "a"), "theirs")
    with pytest.raises(LeaseLost) as caught:
        api.renew(lease)
    assert type(caught.value) is LeaseLost


def test_locate_tells_that_it_was_taken(backend: Backend) -> None:
    """The worker's main process, which does not know the name yet, finds it by the token."""
    locks = backend.locks(shards=1)
    for name in ("a", "b"):
        locks.perform(locks.commands.acquire(LockSpec(name), name, Holder()))
    admin.force_release(locks, "a")
    found = locks.perform(locks.commands.locate(locks.commands.root(""), ["a", "b", "c"], 3))
    assert set(found) == {"b"}
    assert found.revoked == {"a"}


def test_later_grant_has_a_higher_fence_so_the_old_holders_write_is_refused(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """For the next waiter and for a newcomer; the resource refuses a lower fence."""
    old = api.acquire("a", ttl=60)
    waiting = in_thread(other.acquire, "a", ttl=60, wait=30)
    wait_until(lambda: (i := api.info("a")) and i.waiters, 20, what="the one in line")
    admin.force_release(backend.locks(), "a")
    following = waiting.result(timeout=30)
    other.release(following)
    newcomer = api.acquire("a")
    assert old.fence < following.fence < newcomer.fence
    seen = 0

    def write(fence: int) -> bool:
        nonlocal seen
        seen = max(seen, fence)
        return fence == seen

    assert [write(lease.fence) for lease in (old, following, old, newcomer, following)] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_check_says_it_in_every_thread(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    admin.force_release(backend.locks(), "a", by="ann")
    with pytest.raises(LockRevoked):
        api.renew(lease)
    errors: list[Any] = []

    def look() -> None:
        try:
            lease.check()
        except LeaseLost as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [LockRevoked] * 4
    assert len(set(map(id, errors))) == 4
