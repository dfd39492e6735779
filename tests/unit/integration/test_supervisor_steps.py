"""The supervisor, step by step: the store answers as a test says, and time passes when it says."""

from __future__ import annotations

import math
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask, events
from celery_locks.core.lease import State
from celery_locks.errors import LockUnavailable
from celery_locks.integration import supervisor as module
from celery_locks.integration.interrupt import SIGNAL
from celery_locks.integration.supervised_task import FIRST_LOOKUP, SupervisedTask
from celery_locks.integration.supervisor import ChildSupervisor
from celery_locks.store.commands.replies import Located
from celery_locks.types import Holder
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.sent_calls import renew_reply
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

TTL = 9.0
PID = 4711
FOUND = Holder(token="t", fence=7, task_id="j", task="bill", pid=PID)


def located(holder: Holder = FOUND, name: str = "a") -> Located:
    return Located({"t": (name, holder)})


def revoked() -> Located:
    nobody = Located()
    nobody.revoked = frozenset({"t"})
    return nobody


class Children:
    """The children of the pool, as far as the supervisor sees and signals them."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.watched: dict[int, Any] = {}
        self.signalled: list[tuple[int, int]] = []

    def pidfd_open(self, pid: int) -> int:
        if pid in self.dead:
            raise ProcessLookupError
        return os.open(os.devnull, os.O_RDONLY)

    def watch(self, descriptor: int, callback: Any) -> None:
        self.watched[descriptor] = callback

    def die(self) -> None:
        """The kernel reports the death of every watched child, once."""
        for callback in list(self.watched.values()):
            callback()
        self.watched.clear()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, still_renewer: StillRenewer) -> Any:
    made = Children()
    monkeypatch.setattr(os, "pidfd_open", made.pidfd_open, raising=False)
    monkeypatch.setattr(
        signal, "pidfd_send_signal", lambda *sent: made.signalled.append(sent), raising=False
    )
    monkeypatch.setattr(still_renewer, "watch", made.watch)
    monkeypatch.setattr(ChildSupervisor, "sees_deaths", True)
    yield made
    for descriptor in made.watched:
        os.close(descriptor)


@pytest.fixture
def supervisor(still_renewer: StillRenewer) -> ChildSupervisor:
    return ChildSupervisor()


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(events, "_subscribers", (lambda event: seen.append(event.kind),))
    return seen


@pytest.fixture
def request_of_job(scripted_app: Celery) -> Any:
    """What the supervisor uses of a worker's request."""

    @scripted_app.task(
        name="bill", base=LockedTask, lock_key="a", lock_ttl=TTL, shared=False, lazy=False
    )
    def bill() -> None: ...

    return SimpleNamespace(
        task=scripted_app.tasks["bill"], id="j", lock_token="t", request_dict={}, worker_pid=None
    )


@pytest.fixture
def entry(supervisor: ChildSupervisor, request_of_job: Any, children: Children) -> SupervisedTask:
    """A task that was given to a child a moment ago, and accepted by it."""
    supervisor.add(request_of_job, in_child=True)
    request_of_job.worker_pid = PID
    supervisor.on_accepted("t", PID)
    return supervisor._supervised["t"]


def advance_to_lookup(clock: VirtualClock, supervisor: ChildSupervisor) -> None:
    """Run until the options are loaded, and go to the moment of the first lookup."""
    clock.advance(FIRST_LOOKUP)
    supervisor.run()
    clock.advance(TTL / 3 - FIRST_LOOKUP + 0.001)


def test_short_task_costs_the_supervisor_no_call(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
) -> None:
    """Most tasks end before a third of their ttl."""
    virtual_clock.advance(FIRST_LOOKUP)
    supervisor.run()
    assert entry.ttl == TTL
    assert supervisor.due == pytest.approx(virtual_clock() + TTL / 3 - FIRST_LOOKUP)
    supervisor.remove("t")
    assert supervisor.due == math.inf
    assert scripted_store.performed == []


