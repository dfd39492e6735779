"""The renewals of one server: which leases are due, what goes in one call, what a failure costs."""

import logging
from typing import Any

import pytest

from celery_locks.core.lease import Lease, State, trusted_until
from celery_locks.errors import LeaseLost, LockUnavailable
from celery_locks.store.commands.locks import RENEW_BATCH, LockCommands
from celery_locks.types import Holder, LockSpec, Revocation
from tests.support.scripted_store import AnsweringStore, ScriptedStore
from tests.support.sent_calls import names_in, renew_reply
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock


def lease(
    virtual_clock: VirtualClock, name: str = "a", ttl: float = 9, on_lost: Any = None
) -> Lease:
    return Lease(LockSpec(name, ttl), f"t-{name}", 1, virtual_clock(), on_lost)


def test_lease_is_renewed_after_a_third_of_its_ttl(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    kept = lease(virtual_clock)
    still_renewer.add(kept, answering_store, LockCommands("p"))
    virtual_clock.advance(2.9)
    still_renewer.run_due()
    assert answering_store.performed == []
    virtual_clock.advance(0.2)
    still_renewer.run_due()
    assert answering_store.names == ["renew"]
    assert answering_store.renewals == [("a", "t-a", 9.0)]
    assert kept.renewals == 1
    still_renewer.run_due()
    assert len(answering_store.performed) == 1


def test_everything_due_goes_in_one_call_per_shard(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    commands = LockCommands("p", 2)
    names = [f"n{i}" for i in range(40)]
    for name in names:
        still_renewer.add(lease(virtual_clock, name), answering_store, commands)
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert len(answering_store.performed) == 2
    assert {call.root for call in answering_store.performed} == set(commands.roots)
    for call in answering_store.performed:
        assert all(commands.root(name) == call.root for name in names_in(call))
    assert sorted(it.name for it in answering_store.renewals) == sorted(names)


def test_batches_are_bounded(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    """One call for all of a big worker would block the server for the others."""
    for i in range(RENEW_BATCH + 1):
        still_renewer.add(lease(virtual_clock, f"n{i}"), answering_store, LockCommands("p"))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert [len(names_in(call)) for call in answering_store.performed] == [RENEW_BATCH, 1]


def test_what_is_nearly_due_goes_along(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    still_renewer.add(lease(virtual_clock, "a"), answering_store, LockCommands("p"))
    virtual_clock.advance(0.5)
    still_renewer.add(lease(virtual_clock, "b"), answering_store, LockCommands("p"))
    virtual_clock.advance(2.5)
    still_renewer.run_due()
    assert [names_in(call) for call in answering_store.performed] == [{"a", "b"}]


def test_failed_renewal_is_tried_again_inside_the_lease(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    told: list[Any] = []
    kept = lease(virtual_clock, on_lost=lambda *a: told.append(a))
    still_renewer.add(kept, answering_store, LockCommands("p"))
    answering_store.trouble = LockUnavailable("down")
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert kept.state is State.SUSPENDED
    assert virtual_clock() < still_renewer.first_due <= virtual_clock() + 9 / 20
    virtual_clock.time = still_renewer.first_due
    answering_store.trouble = None
    still_renewer.run_due()
    assert (kept.state, told) == (State.HELD, [])


def test_lease_is_lost_at_its_deadline_and_told_once(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    told: list[LeaseLost] = []
    kept = lease(virtual_clock, on_lost=lambda _, error: told.append(error))
    still_renewer.add(kept, answering_store, LockCommands("p"))
    answering_store.trouble = LockUnavailable("down")
    virtual_clock.advance(3)
    for _ in range(100):
        still_renewer.run_due()
        if not still_renewer.tokens:
            break
        virtual_clock.time = still_renewer.first_due
    assert still_renewer.tokens == frozenset()
    assert [error.reason for error in told] == ["it could not be renewed in time: down"]
    assert kept.deadline <= virtual_clock() < kept.deadline + 0.5
    calls = len(answering_store.performed)
    virtual_clock.advance(100)
    still_renewer.run_due()
    assert len(answering_store.performed) == calls


def test_calls_end_before_the_deadline(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    kept = lease(virtual_clock)
    still_renewer.add(kept, answering_store, LockCommands("p"))
    virtual_clock.advance(9 - 0.5)
    still_renewer.run_due()
    assert answering_store.performed[0].budget <= kept._sent_at + 9 - virtual_clock()


def test_lost_one_is_told_and_the_others_go_on(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    one, two = lease(virtual_clock, "one"), lease(virtual_clock, "two")
    for kept in (one, two):
        still_renewer.add(kept, answering_store, LockCommands("p"))
    answering_store.lost = {"t-one"}
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert (one.state, two.state) == (State.LOST, State.HELD)
    assert still_renewer.tokens == {"t-two"}


def held_by_us(virtual_clock: VirtualClock, name: str = "a") -> Lease:
    kept = lease(virtual_clock, name)
    kept.holder = Holder()
    return kept


def test_lease_that_the_server_lost_is_asserted_again(
    still_renewer: StillRenewer, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """Those that stay lost are told; the deadline counts from before the first of both calls."""
    one, two = held_by_us(virtual_clock, "one"), held_by_us(virtual_clock, "two")
    for kept in (one, two):
        still_renewer.add(kept, scripted_store, LockCommands("p"))
    scripted_store.expect(("renew", renew_reply("t-one", "t-two")), ("reassert", {"t-two"}))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert (one.state, two.state) == (State.HELD, State.LOST)
    assert one.deadline == pytest.approx(trusted_until(virtual_clock(), 9))
    assert still_renewer.tokens == {"t-one"}


def test_reassertion_without_a_reply_is_tried_again(
    still_renewer: StillRenewer, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    kept = held_by_us(virtual_clock)
    still_renewer.add(kept, scripted_store, LockCommands("p"))
    scripted_store.expect(("renew", renew_reply("t-a")), ("reassert", LockUnavailable("down")))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert kept.state is State.SUSPENDED
    scripted_store.expect(("renew", renew_reply("t-a")), ("reassert", set()))
    virtual_clock.time = still_renewer.first_due
    still_renewer.run_due()
    assert kept.state is State.HELD


def test_release_during_a_reassertion_is_sent_again(
    still_renewer: StillRenewer, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    """The release may have come before the server had the lease again: nobody would end it."""
    kept = held_by_us(virtual_clock)
    still_renewer.add(kept, scripted_store, LockCommands("p"))

    def released_meanwhile(_: Any) -> set[str]:
        still_renewer.discard(kept.token)
        kept.begin_release()
        return set()

    scripted_store.expect(("renew", renew_reply("t-a")), ("reassert", released_meanwhile))
    scripted_store.expect(("release", 1))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert (kept.state, still_renewer.tokens) == (State.RELEASED, frozenset())


def test_release_during_a_renewal_is_no_loss(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    told: list[Any] = []
    kept = lease(virtual_clock, on_lost=lambda *a: told.append(a))
    still_renewer.add(kept, answering_store, LockCommands("p"))

    def released_meanwhile() -> None:
        still_renewer.discard(kept.token)
        kept.begin_release()
        answering_store.lost = {kept.token}

    answering_store.meanwhile = released_meanwhile
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert (kept.state, told, still_renewer.tokens) == (State.RELEASED, [], frozenset())


def test_lease_that_its_holder_knows_is_lost_is_not_renewed(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    """Renewed on, the lock would stay taken for the life of the process with nobody inside."""
    kept = lease(virtual_clock)
    still_renewer.add(kept, answering_store, LockCommands("p"))
    virtual_clock.advance(10)
    with pytest.raises(LeaseLost):
        kept.check()
    still_renewer.run_due()
    assert answering_store.performed == []
    assert still_renewer.tokens == frozenset()


def test_ttl_changed_during_a_renewal_is_renewed_again_at_once(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    kept = lease(virtual_clock, ttl=3)
    still_renewer.add(kept, answering_store, LockCommands("p"))
    answering_store.meanwhile = lambda: (
        kept.change_ttl(30, virtual_clock()) if kept.ttl == 3 else None
    )
    virtual_clock.advance(1)
    still_renewer.run_due()
    assert still_renewer.first_due <= virtual_clock()
    still_renewer.run_due()
    assert answering_store.renewals[-1].ttl == 30.0


def test_unforeseen_error_is_logged_and_retried(
    still_renewer: StillRenewer,
    answering_store: AnsweringStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = lease(virtual_clock)
    still_renewer.add(kept, answering_store, LockCommands("p"))
    answering_store.trouble = KeyError("a bug of ours")
    virtual_clock.advance(3)
    with caplog.at_level(logging.ERROR, "celery_locks"):
        still_renewer.run_due()
    assert "unexpectedly" in caplog.text
    assert kept.state is State.SUSPENDED


SHARDS = LockCommands("p", shards=4)
IN_ONE_SHARD = [name for name in map(str, range(99)) if SHARDS.root(name) == SHARDS.root("bad")]


def test_lease_whose_renewal_fails_takes_none_of_its_batch_with_it(
    still_renewer: StillRenewer,
    answering_store: AnsweringStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the store has of one lock may be unreadable; all go in one call."""
    answering_store.trouble, answering_store.troubled = ValueError("unreadable"), "bad"
    bad, *good = [lease(virtual_clock, name) for name in ("bad", *IN_ONE_SHARD[:3])]
    for kept in (bad, *good):
        still_renewer.add(kept, answering_store, SHARDS)
    for _ in range(20):
        virtual_clock.advance(1)
        still_renewer.run_due()
    assert bad.state is State.LOST
    assert all(kept.renewals >= 6 for kept in good)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "once a minute"


def test_lease_that_fails_to_hear_of_its_renewal_takes_none_with_it(
    still_renewer: StillRenewer,
    answering_store: AnsweringStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("a bug of ours")

    bad, good = lease(virtual_clock, "a"), lease(virtual_clock, "b")
    bad.mark_renewed = fail  # type: ignore[method-assign]
    for kept in (bad, good):
        still_renewer.add(kept, answering_store, LockCommands("p"))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert good.renewals == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the lock renewer failed at a lease and continues"
    ]


def test_lease_of_an_impossible_name_is_lost_and_costs_the_others_nothing(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    bad, good = lease(virtual_clock, "bad"), lease(virtual_clock, "good")
    for kept in (bad, good):
        still_renewer.add(kept, answering_store, SHARDS)
    bad.name = "\ud800"
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert (bad.state, good.renewals) == (State.LOST, 1)
    assert still_renewer.tokens == {good.token}


def test_shard_that_failed_comes_last_and_leaves_the_others_their_time(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    """All calls of a round together take less than a third of the shortest ttl."""
    other = next(name for name in map(str, range(99)) if SHARDS.root(name) != SHARDS.root("bad"))
    answering_store.trouble, answering_store.troubled = LockUnavailable("away"), "bad"
    for name in ("bad", other):
        still_renewer.add(lease(virtual_clock, name), answering_store, SHARDS)

    def time_out() -> None:
        call = answering_store.performed[-1]
        if "bad" in names_in(call):
            virtual_clock.advance(call.budget)

    answering_store.meanwhile = time_out
    virtual_clock.advance(3)
    began = virtual_clock()
    still_renewer.run_due()
    assert [it.name for it in answering_store.renewals] == ["bad", other]
    assert virtual_clock() - began <= 3 / 2 + 0.01, "half of what one call may take"
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert [it.name for it in answering_store.renewals[2:]] == [other, "bad"]


def test_holder_is_told_at_its_deadline_though_other_shards_time_out(
    still_renewer: StillRenewer, answering_store: AnsweringStore, virtual_clock: VirtualClock
) -> None:
    """Not at the end of the round: after the call during which its deadline passed."""
    commands = LockCommands("p", 8)
    of_shard = {commands.root(name): name for name in map(str, range(99))}
    told: list[float] = []
    first = lease(
        virtual_clock,
        of_shard.pop(commands.roots[0]),
        ttl=8,
        on_lost=lambda *_: told.append(virtual_clock()),
    )
    virtual_clock.advance(1)
    for name in of_shard.values():
        still_renewer.add(lease(virtual_clock, name), answering_store, commands)
    still_renewer.add(first, answering_store, commands)  # the last call of a round is its own
    answering_store.trouble = LockUnavailable("away")
    virtual_clock.time = first.deadline - 0.5
    still_renewer.run_due()
    longest = 0.0

    def time_out() -> None:
        nonlocal longest
        budget = answering_store.performed[-1].budget
        longest = max(longest, budget)
        virtual_clock.advance(budget)

    answering_store.meanwhile = time_out
    virtual_clock.time = first.deadline - 0.05
    still_renewer.run_due()
    assert len(told) == 1
    assert told[0] < first.deadline + longest
    assert virtual_clock() > told[0], "the round went on"


def test_operators_reason_and_request_to_stop_reach_the_holder(
    still_renewer: StillRenewer, scripted_store: ScriptedStore, virtual_clock: VirtualClock
) -> None:
    taken, asked = lease(virtual_clock, "taken"), lease(virtual_clock, "asked")
    for kept in (taken, asked):
        still_renewer.add(kept, scripted_store, LockCommands("p"))
    by = {"t-taken": Revocation("ann", "why")}
    reply = renew_reply("t-taken", revoked=by, stops=["t-asked"])
    scripted_store.expect(("renew", reply))
    virtual_clock.advance(3)
    still_renewer.run_due()
    assert taken.reason == "revoked by ann: why"
    assert asked.stop_requested
    assert still_renewer.tokens == {"t-asked"}
