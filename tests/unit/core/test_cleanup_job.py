"""The job that deletes lapsed names: which store it uses, when it is due, how long it may take."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest

from celery_locks.core.cleanup_job import CleanupTargets, ServerCleanup
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.locks import PAGE, LockCommands
from celery_locks.store.effects import Effect
from tests.support.scripted_store import ScriptedStore
from tests.support.virtual_clock import VirtualClock

COMMANDS = LockCommands("p")
NOTHING = ("ZRANGEBYSCORE", [])


@pytest.fixture
def targets() -> CleanupTargets:
    return CleanupTargets()


def make_job(store: ScriptedStore, targets: CleanupTargets) -> ServerCleanup:
    return ServerCleanup(store.server.addresses, targets, lambda calls: 1.0)


def test_store_that_is_closed_leaves_the_cleanup_to_another_of_the_same_prefix(
    targets: CleanupTargets,
) -> None:
    """Two ``Locks`` of one server are two stores: closing one stopped the cleanup of both."""
    one, two = ScriptedStore(), ScriptedStore()
    targets.add(one, COMMANDS)
    targets.add(two, COMMANDS)
    targets.discard(two)
    assert targets.of_server(one.server.addresses) == [(one, COMMANDS)]
    targets.discard(one)
    targets.discard(one)
    assert targets.of_server(one.server.addresses) == []


def test_store_that_is_closed_while_it_is_cleaned_up_keeps_no_connection(
    targets: CleanupTargets,
) -> None:
    """Its cleanup would open one again, and nobody else closes it."""

    class ClosedStore(ScriptedStore):
        is_closed = False

        def perform(self, effect: Effect) -> Any:
            targets.discard(self)
            return super().perform(effect)

        def close(self) -> None:
            self.is_closed = True

    store = ClosedStore(NOTHING, NOTHING)
    targets.add(store, COMMANDS)
    make_job(store, targets).run()
    assert store.is_closed


def test_stores_of_one_prefix_are_one_target(targets: CleanupTargets) -> None:
    """The second would find nothing to delete, and costs the renewals two calls."""
    one, two = ScriptedStore(), ScriptedStore()
    for store in (one, two, one):
        targets.add(store, COMMANDS)
    assert len(targets.of_server(one.server.addresses)) == 1
    other_prefix = LockCommands("q")
    targets.add(ScriptedStore(address="another"), other_prefix)
    targets.add(two, other_prefix)
    assert (two, other_prefix) in targets.of_server(one.server.addresses)


def test_store_that_nobody_uses_is_forgotten(targets: CleanupTargets) -> None:
    """A program that makes ``Locks`` again and again and never closes them must not grow."""
    store = ScriptedStore()
    targets.add(store, COMMANDS)
    addresses = store.server.addresses
    del store
    gc.collect()
    assert targets.of_server(addresses) == []
    assert not targets


def test_job_without_a_store_is_never_due(
    scripted_store: ScriptedStore, targets: CleanupTargets, virtual_clock: VirtualClock
) -> None:
    job = make_job(scripted_store, targets)
    assert job.due == math.inf
    targets.add(scripted_store, COMMANDS)
    assert virtual_clock() < job.due < virtual_clock() + 30


def test_server_that_is_away_is_asked_again_at_the_next_look(
    scripted_store: ScriptedStore, targets: CleanupTargets, virtual_clock: VirtualClock
) -> None:
    """Nobody waits for a cleanup, so it raises nothing and retries nothing at once."""
    targets.add(scripted_store, COMMANDS)
    job = make_job(scripted_store, targets)
    scripted_store.expect(("ZRANGEBYSCORE", LockUnavailable("away")), NOTHING)
    job.run()
    assert job.due > virtual_clock() + 5


def test_full_page_is_followed_by_the_next_at_once(
    scripted_store: ScriptedStore, targets: CleanupTargets, virtual_clock: VirtualClock
) -> None:
    """What a crash of many processes left must not take hours."""
    targets.add(scripted_store, COMMANDS)
    job = make_job(scripted_store, targets)
    names = [b"%d" % number for number in range(PAGE)]
    scripted_store.expect(("ZRANGEBYSCORE", names), ("prune", PAGE), NOTHING)
    job.run()
    assert job.due < virtual_clock() + 1
    scripted_store.expect(NOTHING, NOTHING)
    job.run()
    assert job.due > virtual_clock() + 5


def test_slow_call_is_followed_by_no_other(
    scripted_store: ScriptedStore, targets: CleanupTargets, virtual_clock: VirtualClock
) -> None:
    """The renewals of the server wait for the job."""
    targets.add(scripted_store, COMMANDS)

    def answer_slowly(_: object) -> list[bytes]:
        virtual_clock.advance(0.6)
        return []

    scripted_store.expect(("ZRANGEBYSCORE", answer_slowly))
    make_job(scripted_store, targets).run()
