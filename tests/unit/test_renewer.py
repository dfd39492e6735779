"""The renewer, step by step: a scripted store, a clock the test moves, rarely its thread."""

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.clock import now as real_now
from celery_locks.core import background as background_module
from celery_locks.core import lease as lease_module
from celery_locks.core import pending_releases as releases_module
from celery_locks.core import renewal_job as renewals_module
from celery_locks.core import renewer as module
from celery_locks.core.background import BackgroundThread
from celery_locks.core.lease import Lease, State
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewal_job import ServerRenewals
from celery_locks.core.renewer import Renewer
from celery_locks.errors import LeaseLost, LockUnavailable
from celery_locks.store.calls import Call
from celery_locks.store.commands.locks import RENEW_BATCH, LockCommands
from celery_locks.store.commands.replies import Lost
from celery_locks.store.commands.requests import Mark
from celery_locks.types import LockSpec
from tests.support.waiting import wait_until


class Clock:
    """A minute ahead of the real one, from which a pending release is due."""

    def __init__(self) -> None:
        self.time = real_now() + 60

    def now(self) -> float:
        return self.time


class Store:
    """Answers renewals with `lost` and releases with True, or raises what it is told to."""

    server = SimpleNamespace(addresses=(("localhost", 6379),))

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lost: set[str] = set()
        self.trouble: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def perform(self, call: Any) -> Any:
        self.calls.append(call)
        self.meanwhile()
        if self.trouble:
            raise self.trouble
        return Lost(self.lost) if call.script.name == "renew" else True

    def unsubscribe(self, token: str) -> None: ...
    def close(self) -> None: ...

    def commands(self) -> list[str]:
        return [call.script.name for call in self.calls]


class StillThread(BackgroundThread):
    def _wake(self) -> None: ...


class Still(Renewer):
    """Without its threads."""

    def _make_thread(self, threads: Any, server: Any, jobs: Any) -> BackgroundThread:
        return threads.setdefault(server, StillThread(jobs, self.reports))

    def turn(self) -> None:
        for thread in self._threads.values():
            thread._run_jobs()

    def first_due(self) -> float:
        return min(thread._first_due() for thread in self._threads.values())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for one in (module, renewals_module, releases_module, background_module, lease_module):
        monkeypatch.setattr(one, "now", made.now)
    return made


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def renewer(clock: Clock) -> Any:
    return Still()


def lease(clock: Clock, name: str = "a", ttl: float = 9, on_lost: Any = None) -> Lease:
    return Lease(LockSpec(name, ttl), f"t-{name}", 1, clock.now(), on_lost)


def test_lease_is_renewed_after_a_third_of_its_ttl(
    renewer: Still, store: Store, clock: Clock
) -> None:
    kept = lease(clock)
    renewer.add(kept, store, LockCommands("p"))
    clock.time += 2.9
    renewer.turn()
    assert store.calls == []
    clock.time += 0.2
    renewer.turn()
    assert store.commands() == ["renew"]
    assert store.calls[0].args == ("a", "t-a", 9000)
    assert kept.renewals == 1
    renewer.turn()
    assert len(store.calls) == 1


def test_everything_due_goes_in_one_call_per_shard(
    renewer: Still, store: Store, clock: Clock
) -> None:
    commands = LockCommands("p", 2)
    names = [f"n{i}" for i in range(40)]
    for name in names:
        renewer.add(lease(clock, name), store, commands)
    clock.time += 3
    renewer.turn()
    assert len(store.calls) == 2
    assert {call.root for call in store.calls} == set(commands.roots)
    for call in store.calls:
        assert all(commands.root(str(name)) == call.root for name in call.args[::3])
    assert sorted(str(n) for call in store.calls for n in call.args[::3]) == sorted(names)


def test_stores_are_not_mixed(renewer: Still, store: Store, clock: Clock) -> None:
    other = Store()
    renewer.add(lease(clock, "a"), store, LockCommands("p"))
    renewer.add(lease(clock, "b"), other, LockCommands("p"))
    clock.time += 3
    renewer.turn()
    assert [len(store.calls), len(other.calls)] == [1, 1]


