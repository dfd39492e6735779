"""Which waits are a deadlock, who of them gives way, and to which thread or task a hold belongs."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import fakeredis
import pytest

from celery_locks import LockDeadlock, Locks, LockUnavailable, admin
from celery_locks.core import waiting
from celery_locks.core.deadlocks import find_cycle, find_own_cycle
from celery_locks.core.owners import blocked_owners, current_holder, current_owner, set_task_lookup
from celery_locks.store.commands.replies import Wait
from celery_locks.types import Holder, LockSpec
from tests.support.waiting import wait_until


def wait(owner: str, name: str, *holders: str, ticket: int = 1, complete: bool = True) -> Wait:
    """Each holder is its owner's name, and has a token of that name for this lock."""
    held = tuple(Holder(token=f"{name} of {who}", owner=who) for who in holders)
    return Wait(owner, name, f"{owner} waits", ticket, complete, held)


def cycle(*waits: Wait, own: str = "me") -> list[str]:
    by_owner = {one.owner: one for one in waits}
    found = find_cycle(by_owner[own], by_owner, lambda holder: holder.owner == own)
    return [step.name for step in found]


@pytest.mark.parametrize(
    ("waits", "names"),
    [
        ([wait("me", "a", "me")], ["a"]),
        ([wait("me", "b", "you"), wait("you", "a", "me")], ["b", "a"]),
        ([wait("me", "b", "you"), wait("you", "c", "she"), wait("she", "a", "me")], list("bca")),
        ([wait("me", "b", "you")], []),
        ([wait("me", "b", "you"), wait("you", "c", "she")], []),
        ([wait("me", "b", "")], []),
        ([wait("me", "s", "you", "she"), wait("you", "a", "me")], []),
        (
            [wait("me", "s", "you", "she"), wait("you", "a", "me"), wait("she", "a", "me")],
            list("sa"),
        ),
        ([wait("me", "s", "you", "me"), wait("you", "a", "me")], ["s"]),
        ([wait("me", "s", "me", "you")], []),
        ([wait("me", "s", "you", complete=False), wait("you", "a", "me")], []),
        ([wait("me", "b", "you"), wait("you", "c", "she"), wait("she", "b", "you")], []),
    ],
    ids=[
        "own lock",
        "two",
        "three",
        "the holder runs",
        "a chain",
        "a holder without an owner",
        "one slot can come free",
        "all slots wait for me",
        "own slot and one that waits",
        "own slot and one that runs",
        "more holders than were read",
        "others deadlocked among themselves",
    ],
)
def test_cycle_is_found_where_nobody_can_go_on(waits: list[Wait], names: list[str]) -> None:
    """One wrong yes breaks a task that would have run; a wrong no lets it wait as before."""
    assert cycle(*waits) == names


@pytest.mark.parametrize("token", ["-kept", "qmessage"])
def test_slot_without_a_run_ends_no_wait(token: str) -> None:
    """What at_least keeps comes free by itself, and a message waits for nothing of ours."""
    kept = Holder(token=token, owner="you")
    waits = {"me": wait("me", "b", "you")._replace(holders=(kept,)), "you": wait("you", "a", "me")}
    assert find_cycle(waits["me"], waits, lambda holder: holder.owner == "me") == ()


def test_last_one_to_wait_gives_way() -> None:
    """All of them look; if two gave way, work would be lost for nothing."""
    waits = {"me": wait("me", "b", "you", ticket=7), "you": wait("you", "a", "me", ticket=6)}
    assert find_own_cycle("me waits", waits, frozenset({"a of me"}))
    assert not find_own_cycle("you waits", waits, frozenset({"b of you"}))
    assert not find_own_cycle("me waits", waits, frozenset())
    assert not find_own_cycle("gone", waits, frozenset({"a of me"}))


@pytest.fixture
def locks() -> Any:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


