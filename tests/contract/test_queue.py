"""Waiting: first come first served, woken by the release, and no trace of those that gave up."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import Conflict, Holder, LockInfo, Locks, admin
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.support.waiting import wait_until


def waiters(api: LocksApi, name: str) -> int:
    info: LockInfo | None = api.info(name)
    return len(info.waiters) if info else 0


def in_line(api: LocksApi, name: str, count: int) -> None:
    wait_until(lambda: waiters(api, name) == count, what=f"{count} waiters on {name}")


@pytest.mark.usefixtures("without_repoll")
def test_wait_is_woken_by_the_release(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    lease = api.acquire("a", ttl=60)
    waiter = in_thread(other.acquire, "a", wait=60, ttl=60)
    in_line(api, "a", 1)
    released_at = time.monotonic()
    api.release(lease)
    second = waiter.result(timeout=20)
    assert second.fence > lease.fence
    assert time.monotonic() - released_at < 10
    # Its whole ttl, not only the claim window.
    wait_until(lambda: second.remaining > 30, 10, what="the renewer to renew it at once")


@pytest.mark.usefixtures("without_repoll")
def test_wait_is_woken_a_second_time_on_the_same_connection(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """The second wait is subscribed already and needs one round trip less."""
    for _ in range(3):
        lease = api.acquire("a", ttl=60)
        waiter = in_thread(other.acquire, "a", wait=60, ttl=60)
        in_line(api, "a", 1)
        api.release(lease)
        other.release(waiter.result(timeout=20))


@pytest.mark.usefixtures("without_repoll")
def test_wait_is_first_come_first_served(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    order: list[int] = []

    def visit(who: int) -> int:
        chosen = (api, other)[who % 2]
        with chosen.hold("a", wait=60, ttl=60) as lease:
            order.append(who)
            return int(lease.fence)

    lease = api.acquire("a", ttl=60)
    visits = []
    for who in range(8):
        visits.append(in_thread(visit, who))
        in_line(api, "a", who + 1)
    api.release(lease)
    fences = [visit.result(timeout=30) for visit in visits]
    assert order == list(range(8))
    assert fences == sorted(fences)


def test_wait_of_zero_is_no_wait(api: LocksApi, other: LocksApi, backend: Backend) -> None:
    api.acquire("a")
    before = backend.content()
    assert other.acquire("a", wait=0) is None
    assert backend.content() == before


def test_wait_that_times_out_leaves_the_line(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    api.acquire("a", ttl=60)
    before = backend.content()
    for _ in range(2):
        began = time.monotonic()
        conflict = other.try_acquire("a", wait=0.3, ttl=60)
        assert isinstance(conflict, Conflict)
        assert conflict.position == 1
        assert 0.3 <= time.monotonic() - began < 20
        after = backend.content()
        assert {key: after[key] for key in before if not key.endswith(b"index")} == {
            key: before[key] for key in before if not key.endswith(b"index")
        }
        assert after.keys() == before.keys()


def test_waiter_that_gives_up_behind_another_leaves_the_queue(locks: Locks) -> None:
    """Else those behind it are told a position that is too high, as long as the first waits."""

    def wait(token: str) -> Conflict:
        call = locks.commands.acquire(LockSpec("a", 60), token, Holder(), alive=60)
        conflict = locks.perform(call)
        assert isinstance(conflict, Conflict)
        return conflict

    locks.acquire("a", ttl=60)
    assert [wait("first").position, wait("second").position] == [1, 2]
    assert locks.perform(locks.commands.release("a", "second")) == 0
    assert wait("third").position == 2


def test_slots_that_come_free_together_are_handed_over_together(
    locks: Locks, backend: Backend
) -> None:
    """Else the second waiter waits for a release that nobody sends."""

    def acquire(token: str, alive: float = 0) -> Any:
        return locks.perform(
            locks.commands.acquire(LockSpec("a", 60, 2), token, Holder(), alive=alive)
        )

    for token in ("x", "y"):
        assert isinstance(acquire(token), int)
    for token in ("first", "second"):
        assert isinstance(acquire(token, alive=60), Conflict)
    for token in ("x", "y"):
        backend.lapse("a", token)
    locks.perform(locks.commands.release("a", "nobody"))
    assert {it.token for it in locks.holders("a")} == {"first", "second"}


def test_waiter_that_takes_a_lapsed_lock_itself_leaves_the_queue(
    locks: Locks, backend: Backend
) -> None:
    """It holds the lock; as a waiter too it would be in the way of those behind it."""
    spec = LockSpec("a", 60)
    locks.perform(locks.commands.acquire(spec, "dead", Holder()))
    wait = locks.commands.acquire(spec, "waiter", Holder(), alive=60)
    assert isinstance(locks.perform(wait), Conflict)
    backend.lapse("a", "dead")
    assert isinstance(locks.perform(wait), int)
    assert backend.raw.zcard(backend.key("q:", "a")) == 0


def test_waiter_that_claims_its_hand_over_gets_the_whole_ttl(
    locks: Locks, backend: Backend
) -> None:
    """The hand-over is for a moment only; a claim that does not extend it loses the lock soon."""
    spec = LockSpec("a", 60)
    locks.perform(locks.commands.acquire(spec, "first", Holder()))
    wait = locks.commands.acquire(spec, "waiter", Holder(), alive=60)
    assert isinstance(locks.perform(wait), Conflict)
    locks.perform(locks.commands.release("a", "first"))
    key = backend.key("h:", "a")
    assert backend.raw.zscore(key, "waiter") < (time.time() + 30) * 1000
    assert isinstance(locks.perform(wait), int)
    assert backend.raw.zscore(key, "waiter") > (time.time() + 30) * 1000


def test_wait_gets_a_lock_whose_holder_vanished(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    """Nobody releases it and nobody wakes the waiter: it tries again when the lease lapses."""
    lease = api.acquire("a", ttl=60)
    backend.lapse("a", lease.token, ago=-0.5)
    began = time.monotonic()
    assert other.acquire("a", wait=50)
    assert time.monotonic() - began < 20


@pytest.mark.usefixtures("without_repoll")
def test_wait_on_a_semaphore_fills_each_free_slot(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    leases = [api.acquire("s", limit=2, ttl=60) for _ in range(2)]
    waiting = []
    for who in range(3):
        waiting.append(in_thread(other.acquire, "s", limit=2, wait=30, ttl=60))
        in_line(api, "s", who + 1)
    for lease in leases:
        api.release(lease)
    first, second = (waiting[who].result(timeout=20) for who in (0, 1))
    info = api.info("s")
    assert info
    assert {h.token for h in info.holders} == {first.token, second.token}
    assert len(info.waiters) == 1
    other.release(second)
    other.release(waiting[2].result(timeout=20))


def test_waiter_who_died_does_not_block_the_line(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """A waiter whose process does not listen, or has not polled for too long, is skipped."""
    locks = backend.locks()
    lease = api.acquire("a", ttl=60)
    dead = locks.commands.acquire(
        LockSpec("a"), "dead", Holder(), alive=60, channel=f"{backend.prefix}:w:nobody"
    )
    gone = locks.commands.acquire(LockSpec("a"), "gone", Holder(), alive=0.001)
    assert locks.perform(dead).position == 1
    assert locks.perform(gone).position == 2
    wait_until(lambda: waiters(api, "a") == 1, what="the second ticket to be out of date")
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 2)
    api.release(lease)
    other.release(waiter.result(timeout=20))
    assert backend.keys() == {"fence"}


def test_waiter_who_does_not_confirm_loses_its_turn(
    api: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """It was granted the lock and died: the next waiter gets it after the claim window."""
    locks = backend.locks()
    lease = api.acquire("a", ttl=60)
    silent = locks.commands.acquire(LockSpec("a"), "silent", Holder(), alive=60)
    assert locks.perform(silent).position == 1
    waiter = in_thread(api.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 2)
    api.release(lease)
    assert waiter.result(timeout=20).fence > lease.fence


def test_newcomer_does_not_overtake_the_line(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    """The lock lapsed while others wait: a newcomer is queued behind them."""
    locks = backend.locks()
    lease = api.acquire("a", ttl=60)
    queued = locks.commands.acquire(LockSpec("a"), "first", Holder(), alive=60)
    assert isinstance(locks.perform(queued), Conflict)
    backend.lapse("a", lease.token)
    assert other.acquire("a") is None
    assert [h.token for h in api.holders("a")] == ["first"]
    assert locks.perform(queued) == api.holders("a")[0].fence


@pytest.mark.parametrize(("limit", "gets_it"), [(1, False), (3, True)])
def test_newcomer_with_another_limit_comes_after_the_waiter(
    api: LocksApi, other: LocksApi, backend: Backend, limit: int, gets_it: bool
) -> None:
    """Every holder lapsed: the waiter gets in, then the newcomer if its own limit allows it."""
    locks = backend.locks()
    for _ in range(2):
        assert api.acquire("s", limit=2)
    queued = locks.commands.acquire(LockSpec("s", limit=2), "first", Holder(), alive=60)
    assert isinstance(locks.perform(queued), Conflict)
    for holder in api.holders("s"):
        backend.lapse("s", holder.token)
    assert bool(other.acquire("s", limit=limit)) is gets_it
    info = api.info("s")
    assert info
    assert (info.holders[0].token, len(info.holders), info.waiters) == ("first", 1 + gets_it, ())


def test_nobody_passes_a_waiter_with_a_lower_limit(api: LocksApi, backend: Backend) -> None:
    """A waiter with limit 1 needs all holders to leave; with limit 3 others would starve it."""
    locks = backend.locks()
    first, second = api.acquire("s", limit=3), api.acquire("s", limit=3)
    queued = locks.commands.acquire(LockSpec("s", limit=1), "first", Holder(), alive=60)
    assert isinstance(locks.perform(queued), Conflict)
    assert api.acquire("s", limit=3) is None
    api.release(first)
    assert api.acquire("s", limit=3) is None
    api.release(second)
    assert [holder.token for holder in api.holders("s")] == ["first"]


def test_waiters_are_seen_in_their_order(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    api.acquire("a", ttl=60)
    for who in ("one", "two", "three"):
        holder = Holder(task_id=who, task="t")
        locks.perform(locks.commands.acquire(LockSpec("a", 7), who, holder, alive=60))
    info = api.info("a")
    assert info
    assert [(w.token, w.task_id, w.ttl) for w in info.waiters] == [
        (who, who, 7.0) for who in ("one", "two", "three")
    ]
    assert all(abs(w.acquired_at - info.as_of) < 10 for w in info.waiters), "when they came"
    assert [listed.waiters for listed in admin.list_locks(locks)] == [info.waiters]


@pytest.mark.usefixtures("without_repoll")
def test_crowd_never_exceeds_the_limit(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """Sixteen contenders on two APIs; the test counts the holders, not the store."""
    inside: list[int] = []
    most: list[int] = []

    def visit(who: int) -> None:
        with (api, other)[who % 2].hold("s", limit=3, wait=60, ttl=60):
            inside.append(who)
            most.append(len(inside))
            time.sleep(0.002)
            inside.remove(who)

    for contender in [in_thread(visit, who) for who in range(16)]:
        contender.result(timeout=60)
    assert len(most) == 16
    assert max(most) <= 3
    assert backend.keys() == {"fence"}


async def test_cancelled_waiter_leaves_the_queue(backend: Backend) -> None:
    """A task is cancelled at any await; a pending release removes what may be queued."""
    locks = backend.async_locks()
    other = backend.async_locks()
    try:
        lease = await locks.acquire("a", ttl=60)
        assert lease
        waiter = asyncio.create_task(other.acquire("a", wait=60, ttl=60))
        for _ in range(500):
            info = await locks.info("a")
            if info and info.waiters:
                break
            await asyncio.sleep(0.01)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        looker = backend.locks()

        def left() -> bool:
            info = looker.info("a")
            return info is not None and not info.waiters

        await asyncio.to_thread(wait_until, left)
        await lease.release()
        assert backend.keys() == {"fence"}
    finally:
        await locks.close()
        await other.close()


def test_first_in_line_takes_a_lapsed_lock_when_it_asks(api: LocksApi, backend: Backend) -> None:
    """At once and for its whole ttl, not for the claim window of others."""
    locks = backend.locks()
    lease = api.acquire("a", ttl=60)
    asks = locks.commands.acquire(LockSpec("a", 40), "first", Holder(), alive=60)
    assert isinstance(locks.perform(asks), Conflict)
    backend.lapse("a", lease.token)
    assert locks.perform(asks) > lease.fence
    info = api.info("a")
    assert info
    assert [h.token for h in info.holders] == ["first"]
    assert info.remaining > 30
    assert info.waiters == ()
