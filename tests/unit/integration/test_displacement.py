"""Which runs a new task displaces, and what others read from its record."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.integration.displacement import (
    DISPLACEMENTS,
    DISPLACES,
    find_superseding,
    plan_displacement,
    stop_displaced,
)
from celery_locks.options import LockOptions
from celery_locks.types import Conflict, Holder

RUN = Holder(token="t1", task_id="old", task="build", worker="w", acquired_at=1_799_999_990.0)
CANCELS = LockOptions(on_conflict="cancel_running", cancel_grace=10, max_displacements=2)
AT = 1_800_000_000.0


def conflict(*holders: Holder) -> Conflict:
    return Conflict("a", holders, 5.0, 1, as_of=AT)


def test_other_policies_displace_nobody() -> None:
    assert plan_displacement(LockOptions(on_conflict="keep_latest"), conflict(RUN)).runs == ()


def test_run_is_displaced_and_named_in_the_record() -> None:
    plan = plan_displacement(CANCELS, conflict(RUN))
    assert (plan.runs, plan.number) == ((RUN,), 1)
    assert plan.extra == {DISPLACES: [["old"], AT, 10]}


@pytest.mark.parametrize(("seconds", "asked_in"), [(5, 0), (10, 0), (25, 15)])
def test_run_is_asked_when_it_has_had_its_time(seconds: float, asked_in: float) -> None:
    """It began 10 s ago: until its time has come it may finish, and nobody asks it."""
    plan = plan_displacement(replace(CANCELS, displace_after=seconds), conflict(RUN))
    assert plan.extra == {DISPLACES: [["old"], AT + asked_in, 10]}
    assert bool(plan.runs) is (asked_in == 0)


def test_of_several_runs_the_youngest_has_its_time() -> None:
    """They are stopped for one task, all or none."""
    young = RUN._replace(task_id="young", acquired_at=AT - 1)
    plan = plan_displacement(replace(CANCELS, displace_after=4), conflict(RUN, young))
    assert plan.extra == {DISPLACES: [["old", "young"], AT + 3, 10]}


def test_message_that_has_not_started_is_not_displaced() -> None:
    queued = RUN._replace(retries=-1, token="kold")
    assert plan_displacement(CANCELS, conflict(queued)).runs == ()


@pytest.mark.parametrize(("before", "is_displaced"), [(1, True), (2, False), ("x", True)])
def test_after_too_many_displacements_a_run_may_finish(before: Any, is_displaced: bool) -> None:
    run = RUN._replace(extra={DISPLACEMENTS: before})
    assert bool(plan_displacement(CANCELS, conflict(run)).runs) is is_displaced


class Server:
    """Locks whose one lock has a run, and a parked message with the given record."""

    def __init__(self, written: Any, at: float = AT) -> None:
        self.commands = SimpleNamespace(info=lambda name: name, stop=self._stop)
        waiter = Holder(task_id="new", retries=-1, extra={DISPLACES: written})
        self._info = SimpleNamespace(holders=(RUN,), waiters=(waiter,), as_of=at)
        self.asked: list[tuple[str, str]] = []

    def _stop(self, name: str, token: str, by: str, why: str, *, request_id: str) -> str:
        self.asked.append((token, by))
        return "stop"

    def perform(self, name: str) -> Any:
        return self._info if name == "a" else None


class Control:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def broadcast(self, command: str, arguments: Any) -> None:
        assert command == "revoke"
        assert arguments["terminate"]
        self.sent.append(tuple(arguments[it] for it in ("task_id", "signal", "superseded_by")))


@pytest.mark.parametrize(
    ("waited", "asked", "signals"),
    [
        (-1, [], []),
        (0, [("t1", "task new")], []),
        (14, [("t1", "")], []),
        (15, [], ["SIGTERM"]),
        (29, [], ["SIGTERM"]),
        (30, [], ["SIGKILL"]),
    ],
)
def test_run_is_asked_to_stop_and_then_terminated(
    waited: float, asked: list[Any], signals: list[str]
) -> None:
    """Asked again while it has its grace, in case nobody has; the history has it once."""
    app, server = SimpleNamespace(control=Control()), Server([["old"], AT, 15], AT + waited)
    stop_displaced(app, server, ["a", "gone"])  # type: ignore[arg-type]
    assert server.asked == asked
    assert app.control.sent == [(["old"], signal, "new") for signal in signals]


@pytest.mark.parametrize(("waited", "signal"), [(2, "SIGTERM"), (9.9, "SIGTERM"), (10, "SIGKILL")])
def test_short_grace_leaves_time_for_both_signals(waited: float, signal: str) -> None:
    """Workers look every few seconds: the first look after the grace must send SIGTERM."""
    app, server = SimpleNamespace(control=Control()), Server([["old"], AT, 2], AT + waited)
    stop_displaced(app, server, ["a"])  # type: ignore[arg-type]
    assert app.control.sent == [(["old"], signal, "new")]


def test_run_finds_who_supersedes_it() -> None:
    server: Any = Server([["old"], AT, 10])
    assert find_superseding(server, "a", "old") == "new"
    assert find_superseding(Server([["old"], AT + 1, 10]), "a", "old") == "", "not asked yet"  # type: ignore[arg-type]
    assert find_superseding(server, "a", "other") == ""
    assert find_superseding(server, "gone", "old") == ""


@pytest.mark.parametrize("written", [None, "x", [], [1, 2, 3], [["old"]]])
def test_record_of_another_form_displaces_nobody(written: Any) -> None:
    server: Any = Server(written)
    assert find_superseding(server, "a", "old") == ""
