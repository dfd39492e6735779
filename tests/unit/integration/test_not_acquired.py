"""A task without its lock: each decision of the policy becomes the right call of Celery, in order.

The task, its request and its reservation write down what is done to them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore
from kombu.exceptions import OperationalError

from celery_locks import events, policy
from celery_locks.errors import (
    AlreadyDone,
    LockConflict,
    LockUnavailable,
    ServerRefused,
)
from celery_locks.integration import not_acquired as module
from celery_locks.integration.headers import NO_HEADER, LockHeader
from celery_locks.integration.not_acquired import NotAcquired
from celery_locks.options import LockOptions
from celery_locks.policy import Decision
from celery_locks.store.commands.locks import LockCommands, ended_mark
from celery_locks.store.commands.replies import Ended
from celery_locks.types import Conflict, Holder
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.still_renewer import StillRenewer

THEIRS = Holder(token="theirs", task_id="other", task="bill", worker="w")
BUSY = Conflict("a", (THEIRS,), 5.0, 1)
AT = 1_800_000_000.0


class Log(list[Any]):
    """What was done, in order; a call may be told to fail."""

    def __init__(self) -> None:
        self.errors: dict[str, list[BaseException]] = {}

    def call(self, name: str, *args: Any) -> None:
        self.append((name, *args) if args else name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    @property
    def names(self) -> list[str]:
        return [it if isinstance(it, str) else it[0] for it in self]


class Reservation:
    """Writes down how it ends."""

    def __init__(self, log: Log, token: str = "") -> None:
        self._log, self.token = log, token

    def release(self) -> None:
        self._log.call("release reservation")

    def release_now(self) -> bool:
        self._log.call("release reservation")
        return False

    def extend(self, seconds: float, budget: float) -> None:
        self._log.call("extend reservation", seconds, budget)

    def pass_on(self) -> None:
        self._log.call("pass reservation on")


class Task:
    """Writes down what Celery is asked for."""

    name, ignore_result = "bill", False

    def __init__(self, log: Log) -> None:
        self._log = log
        self.app = SimpleNamespace(conf=SimpleNamespace(broker_transport_options={}))
        self.backend: Any = SimpleNamespace(
            mark_as_revoked=lambda *args, **how: log.call("mark as revoked", *args)
        )
        self.state = "PENDING"

    def signature_from_request(self, request: Any, **changes: Any) -> Any:
        self._log.call("signature", changes)
        return SimpleNamespace(apply_async=lambda: self._log.call("publish"))

    def send_event(self, kind: str, **fields: Any) -> None:
        self._log.call(f"event {kind}", fields)

    def AsyncResult(self, task_id: str) -> Any:
        return SimpleNamespace(state=self.state)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(
        module, "time", SimpleNamespace(time=lambda: AT, sleep=lambda s: made.call("sleep", s))
    )
    monkeypatch.setattr(events, "_subscribers", (lambda event: made.call(f"emit {event.kind}"),))
    return made


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``decide(kind)``: what the policy says, and what it was told of the situation."""
    asked: list[Any] = []

    def use(kind: Any, pause: float = 0.0) -> list[Any]:
        def decision(*args: Any) -> Decision:
            asked.append(args[-1])
            return Decision(kind, "as planned", pause)

        for name in ("on_conflict", "on_unavailable", "on_done"):
            monkeypatch.setattr(policy, name, decision)
        return asked

    return use


def run_of(
    log: Log, *, header: LockHeader = NO_HEADER, request: Any = None, **fields: Any
) -> NotAcquired:
    context = {
        "id": "j",
        "retries": 2,
        "headers": {"x": 1, **header.write({})},
        "called_directly": False,
        "is_eager": False,
        "chain": None,
        "callbacks": None,
        "ignore_result": False,
    }
    execution: Any = SimpleNamespace(
        task=Task(log),
        request=SimpleNamespace(**{**context, **(request or {})}),
        header=header,
        options=LockOptions(**fields.pop("options", {})),
        reservation=Reservation(log, fields.pop("reservation", "")),
        outer=None,
        holder=Holder(task_id="j", task="bill", retries=2),
        token="mine",
        once=None,
        can_park=True,
    )
    vars(execution).update(fields)
    return NotAcquired(execution, "a")


