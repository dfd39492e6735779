"""The keeper, step by step: a scripted store, a clock the test moves, rarely its thread."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import debts as debts_module
from celery_locks import keeper as module
from celery_locks import lease as lease_module
from celery_locks.clock import now as real_now
from celery_locks.errors import LeaseLost, LockUnavailable
from celery_locks.keeper import Keeper
from celery_locks.lease import Lease, State
from celery_locks.model import LockSpec
from celery_locks.store.base import Call
from celery_locks.store.verbs import RENEW_BATCH, Lost, Mark, Verbs
from tests.support.waiting import wait_until


class Clock:
    """A minute ahead of the real one, which a debt's first due date is taken from."""

    def __init__(self) -> None:
        self.time = real_now() + 60

    def now(self) -> float:
        return self.time


class Store:
    """Answers renewals with `lost` and releases with True, or raises what it is told to."""

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
        return Lost(self.lost) if call.script.verb == "renew" else True

    def unlisten(self, token: str) -> None: ...
    def close(self) -> None: ...

    def verbs(self) -> list[str]:
        return [call.script.verb for call in self.calls]


class Still(Keeper):
    """Without its thread."""

    def _start(self) -> None:
        self._bell = os.pipe()

    def turn(self) -> None:
        self._debts.pay(self.patience)
        self._renew_due()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for one in (module, debts_module, lease_module):
        monkeypatch.setattr(one, "now", made.now)
    return made


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def keeper(clock: Clock) -> Any:
    made = Still()
    yield made
    for descriptor in made._bell or ():
        os.close(descriptor)


def lease(clock: Clock, name: str = "a", ttl: float = 9, on_lost: Any = None) -> Lease:
    return Lease(LockSpec(name, ttl), f"t-{name}", 1, clock.now(), on_lost)


def test_lease_is_renewed_after_a_third_of_its_ttl(
    keeper: Still, store: Store, clock: Clock
) -> None:
    kept = lease(clock)
    keeper.keep(kept, store, Verbs("p"))
    clock.time += 2.9
    keeper.turn()
    assert store.calls == []
    clock.time += 0.2
    keeper.turn()
    assert store.verbs() == ["renew"]
    assert store.calls[0].args == ("a", "t-a", 9000)
    assert kept.renewals == 1
    keeper.turn()
    assert len(store.calls) == 1


def test_everything_due_goes_in_one_call_per_shard(
    keeper: Still, store: Store, clock: Clock
) -> None:
    verbs = Verbs("p", 2)
    names = [f"n{i}" for i in range(40)]
    for name in names:
        keeper.keep(lease(clock, name), store, verbs)
    clock.time += 3
    keeper.turn()
    assert len(store.calls) == 2
    assert {call.root for call in store.calls} == set(verbs.roots)
    for call in store.calls:
        assert all(verbs.root(str(name)) == call.root for name in call.args[::3])
    assert sorted(str(n) for call in store.calls for n in call.args[::3]) == sorted(names)


def test_stores_are_not_mixed(keeper: Still, store: Store, clock: Clock) -> None:
    other = Store()
    keeper.keep(lease(clock, "a"), store, Verbs("p"))
    keeper.keep(lease(clock, "b"), other, Verbs("p"))
    clock.time += 3
    keeper.turn()
    assert [len(store.calls), len(other.calls)] == [1, 1]