def test_batches_are_bounded(renewer: Still, store: Store, clock: Clock) -> None:
    """One call for all of a big worker would block the server for the others."""
    for i in range(RENEW_BATCH + 1):
        renewer.add(lease(clock, f"n{i}"), store, LockCommands("p"))
    clock.time += 3
    renewer.turn()
    assert [len(call.args) // 3 for call in store.calls] == [RENEW_BATCH, 1]


def test_what_is_nearly_due_goes_along(renewer: Still, store: Store, clock: Clock) -> None:
    renewer.add(lease(clock, "a"), store, LockCommands("p"))
    clock.time += 0.5
    renewer.add(lease(clock, "b"), store, LockCommands("p"))
    clock.time += 2.5
    renewer.turn()
    assert [call.args[::3] for call in store.calls] == [("a", "b")]


def test_failed_renewal_is_tried_again_inside_the_lease(
    renewer: Still, store: Store, clock: Clock
) -> None:
    describe_entry: list[Any] = []
    kept = lease(clock, on_lost=lambda *a: describe_entry.append(a))
    renewer.add(kept, store, LockCommands("p"))
    store.trouble = LockUnavailable("down")
    clock.time += 3
    renewer.turn()
    assert kept.state is State.SUSPENDED
    assert clock.time < renewer.first_due() <= clock.time + 9 / 20
    clock.time = renewer.first_due()
    store.trouble = None
    renewer.turn()
    assert (kept.state, describe_entry) == (State.HELD, [])


def test_lease_is_lost_at_its_deadline_and_told_once(
    renewer: Still, store: Store, clock: Clock
) -> None:
    describe_entry: list[LeaseLost] = []
    kept = lease(clock, on_lost=lambda _, error: describe_entry.append(error))
    renewer.add(kept, store, LockCommands("p"))
    store.trouble = LockUnavailable("down")
    clock.time += 3
    for _ in range(100):
        renewer.turn()
        if not renewer.tokens:
            break
        clock.time = renewer.first_due()
    assert renewer.tokens == frozenset()
    assert [error.reason for error in describe_entry] == ["it could not be renewed in time: down"]
    assert kept.deadline <= clock.time < kept.deadline + 0.5
    calls = len(store.calls)
    clock.time += 100
    renewer.turn()
    assert len(store.calls) == calls


def test_calls_end_before_the_deadline(renewer: Still, store: Store, clock: Clock) -> None:
    kept = lease(clock)
    renewer.add(kept, store, LockCommands("p"))
    clock.time += 9 - 0.5
    renewer.turn()
    assert store.calls[0].budget <= kept._sent_at + 9 - clock.time


def test_lost_one_is_told_and_the_others_go_on(renewer: Still, store: Store, clock: Clock) -> None:
    one, two = lease(clock, "one"), lease(clock, "two")
    for kept in (one, two):
        renewer.add(kept, store, LockCommands("p"))
    store.lost = {"t-one"}
    clock.time += 3
    renewer.turn()
    assert (one.state, two.state) == (State.LOST, State.HELD)
    assert renewer.tokens == {"t-two"}


def test_release_during_a_renewal_is_no_loss(renewer: Still, store: Store, clock: Clock) -> None:
    describe_entry: list[Any] = []
    kept = lease(clock, on_lost=lambda *a: describe_entry.append(a))
    renewer.add(kept, store, LockCommands("p"))

    def released_meanwhile() -> None:
        renewer.discard(kept.token)
        kept.begin_release()
        store.lost = {kept.token}

    store.meanwhile = released_meanwhile
    clock.time += 3
    renewer.turn()
    assert (kept.state, describe_entry, renewer.tokens) == (State.RELEASED, [], frozenset())


def test_lease_that_its_holder_knows_is_lost_is_not_renewed(
    renewer: Still, store: Store, clock: Clock
) -> None:
    """Renewed on, the lock would stay taken for the life of the process with nobody inside."""
    kept = lease(clock)
    renewer.add(kept, store, LockCommands("p"))
    clock.time += 10
    with pytest.raises(LeaseLost):
        kept.check()
    renewer.turn()
    assert store.calls == []
    assert renewer.tokens == frozenset()


def test_ttl_changed_during_a_renewal_is_renewed_again_at_once(
    renewer: Still, store: Store, clock: Clock
) -> None:
    kept = lease(clock, ttl=3)
    renewer.add(kept, store, LockCommands("p"))
    store.meanwhile = lambda: kept.change_ttl(30, clock.time) if kept.ttl == 3 else None
    clock.time += 1
    renewer.turn()
    assert renewer.first_due() <= clock.time
    renewer.turn()
    assert store.calls[-1].args[2] == 30_000


def test_unforeseen_error_is_logged_and_retried(
    renewer: Still, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    kept = lease(clock)
    renewer.add(kept, store, LockCommands("p"))
    store.trouble = KeyError("a bug of ours")
    clock.time += 3
    with caplog.at_level(logging.ERROR, "celery_locks"):
        renewer.turn()
    assert "unexpectedly" in caplog.text
    assert kept.state is State.SUSPENDED


def test_rescheduled_lease_is_due_by_its_new_ttl(
    renewer: Still, store: Store, clock: Clock
) -> None:
    kept = lease(clock, ttl=30)
    renewer.add(kept, store, LockCommands("p"))
    kept.change_ttl(3, clock.time)
    renewer.reschedule(kept.token)
    assert renewer.first_due() == pytest.approx(clock.time + 1)
    renewer.reschedule("unknown")


def test_pending_release_is_sent_when_the_store_is_back(
    renewer: Still, store: Store, clock: Clock
) -> None:
    store.trouble = LockUnavailable("down")
    renewer.release_later(PendingRelease("a", "t", store, LockCommands("p"), clock.time + 5))
    renewer.turn()
    renewer.turn()
    assert len(store.calls) == 1
    store.trouble = None
    clock.time += 0.3
    renewer.turn()
    clock.time += 0.3
    renewer.turn()
    assert store.commands() == ["release", "release"]
    assert store.calls[-1].args[:2] == ("a", "t")


def test_debt_that_grows_while_it_is_paid_is_paid_as_it_is_then(
    renewer: Still, store: Store, clock: Clock
) -> None:
    renewer.release_later(PendingRelease("a", "t", store, LockCommands("p"), clock.time + 5))
    mark = Mark("d:j", 1, 60.0)
    perform = store.perform

    def owe_more(call: Any) -> Any:
        store.perform = perform  # type: ignore[method-assign]
        renewer.release_later(
            PendingRelease("a", "t", store, LockCommands("p"), clock.time + 5, marks=[mark])
        )
        return perform(call)

    store.perform = owe_more  # type: ignore[method-assign]
    renewer.turn()
    renewer.turn()
    assert store.commands() == ["release", "release"]
    assert "d:j" in store.calls[-1].args


def test_debt_that_dies_with_its_process_is_told(
    renewer: Still, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.trouble = LockUnavailable("down")
    renewer.release_later(PendingRelease("a", "t", store, LockCommands("p"), clock.time + 5))
    renewer.turn()
    with caplog.at_level(logging.WARNING, "celery_locks"):
        renewer.wait_idle(0.0)
    assert "lock 'a' could not be released and lapses: down" in caplog.text


def test_debt_is_dropped_when_the_lock_lapsed_anyway(
    renewer: Still, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.trouble = LockUnavailable("down")
    renewer.release_later(PendingRelease("a", "t", store, LockCommands("p"), clock.time + 1))
    with caplog.at_level(logging.WARNING, "celery_locks"):
        for _ in range(20):
            renewer.turn()
            clock.time += 0.3
    assert caplog.text.count("could not be released") == 1
    assert len(store.calls) <= 5
    assert renewer._pending_releases == {}


def test_fork_starts_empty(renewer: Still, store: Store, clock: Clock) -> None:
    renewer.add(lease(clock), store, LockCommands("p"))
    renewer.after_fork()
    assert (renewer.tokens, renewer._threads) == (frozenset(), {})


def test_thread_survives_any_error_and_renews_on(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread itself, on the real clock: even an error where none can be does not end it."""
    renewer = Renewer()
    kept = Lease(LockSpec("a", 1), "t", 1, lease_module.now())
    failed = threading.Event()
    real = ServerRenewals.run

    def fail_once(renewals: ServerRenewals) -> None:
        if not failed.is_set():
            failed.set()
            raise SystemExit("nobody may end this thread")
        real(renewals)

    monkeypatch.setattr(ServerRenewals, "run", fail_once)
    with caplog.at_level(logging.CRITICAL + 1, "celery_locks"):
        renewer.add(kept, store, LockCommands("p"))
        wait_until(lambda: kept.renewals >= 2, what="two renewals")
    assert failed.is_set()
    renewer.discard("t")


def test_thread_renews_a_lease_that_its_user_forgot(store: Store) -> None:
    """Garbage collection of the lease must not free the lock."""
    renewer = Renewer()
    renewer.add(Lease(LockSpec("a", 1), "t", 1, lease_module.now()), store, LockCommands("p"))
    wait_until(lambda: len(store.calls) >= 2, what="two renewals")
    renewer.discard("t")