def test_skip_releases_the_reservation_and_returns_a_value(log: Log, decide: Any) -> None:
    decide("skip")
    value = run_of(log).on_conflict(BUSY)
    assert value == {"skipped": True, "lock": "a", "holder": THEIRS.as_public_dict()}
    assert log.names == ["release reservation", "emit skipped", "event task-skipped"]


def test_skip_of_a_direct_call_sends_no_event(log: Log, decide: Any) -> None:
    """There is no worker that could send one."""
    decide("skip")
    run_of(log, request={"called_directly": True}).on_conflict(BUSY)
    assert log.names == ["release reservation", "emit skipped"]


def test_event_that_cannot_be_sent_does_not_fail_the_skip(
    log: Log, decide: Any, caplog: pytest.LogCaptureFixture
) -> None:
    decide("skip")
    log.errors["event task-skipped"] = [OSError("no broker")]
    assert run_of(log).on_conflict(BUSY)["skipped"]
    assert "the event task-skipped could not be sent: no broker" in caplog.text


def test_raise_releases_the_reservation_and_fails_the_task(log: Log, decide: Any) -> None:
    decide("raise")
    with pytest.raises(LockConflict) as caught:
        run_of(log).on_conflict(BUSY)
    assert caught.value.conflict is BUSY
    assert log.names == ["release reservation"]


def test_requeue_keeps_the_reservation_until_the_message_is_published_again(
    log: Log, decide: Any
) -> None:
    """In this order: a process that dies in between leaves the message or a reservation for it."""
    decide("requeue", pause=4.0)
    options = {"ttl": 30.0, "pending_ttl": 100.0}
    with pytest.raises(Ignore, match="as planned"):
        run_of(log, options=options).on_conflict(BUSY)
    assert log.names == [
        "extend reservation",
        "signature",
        "publish",
        "pass reservation on",
        "emit requeued",
    ]
    assert log[0][1:] == (104.0, 3.0)


def test_requeued_message_is_the_same_attempt_and_counts(log: Log, decide: Any) -> None:
    """Its retries are the user's, and Celery would give up after ``max_retries`` of them."""
    decide("requeue", pause=4.0)
    with pytest.raises(Ignore):
        header = LockHeader(since=AT - 60, times=3, published_by=(7,))
        run_of(log, header=header).on_conflict(BUSY)
    changes = log[1][1]
    assert (changes["retries"], changes["countdown"]) == (2, 4.0)
    assert changes["headers"]["x"] == 1
    header = LockHeader.read(changes["headers"])
    assert (header.since, header.times, header.published_by) == (AT - 60, 4, (7,))