def test_batches_are_bounded(keeper: Still, store: Store, clock: Clock) -> None:
    """One call for all of a big worker would block the server for the others."""
    for i in range(RENEW_BATCH + 1):
        keeper.keep(lease(clock, f"n{i}"), store, Verbs("p"))
    clock.time += 3
    keeper.turn()
    assert [len(call.args) // 3 for call in store.calls] == [RENEW_BATCH, 1]


def test_what_is_nearly_due_goes_along(keeper: Still, store: Store, clock: Clock) -> None:
    keeper.keep(lease(clock, "a"), store, Verbs("p"))
    clock.time += 0.5
    keeper.keep(lease(clock, "b"), store, Verbs("p"))
    clock.time += 2.5
    keeper.turn()
    assert [call.args[::3] for call in store.calls] == [("a", "b")]


def test_failed_renewal_is_tried_again_inside_the_lease(
    keeper: Still, store: Store, clock: Clock
) -> None:
    told: list[Any] = []
    kept = lease(clock, on_lost=lambda *a: told.append(a))
    keeper.keep(kept, store, Verbs("p"))
    store.trouble = LockUnavailable("down")
    clock.time += 3
    keeper.turn()
    assert kept.state is State.SUSPENDED
    assert clock.time < keeper._first_due() <= clock.time + 9 / 20
    clock.time = keeper._first_due()
    store.trouble = None
    keeper.turn()
    assert (kept.state, told) == (State.HELD, [])


def test_lease_is_lost_at_its_deadline_and_told_once(
    keeper: Still, store: Store, clock: Clock
) -> None:
    told: list[LeaseLost] = []
    kept = lease(clock, on_lost=lambda _, error: told.append(error))
    keeper.keep(kept, store, Verbs("p"))
    store.trouble = LockUnavailable("down")
    clock.time += 3
    for _ in range(100):
        keeper.turn()
        if not keeper.tokens:
            break
        clock.time = keeper._first_due()
    assert keeper.tokens == frozenset()
    assert [error.reason for error in told] == ["it could not be renewed in time: down"]
    assert kept.deadline <= clock.time < kept.deadline + 0.5
    calls = len(store.calls)
    clock.time += 100
    keeper.turn()
    assert len(store.calls) == calls


def test_calls_end_before_the_deadline(keeper: Still, store: Store, clock: Clock) -> None:
    kept = lease(clock)
    keeper.keep(kept, store, Verbs("p"))
    clock.time += 9 - 0.5
    keeper.turn()
    assert store.calls[0].budget <= kept._since + 9 - clock.time


def test_lost_one_is_told_and_the_others_go_on(keeper: Still, store: Store, clock: Clock) -> None:
    one, two = lease(clock, "one"), lease(clock, "two")
    for kept in (one, two):
        keeper.keep(kept, store, Verbs("p"))
    store.lost = {"t-one"}
    clock.time += 3
    keeper.turn()
    assert (one.state, two.state) == (State.LOST, State.HELD)
    assert keeper.tokens == {"t-two"}


def test_release_during_a_renewal_is_no_loss(keeper: Still, store: Store, clock: Clock) -> None:
    told: list[Any] = []
    kept = lease(clock, on_lost=lambda *a: told.append(a))
    keeper.keep(kept, store, Verbs("p"))

    def released_meanwhile() -> None:
        keeper.discard(kept.token)
        kept.begin_release()
        store.lost = {kept.token}

    store.meanwhile = released_meanwhile
    clock.time += 3
    keeper.turn()
    assert (kept.state, told, keeper.tokens) == (State.RELEASED, [], frozenset())


def test_lease_that_its_holder_knows_is_lost_is_not_renewed(
    keeper: Still, store: Store, clock: Clock
) -> None:
    """Renewed on, the lock would stay taken for the life of the process with nobody inside."""
    kept = lease(clock)
    keeper.keep(kept, store, Verbs("p"))
    clock.time += 10
    with pytest.raises(LeaseLost):
        kept.check()
    keeper.turn()
    assert store.calls == []
    assert keeper.tokens == frozenset()


def test_ttl_changed_during_a_renewal_is_renewed_again_at_once(
    keeper: Still, store: Store, clock: Clock
) -> None:
    kept = lease(clock, ttl=3)
    keeper.keep(kept, store, Verbs("p"))
    store.meanwhile = lambda: kept.retime(30, clock.time) if kept.ttl == 3 else None
    clock.time += 1
    keeper.turn()
    assert keeper._first_due() <= clock.time
    keeper.turn()
    assert store.calls[-1].args[2] == 30_000


def test_unforeseen_error_is_logged_and_retried(
    keeper: Still, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    kept = lease(clock)
    keeper.keep(kept, store, Verbs("p"))
    store.trouble = KeyError("a bug of ours")
    clock.time += 3
    with caplog.at_level(logging.ERROR, "celery_locks"):
        keeper.turn()
    assert "unforeseen" in caplog.text
    assert kept.state is State.SUSPENDED


def test_rescheduled_lease_is_due_by_its_new_ttl(keeper: Still, store: Store, clock: Clock) -> None:
    kept = lease(clock, ttl=30)
    keeper.keep(kept, store, Verbs("p"))
    kept.retime(3, clock.time)
    keeper.reschedule(kept.token)
    assert keeper._first_due() == pytest.approx(clock.time + 1)
    keeper.reschedule("unknown")


def test_debt_is_paid_when_the_store_is_back(keeper: Still, store: Store, clock: Clock) -> None:
    store.trouble = LockUnavailable("down")
    keeper.give_back("a", "t", store, Verbs("p"), clock.time + 5)
    keeper.turn()
    keeper.turn()
    assert len(store.calls) == 1
    store.trouble = None
    clock.time += 0.3
    keeper.turn()
    clock.time += 0.3
    keeper.turn()
    assert store.verbs() == ["release", "release"]
    assert store.calls[-1].args[:2] == ("a", "t")


def test_debt_that_grows_while_it_is_paid_is_paid_as_it_is_then(
    keeper: Still, store: Store, clock: Clock
) -> None:
    keeper.give_back("a", "t", store, Verbs("p"), clock.time + 5)
    mark = Mark("d:j", 1, 60.0)
    perform = store.perform

    def owe_more(call: Any) -> Any:
        store.perform = perform  # type: ignore[method-assign]
        keeper.give_back("a", "t", store, Verbs("p"), clock.time + 5, marks=[mark])
        return perform(call)

    store.perform = owe_more  # type: ignore[method-assign]
    keeper.turn()
    keeper.turn()
    assert store.verbs() == ["release", "release"]
    assert "d:j" in store.calls[-1].args


def test_debt_that_dies_with_its_process_is_told(
    keeper: Still, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.trouble = LockUnavailable("down")
    keeper.give_back("a", "t", store, Verbs("p"), clock.time + 5)
    keeper.turn()
    with caplog.at_level(logging.WARNING, "celery_locks"):
        keeper.settle(0.0)
    assert "lock 'a' could not be given back and lapses: down" in caplog.text


def test_debt_is_dropped_when_the_lock_lapsed_anyway(
    keeper: Still, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.trouble = LockUnavailable("down")
    keeper.give_back("a", "t", store, Verbs("p"), clock.time + 1)
    with caplog.at_level(logging.WARNING, "celery_locks"):
        for _ in range(20):
            keeper.turn()
            clock.time += 0.3
    assert caplog.text.count("could not be given back") == 1
    assert len(store.calls) <= 5
    assert keeper._debts == {}


def test_fork_starts_empty(keeper: Still, store: Store, clock: Clock) -> None:
    keeper.keep(lease(clock), store, Verbs("p"))
    bell = keeper._bell
    keeper.after_fork()
    assert (keeper.tokens, keeper._bell) == (frozenset(), None)
    for descriptor in bell or ():
        os.close(descriptor)


def test_thread_survives_any_error_and_renews_on(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread itself, on the real clock: even an error where none can be does not end it."""
    keeper = Keeper()
    kept = Lease(LockSpec("a", 1), "t", 1, lease_module.now())
    failed = threading.Event()
    real = keeper._renew_due

    def fails_once() -> None:
        if not failed.is_set():
            failed.set()
            raise SystemExit("nobody may end this thread")
        real()

    monkeypatch.setattr(keeper, "_renew_due", fails_once)
    with caplog.at_level(logging.CRITICAL + 1, "celery_locks"):
        keeper.keep(kept, store, Verbs("p"))
        wait_until(lambda: kept.renewals >= 2, what="two renewals")
    assert failed.is_set()
    keeper.discard("t")


def test_thread_renews_a_lease_that_its_user_forgot(store: Store) -> None:
    """Garbage collection of the lease must not free the lock."""
    keeper = Keeper()
    keeper.keep(Lease(LockSpec("a", 1), "t", 1, lease_module.now()), store, Verbs("p"))
    wait_until(lambda: len(store.calls) >= 2, what="two renewals")
    keeper.discard("t")
