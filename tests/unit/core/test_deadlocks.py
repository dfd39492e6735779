"""Which waits are a deadlock, who of them gives way, and to which thread or task a hold belongs."""

from typing import Any

import fakeredis
import pytest

from celery_locks import Locks
from celery_locks.core.deadlocks import find_cycle, find_own_cycle
from celery_locks.store.commands.replies import Wait
from celery_locks.types import Holder


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