def test_parked_message_keeps_the_fences_of_its_publisher(
    log: Log, decide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same attempt, also when it is woken: a copy of the one before may run then."""
    decide("park")
    monkeypatch.setattr(module, "record_message", lambda app, send: ("message", None))
    header = LockHeader({"ttl": 9}, since=AT, published_by=(7,))
    run_of(log, header=header, args=(), kwargs={}).park_request(BUSY)
    sent = LockHeader.read(log[0][1]["headers"])
    assert sent == LockHeader({"ttl": 9}, queued="a", parked=True, published_by=(7,))


def test_requeue_is_published_until_it_succeeds(
    log: Log, decide: Any, still_renewer: StillRenewer, caplog: pytest.LogCaptureFixture
) -> None:
    """An acknowledged message exists nowhere else. The log does not grow with every try."""
    decide("requeue")
    log.errors["publish"] = [OperationalError("away"), OperationalError("away")]
    with pytest.raises(Ignore):
        run_of(log).on_conflict(BUSY)
    assert log.names[1:] == [
        "signature",
        *["publish", "sleep"] * 2,
        "publish",
        "pass reservation on",
        "emit requeued",
    ]
    assert caplog.text.count("cannot be requeued now and is tried again: away") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("not serializable")], ids=repr)
def test_requeue_that_fails_passes_no_reservation_on(
    log: Log, decide: Any, error: BaseException
) -> None:
    """No message has it: ``after_return`` releases it."""
    decide("requeue")
    log.errors["publish"] = [error]
    with pytest.raises(type(error)):
        run_of(log).on_conflict(BUSY)
    assert log.names == ["extend reservation", "signature", "publish"]


def test_policy_is_told_the_situation(log: Log, decide: Any) -> None:
    asked = decide("raise")
    run = run_of(
        log,
        header=LockHeader(since=AT - 60, times=3),
        request={"chain": ["next"]},
        reservation="qj",
    )
    run.task.app.conf.broker_transport_options = {"visibility_timeout": 40}
    with pytest.raises(LockConflict):
        run.on_conflict(BUSY)
    [situation] = asked
    assert situation == policy.Situation(
        task_id="j",
        attempt=3,
        has_followers=True,
        can_requeue=True,
        times_requeued=3,
        patience_used=60.0,
        longest_pause=10.0,
        had_reservation=True,
    )


@pytest.mark.parametrize(
    "fields",
    [{"request": {"called_directly": True}}, {"request": {"is_eager": True}}, {"outer": 1}],
)
def test_call_without_a_message_of_its_own_cannot_be_requeued(
    log: Log, decide: Any, fields: Any
) -> None:
    asked = decide("raise")
    with pytest.raises(LockConflict):
        run_of(log, **fields).on_conflict(BUSY)
    assert asked[0].can_requeue is False


def test_run_without_a_server_releases_the_reservation_and_goes_on(log: Log, decide: Any) -> None:
    asked = decide("run")
    run_of(log).on_unavailable(LockUnavailable("away"))
    assert log.names == ["release reservation", "emit unlocked"]
    assert asked[0].refused_for is None


def test_failure_without_a_server_raises_the_error_itself(log: Log, decide: Any) -> None:
    decide("raise")
    error = LockUnavailable("away")
    with pytest.raises(LockUnavailable) as caught:
        run_of(log).on_unavailable(error)
    assert caught.value is error
    assert log.names == ["release reservation"]


def test_requeue_without_a_server_passes_the_reservation_on(log: Log, decide: Any) -> None:
    """It cannot be extended there, and is not released either."""
    decide("requeue", pause=1.0)
    with pytest.raises(Ignore):
        run_of(log).on_unavailable(LockUnavailable("away"))
    assert log.names == ["signature", "publish", "pass reservation on", "emit requeued"]


def test_server_that_refuses_is_remembered_over_requeues_and_forgotten_after_a_reply(
    log: Log, decide: Any
) -> None:
    """A wrong password is tried for an hour, counted from the first time."""
    asked = decide("requeue")
    run = run_of(log, header=LockHeader(refused=AT - 100))
    with pytest.raises(Ignore):
        run.on_unavailable(ServerRefused("wrong password"))
    assert asked[0].refused_for == 100.0
    assert LockHeader.read(log[0][1]["headers"]).refused == AT - 100
    log.clear()
    with pytest.raises(Ignore):
        run_of(log, header=LockHeader(refused=AT - 100)).on_conflict(BUSY)
    assert LockHeader.read(log[1][1]["headers"]).refused is None


class Once:
    """What ``once`` has stored."""

    def __init__(self, has_result: bool) -> None:
        self._has_result = has_result

    def repeat(self, mark: str) -> Any:
        return SimpleNamespace(
            reason="already_done", value=mark, has_result=self._has_result, failed=mark[5:]
        )


def test_completed_work_returns_its_result_and_releases_the_reservation(log: Log) -> None:
    run = run_of(log, once=Once(has_result=True), request={"chain": ["next"]})
    assert run.on_completed("saved") == "saved"
    assert log.names == ["emit already_done", "event task-skipped", "release reservation"]


@pytest.mark.parametrize("followers", [{"chain": ["next"]}, {"callbacks": ["next"]}])
def test_completed_work_without_a_result_fails_where_somebody_follows(
    log: Log, followers: Any
) -> None:
    """The next link would be handed a value that is none."""
    assert run_of(log, once=Once(has_result=False)).on_completed("saved") == "saved"
    with pytest.raises(AlreadyDone):
        run_of(log, once=Once(has_result=False), request=followers).on_completed("saved")
    assert log.names.count("release reservation") == 2


def test_failed_work_says_so_where_somebody_follows(log: Log) -> None:
    run = run_of(log, once=Once(has_result=False), request={"chain": ["next"]})
    with pytest.raises(AlreadyDone, match=r"is not done again: already_done, it failed$"):
        run.on_completed("savedit failed")


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
def test_copy_of_a_message_whose_result_is_there_is_dropped(log: Log, state: str) -> None:
    run = run_of(log)
    run.task.state = state
    with pytest.raises(Ignore, match="has run"):
        run.on_ended(Ended())
    assert log.names == ["pass reservation on", "emit already_done"]


@pytest.mark.parametrize(
    "unreadable",
    [
        lambda run: setattr(run.request, "ignore_result", True),
        lambda run: setattr(run.task, "ignore_result", True),
        lambda run: setattr(run.task, "backend", DisabledBackend.__new__(DisabledBackend)),
    ],
    ids=["ignored by the call", "ignored by the task", "no backend"],
)
def test_copy_does_not_wait_for_a_result_that_nobody_can_read(log: Log, unreadable: Any) -> None:
    run = run_of(log)
    unreadable(run)
    with pytest.raises(Ignore, match="has run"):
        run.on_ended(Ended())
    assert log.names == ["pass reservation on", "emit already_done"]


def test_copy_of_a_replaced_message_is_marked_as_revoked(log: Log) -> None:
    """Whoever waits for it learns that it never runs."""
    with pytest.raises(Ignore, match="a later message replaced this one"):
        run_of(log).on_ended(Ended(was_replaced=True))
    assert log[1] == ("mark as revoked", "j", "replaced")
    assert log.names == ["pass reservation on", "mark as revoked", "emit already_done"]


def test_result_that_is_there_is_not_overwritten(log: Log) -> None:
    run = run_of(log)
    run.task.state = "REVOKED"
    with pytest.raises(Ignore):
        run.on_ended(Ended(was_replaced=True))
    assert "mark as revoked" not in log.names


def test_copy_of_a_message_that_is_being_replaced_comes_back(log: Log, decide: Any) -> None:
    """If the other is never sent, this one runs."""
    decide("requeue")
    with pytest.raises(Ignore, match="as planned"):
        run_of(log).on_ended(Ended(is_being_replaced=True))
    assert LockHeader.read(log[1][1]["headers"]).unseen is None, "it waits for no result"
    assert "publish" in log.names


def test_copy_waits_a_ttl_for_the_result_of_the_run_that_ended(log: Log, decide: Any) -> None:
    decide("requeue", pause=2.0)
    with pytest.raises(Ignore, match="as planned"):
        run_of(log, header=LockHeader(unseen=AT - 29), options={"ttl": 30.0}).on_ended(Ended())
    assert log.names == [
        "pass reservation on",
        "signature",
        "publish",
        "pass reservation on",
        "emit requeued",
    ]
    changes = log[1][1]
    assert changes["countdown"] == 2.0
    assert LockHeader.read(changes["headers"]).unseen == AT - 29


@pytest.mark.parametrize("reply", [True, reply_lost()], ids=["released", "reply lost"])
def test_copy_without_a_result_after_a_ttl_runs_at_once_if_the_mark_is_gone(
    log: Log, decide: Any, scripted_store: ScriptedStore, reply: Any
) -> None:
    """The run that ended died before it stored its result."""
    decide("requeue", pause=2.0)
    scripted_store.expect(("release", reply))
    locks = SimpleNamespace(commands=LockCommands("p"), perform=scripted_store.perform)
    run = run_of(log, header=LockHeader(unseen=AT - 31), options={"ttl": 30.0}, locks=locks)
    with pytest.raises(Ignore, match="as planned"):
        run.on_ended(Ended())
    [release] = scripted_store.releases
    mark = ended_mark(Holder(task_id="j", retries=2), 0.001)
    assert release.marks == [mark], "the mark of this attempt ends now"
    assert log[1][1]["countdown"] == (0.0 if reply is True else 2.0)


def test_time_of_the_first_wait_for_a_result_is_in_the_header(log: Log, decide: Any) -> None:
    decide("requeue")
    with pytest.raises(Ignore):
        run_of(log).on_ended(Ended())
    assert LockHeader.read(log[1][1]["headers"]).unseen == AT
