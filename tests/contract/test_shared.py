"""A shared lock has many readers or one writer, and a waiting writer is not starved."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import (
    Conflict,
    Holder,
    LockConflict,
    LockDeadlock,
    LockUsageError,
    admin,
)
from celery_locks.store.commands.replies import GrantBesideOthers
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.contract.test_queue import in_line
from tests.support.waiting import wait_until


def test_readers_share_the_lock_and_keep_a_writer_out(api: LocksApi, other: LocksApi) -> None:
    readers = [api.acquire("a", shared=True) for _ in range(3)]
    assert all(readers)
    assert all(reader.shared for reader in readers)
    conflict = other.try_acquire("a")
    assert isinstance(conflict, Conflict)
    assert conflict.shared
    assert conflict.held_limit == 0
    assert "(shared)" in str(conflict)
    for reader in readers:
        assert other.acquire("a", limit=10) is None
        assert api.release(reader)
    assert other.acquire("a")


def test_writer_keeps_readers_out(api: LocksApi, other: LocksApi) -> None:
    writer = api.acquire("a")
    conflict = other.try_acquire("a", shared=True)
    assert isinstance(conflict, Conflict)
    assert not conflict.shared
    assert api.release(writer)
    assert other.acquire("a", shared=True)


def test_semaphore_and_readers_exclude_each_other(api: LocksApi, other: LocksApi) -> None:
    slot = api.acquire("a", limit=5)
    assert other.acquire("a", shared=True) is None
    assert api.acquire("a", limit=5)
    assert api.release(slot)
    assert other.acquire("a", shared=True) is None


def test_lapsed_reader_does_not_keep_a_writer_out(api: LocksApi, backend: Backend) -> None:
    readers = [api.acquire("a", shared=True) for _ in range(2)]
    for reader in readers:
        assert api.acquire("a") is None
        backend.lapse("a", reader.token)
    assert api.acquire("a")


@pytest.mark.usefixtures("without_repoll")
def test_waiting_writer_is_not_starved_by_readers(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """Readers that come later do not pass a writer that waits; with it they get the lock."""
    reader = api.acquire("a", shared=True, ttl=60)
    writer = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 1)
    assert api.acquire("a", shared=True) is None
    late = [in_thread(other.acquire, "a", shared=True, wait=30, ttl=60) for _ in range(3)]
    in_line(api, "a", 4)
    assert not writer.done()
    api.release(reader)
    lease = writer.result(timeout=20)
    assert [holder.token for holder in api.holders("a")] == [lease.token]
    other.release(lease)
    tokens = {waiter.result(timeout=20).token for waiter in late}
    assert {holder.token for holder in api.holders("a")} == tokens
    info = api.info("a")
    assert info
    assert (info.shared, info.limit, info.other_limits, info.waiters) == (True, 0, (), ())


@pytest.mark.usefixtures("without_repoll")
def test_readers_behind_a_writer_that_gives_up_join_the_others(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    reader = api.acquire("a", shared=True, ttl=60)
    writer = in_thread(other.acquire, "a", wait=2, ttl=60)
    in_line(api, "a", 1)
    late = in_thread(other.acquire, "a", shared=True, wait=30, ttl=60)
    in_line(api, "a", 2)
    assert writer.result(timeout=20) is None
    lease = late.result(timeout=20)
    assert {holder.token for holder in api.holders("a")} == {reader.token, lease.token}


def test_reader_behind_a_dead_writer_joins_the_others(api: LocksApi, backend: Backend) -> None:
    reader = api.acquire("a", shared=True)
    locks = backend.locks()
    ask = locks.commands.acquire(LockSpec("a"), "dead", Holder(), alive=0.05)
    assert isinstance(locks.perform(ask), Conflict)
    wait_until(lambda: api.info("a").waiters == (), 20)  # type: ignore[union-attr]
    late = api.acquire("a", shared=True)
    assert {holder.token for holder in api.holders("a")} == {reader.token, late.token}


def test_writers_and_readers_are_handed_the_lock_in_order(api: LocksApi, backend: Backend) -> None:
    """Several readers in a row get it together; the writer behind them waits for all of them."""
    locks = backend.locks()
    first = api.acquire("a")

    def ask(token: str, shared: bool) -> Any:
        spec = LockSpec("a", shared=shared)
        return locks.perform(locks.commands.acquire(spec, token, Holder(), alive=30))

    for token, shared in (("r1", True), ("r2", True), ("w", False), ("r3", True)):
        assert isinstance(ask(token, shared), Conflict)
    api.release(first)
    assert {holder.token for holder in api.holders("a")} == {"r1", "r2"}
    assert isinstance(ask("r1", True), int)
    assert isinstance(ask("r2", True), int)
    locks.perform(locks.commands.release("a", "r1"))
    assert isinstance(ask("w", False), Conflict)
    locks.perform(locks.commands.release("a", "r2"))
    assert [holder.token for holder in api.holders("a")] == ["w"]
    assert isinstance(ask("r3", True), Conflict)
    locks.perform(locks.commands.release("a", "w"))
    assert [holder.token for holder in api.holders("a")] == ["r3"]


def test_operators_limit_and_pause_apply_to_readers(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    admin.set_limit(locks, "a", 2, reason="slow disk")
    readers = [api.acquire("a", shared=True) for _ in range(2)]
    assert all(readers)
    assert api.acquire("a", shared=True) is None
    api.release(readers[0])
    assert api.acquire("a") is None, "a writer beside a reader"
    assert api.acquire("a", shared=True)
    admin.reset_limit(locks, "a", reason="fast again")
    assert api.acquire("a", shared=True)
    admin.pause(locks, "a", reason="stop")
    conflict = api.try_acquire("a", shared=True)
    assert isinstance(conflict, Conflict)
    assert conflict.pause


def test_limits_of_readers_and_writers_are_no_disagreement(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    """Nothing is logged or counted: a shared hold has no limit."""
    api.acquire("a", shared=True)
    locks = backend.locks()
    call = locks.commands.acquire(LockSpec("a", shared=True), "t", Holder())
    assert not isinstance(locks.perform(call), GrantBesideOthers)
    conflict = other.try_acquire("a", limit=3)
    assert isinstance(conflict, Conflict)
    assert conflict.held_limit == 0
    info = api.info("a")
    assert info
    assert (info.other_limits, info.shared, info.as_dict()["shared"]) == ((), True, True)
    assert all(holder.shared for holder in info.holders)


@pytest.mark.parametrize("options", [{"shared": True, "limit": 1}, {"shared": 1}])
def test_wrong_shared_is_refused(api: LocksApi, options: dict[str, Any]) -> None:
    with pytest.raises(LockUsageError, match="shared"):
        api.acquire("a", **options)


def test_writer_may_read_inside_its_own_hold(api: LocksApi) -> None:
    with (
        api.hold("a", reentrant=True) as outer,
        api.hold("a", shared=True, reentrant=True) as inner,
    ):
        assert inner is outer
    assert api.holders("a") == ()


def test_reader_cannot_write_inside_its_own_hold(api: LocksApi) -> None:
    """Reentrant or not, it would wait for itself."""
    for options in ({}, {"reentrant": True}, {"reentrant": True, "wait": 5}):
        with (
            api.hold("a", shared=True, reentrant=True),
            pytest.raises(LockConflict, match="The caller itself shares it") as raised,
            api.hold("a", **options),
        ):
            pass
        assert raised.value.conflict.is_own
    with (
        api.hold("a", shared=True),
        pytest.raises(LockDeadlock),
        api.hold("a", wait=20),
    ):
        pass
    assert api.holders("a") == ()


def test_writer_that_waits_for_a_blocked_reader_is_a_deadlock(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """One blocked reader is enough, even if another one is free: the writer needs both to end."""
    free = api.acquire("a", shared=True)
    entered, ends = threading.Event(), threading.Event()

    def read_then_wait_for_b() -> None:
        with other.hold("a", shared=True):
            entered.set()
            ends.wait(20)
            with other.hold("b", wait=20):
                pass

    def write() -> str:
        with api.hold("b"):
            ends.set()
            in_line(api, "b", 1)
            try:
                with api.hold("a", wait=20):
                    return "wrote"
            except LockDeadlock as error:
                return str(error)

    reader = in_thread(read_then_wait_for_b)
    assert entered.wait(20)
    writer = in_thread(write)
    assert "would never end" in writer.result(timeout=30)
    reader.result(timeout=30)
    assert api.release(free)


def test_next_attempt_takes_over_a_shared_hold(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()

    def ask(token: str, retries: int, shared: bool = True) -> Any:
        holder = Holder(task_id="job", retries=retries)
        spec = LockSpec("a", shared=shared)
        return locks.perform(locks.commands.acquire(spec, token, holder))

    assert isinstance(ask("t0", 0), int)
    other = api.acquire("a", shared=True)
    assert isinstance(ask("t1", 1), int)
    assert {holder.token for holder in api.holders("a")} == {"t1", other.token}
    # A writer now, after a deployment: it gives up its shared hold and does not pass the other.
    conflict = ask("t2", 2, shared=False)
    assert isinstance(conflict, Conflict)
    assert [holder.token for holder in api.holders("a")] == [other.token]
    api.release(other)
    assert isinstance(ask("t2", 2, shared=False), int)


def test_writer_among_a_stream_of_readers_gets_its_turn(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """There is always a reader: without the order of arrival the writer would never get it."""
    inside: set[int] = set()
    overlaps: list[bool] = []
    stop, together = threading.Event(), threading.Event()

    def read(number: int) -> int:
        runs = 0
        while not stop.is_set():
            with other.hold("a", shared=True, wait=30):
                inside.add(number)
                if len(inside) > 1:
                    together.set()
                stop.wait(0.02)
                runs += 1
                inside.discard(number)
        return runs

    readers = [in_thread(read, number) for number in range(4)]
    try:
        assert together.wait(20)
        for _ in range(3):
            with api.hold("a", wait=20):
                overlaps.append(bool(inside))
    finally:
        stop.set()
    assert all(reader.result(timeout=30) for reader in readers)
    assert overlaps == [False] * 3