def in_thread(function: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def test_owner_is_of_a_thread() -> None:
    """Another thread may release what this one waits for."""
    assert current_owner() is current_owner()
    assert in_thread(current_owner) is not current_owner()


def test_owner_is_of_an_asyncio_task() -> None:
    async def main() -> None:
        async def child() -> Any:
            return current_owner()

        children = await asyncio.gather(child(), child())
        assert len({owner.id for owner in (current_owner(), *children, outside)}) == 4
        assert (await child()) is current_owner()

    outside = current_owner()
    asyncio.run(main())


def test_block_that_another_thread_ends_is_no_deadlock(locks: Locks) -> None:
    """A web framework enters it in one job of a thread pool and leaves it in another."""
    hold = locks.hold("a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy_context().run, hold.__enter__).result()
        waiting = pool.submit(copy_context().run, lambda: locks.acquire("a", wait=30))
        wait_until(lambda: (info := locks.info("a")) and info.waiters, what="the next job to wait")
        in_thread(lambda: hold.__exit__(None, None, None))
        assert waiting.result()


def test_event_loop_blocks_the_task_that_runs_it(locks: Locks) -> None:
    """The body of a Celery task ends when its loop does; a server's loop serves others extras."""

    async def blocked() -> list[Any]:
        return blocked_owners()

    with locks.hold("a"):
        assert asyncio.run(blocked()) == []
        set_task_lookup(lambda: Holder(task_id="t", nested=True))
        try:
            assert asyncio.run(blocked()) == [current_owner()]
        finally:
            from celery_locks.integration.current_execution import current_task_holder

            set_task_lookup(current_task_holder)


def test_lease_leaves_its_owner_when_it_is_released(locks: Locks) -> None:
    with locks.hold("a") as lease:
        assert current_owner().leases == {lease.token: lease}
    assert current_owner().leases == {}
    assert locks.acquire("b")
    assert current_owner().leases == {}


def test_release_that_is_left_to_the_keeper_changes_the_owners_id(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the server hears of it, the store shows a hold that nobody has."""
    before = current_owner().id
    with locks.hold("a"):
        perform = locks._store.perform

        def fail(effect: Any) -> Any:
            raise LockUnavailable("as planned")

        monkeypatch.setattr(locks._store, "perform", fail)
    monkeypatch.setattr(locks._store, "perform", perform)
    assert current_owner().id != before
    assert current_holder(current_owner()).owner == current_owner().id
    assert current_owner().leases == {}


def test_wait_goes_on_where_nobody_can_say(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is away must not end a wait on another one."""
    asked: list[str] = []

    def fail(root: str, owners: Any) -> Any:
        asked.append(root)
        raise LockUnavailable("as planned")

    monkeypatch.setattr(locks.commands, "waits", fail)
    with locks.hold("a"):
        assert locks.acquire("a", wait=0.1) is None
    assert asked


def test_two_readings_that_differ_are_no_deadlock(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are read one after the other: what is not there twice may never have been."""
    seen = iter(range(1_000_000))
    monkeypatch.setattr(waiting, "edges", lambda waits: next(seen))
    with locks.hold("a"):
        assert locks.acquire("a", wait=0.1) is None
    monkeypatch.undo()
    with locks.hold("a"), pytest.raises(LockDeadlock):
        locks.acquire("a", wait=0.1)


def put(locks: Locks, name: str, token: str, owner: str, *, waits: bool = False) -> None:
    holder = Holder(host="h", pid=7, owner=owner)
    how: dict[str, Any] = {"alive": 60, "owners": [owner]} if waits else {}
    locks.perform(locks.commands.acquire(LockSpec(name, 60.0), token, holder, **how))


def describe_entry(locks: Locks, name: str) -> str:
    return "\n".join(admin.why(locks, name).sentences)


def test_why_tells_of_a_deadlock(locks: Locks) -> None:
    """As long as nobody has given way: a reader sees the ring, whichever lock he asks about."""
    put(locks, "a", "t1", "me")
    put(locks, "b", "t2", "you")
    assert "waits for lock" not in describe_entry(locks, "a")
    put(locks, "b", "w1", "me", waits=True)
    assert "Its holder, a process on h, pid 7, waits for lock 'b', held by" in describe_entry(
        locks, "a"
    )
    assert "Deadlock" not in describe_entry(locks, "a")
    put(locks, "a", "w2", "you", waits=True)
    for name, other in ("ab", "ba"):
        assert (
            f"Deadlock: a process on h, pid 7 holds lock {name!r} and waits for lock {other!r}; "
            in (describe_entry(locks, name))
        )


def test_why_tells_of_one_who_waits_for_himself(locks: Locks) -> None:
    put(locks, "a", "t1", "me")
    put(locks, "a", "w1", "me", waits=True)
    assert "waits for lock 'a', which it holds itself" in describe_entry(locks, "a")