def test_task_that_takes_longer_is_found_by_its_token_and_renewed(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", located()), ("renew", renew_reply()))
    supervisor.run()
    assert (entry.name, entry.due) == ("a", math.inf)
    still_renewer.run_due()
    assert scripted_store.renewals == [("a", "t", 9.0)]
    supervisor.remove("t")
    assert still_renewer.tokens == frozenset()


@pytest.mark.parametrize(
    "answer", [Located(), located(FOUND._replace(fence=0))], ids=["not there yet", "still waits"]
)
def test_task_without_its_lock_is_looked_up_again_later(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    answer: Located,
) -> None:
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", answer))
    supervisor.run()
    assert still_renewer.tokens == frozenset()
    assert entry.due == pytest.approx(virtual_clock() + TTL / 3)


def test_lookup_without_an_answer_is_repeated(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", LockUnavailable("away")))
    supervisor.run()
    virtual_clock.advance(TTL / 3)
    scripted_store.expect(("locate", LockUnavailable("away")))
    supervisor.run()
    assert caplog.text.count("the locks of 1 tasks are not known yet: away") == 1, "once a minute"
    virtual_clock.advance(TTL / 3)
    scripted_store.expect(("locate", located()))
    supervisor.run()
    assert entry.name == "a"


def test_task_that_ends_while_it_is_looked_up_is_not_renewed(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    """Its token is released: renewed for ever, nothing would tell."""

    def ended_meanwhile(_: Any) -> Located:
        supervisor.remove("t")
        return located()

    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", ended_meanwhile))
    supervisor.run()
    assert still_renewer.tokens == frozenset()


def test_death_of_a_child_releases_its_lock_at_once(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    emitted: list[str],
) -> None:
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", located()))
    supervisor.run()
    children.die()
    assert still_renewer.tokens == frozenset(), "a lock that is to be released is not renewed"
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    [release] = scripted_store.releases
    assert release[:2] == ("a", "t")
    assert release.note == f"process {PID} died"
    assert supervisor.tokens == frozenset()
    assert emitted == ["freed"]


def test_release_after_a_death_is_tried_again_until_the_lock_lapses(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", located()))
    supervisor.run()
    children.die()
    scripted_store.expect(("release", reply_lost()))
    still_renewer.run_due()
    assert still_renewer.pending["t"].give_up_at == pytest.approx(virtual_clock() + TTL)
    virtual_clock.advance(0.25)
    scripted_store.expect(("release", True))
    still_renewer.run_due()
    assert not still_renewer.pending


@pytest.mark.parametrize("second", [located(), Located()], ids=["granted late", "never granted"])
def test_child_that_died_early_is_looked_up_twice(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    second: Located,
) -> None:
    """The last call of the dead may reach the store after the first lookup."""
    scripted_store.expect(("locate", Located()))
    children.die()
    virtual_clock.advance(0.001)
    supervisor.run()
    virtual_clock.advance(0.1)
    supervisor.run()
    assert supervisor.tokens == {"t"}
    virtual_clock.advance(0.2)
    scripted_store.expect(("locate", second))
    supervisor.run()
    assert supervisor.tokens == frozenset()
    assert set(still_renewer.pending) == ({"t"} if second else set())
    assert still_renewer.tokens == frozenset()


def test_lookups_without_an_answer_do_not_count_for_the_dead(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
) -> None:
    """Only an answer says that it held nothing; after a ttl it holds nothing in any case."""
    away = ("locate", LockUnavailable("away"))
    scripted_store.expect(away)
    children.die()
    for _ in range(4):
        virtual_clock.advance(0.3)
        scripted_store.expect(away)
        supervisor.run()
        assert supervisor.tokens == {"t"}
    virtual_clock.advance(TTL)
    scripted_store.expect(away)
    supervisor.run()
    assert supervisor.tokens == frozenset()


def test_lookups_before_the_death_do_not_count(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
) -> None:
    """It may have asked for its lock since."""
    advance_to_lookup(virtual_clock, supervisor)
    for _ in range(2):
        scripted_store.expect(("locate", Located()))
        supervisor.run()
        virtual_clock.advance(TTL / 3)
    scripted_store.expect(("locate", Located()))
    children.die()
    assert supervisor.tokens == {"t"}


def test_waiter_that_died_leaves_the_queue(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
) -> None:
    """It would be handed the lock, and nobody would confirm it."""
    scripted_store.expect(("locate", located(FOUND._replace(fence=0))))
    children.die()
    assert set(still_renewer.pending) == {"t"}


def test_child_that_is_dead_before_it_can_be_watched_is_released(
    supervisor: ChildSupervisor,
    request_of_job: Any,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    children.dead.add(PID)
    supervisor.add(request_of_job, in_child=True)
    request_of_job.worker_pid = PID
    supervisor.on_accepted("t", PID)
    scripted_store.expect(("locate", located()))
    supervisor.run()
    assert set(still_renewer.pending) == {"t"}


def test_pid_that_celery_did_not_report_comes_from_the_store(
    supervisor: ChildSupervisor,
    request_of_job: Any,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    supervisor.add(request_of_job, in_child=True)
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", located()))
    supervisor.run()
    children.die()
    assert set(still_renewer.pending) == {"t"}


def test_child_is_signalled_when_its_lease_is_lost(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    emitted: list[str],
) -> None:
    """It checks and tells of the loss itself: it may just have released the lock."""
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", located()), ("renew", renew_reply("t")))
    scripted_store.expect(("reassert", frozenset({"t"})))
    supervisor.run()
    [lease] = [still_renewer.lease_of("t")]
    still_renewer.run_due()
    assert lease is not None
    assert lease.state is State.LOST
    assert [sent[1] for sent in children.signalled] == [SIGNAL]
    assert "lost" not in emitted


def test_child_is_signalled_when_an_operator_took_the_lock_before_it_was_found(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
) -> None:
    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", revoked()))
    supervisor.run()
    assert len(children.signalled) == 1
    assert entry.due == math.inf


def test_child_whose_task_has_ended_is_not_signalled(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    children: Children,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
) -> None:
    """It may run another task by now."""

    def ended_meanwhile(_: Any) -> Any:
        supervisor.remove("t")
        return renew_reply("t")

    advance_to_lookup(virtual_clock, supervisor)
    scripted_store.expect(("locate", located()), ("renew", ended_meanwhile))
    supervisor.run()
    still_renewer.run_due()
    assert children.signalled == []


def test_end_of_the_worker_releases_what_killed_children_held(
    supervisor: ChildSupervisor,
    entry: SupervisedTask,
    scripted_store: ScriptedStore,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_is_alive", lambda pid: False)
    monkeypatch.setattr(still_renewer, "wait_idle", lambda seconds: still_renewer.run_due())
    scripted_store.expect(("locate", located()))
    supervisor.release_at_exit()
    assert set(still_renewer.pending) == {"t"}


def test_task_of_this_process_is_supervised_only_for_its_message(
    supervisor: ChildSupervisor,
    request_of_job: Any,
    scripted_store: ScriptedStore,
    virtual_clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads and greenlets renew their locks themselves."""
    supervisor.add(request_of_job, in_child=False)
    assert supervisor.tokens == frozenset()
    monkeypatch.setattr(request_of_job.task, "acks_late", True)
    monkeypatch.setattr(module.UnackedMessage, "of", lambda request: None)
    supervisor.add(request_of_job, in_child=False)
    virtual_clock.advance(FIRST_LOOKUP)
    supervisor.run()
    assert supervisor.due == math.inf
    supervisor.on_child_lost("t")
    assert supervisor.due == math.inf, "no child held it"
