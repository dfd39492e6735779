"""Which runs a new task displaces, and what others read from its record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.integration import displacement
from celery_locks.integration.displacement import (
    DISPLACEMENTS,
    DISPLACES,
    find_superseding,
    plan_displacement,
    terminate_late,
)
from celery_locks.options import LockOptions
from celery_locks.types import Conflict, Holder

RUN = Holder(token="t1", task_id="old", task="build", worker="w")
CANCELS = LockOptions(on_conflict="cancel_running", cancel_grace=10, max_displacements=2)
AT = 1_800_000_000.0


def conflict(*holders: Holder) -> Conflict:
    return Conflict("a", holders, 5.0, 1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moments = [AT]
    monkeypatch.setattr(displacement.time, "time", lambda: moments[0])
    return moments


def test_other_policies_displace_nobody() -> None:
    assert plan_displacement(LockOptions(on_conflict="keep_latest"), conflict(RUN)).runs == ()


def test_run_is_displaced_and_named_in_the_record() -> None:
    plan = plan_displacement(CANCELS, conflict(RUN))
    assert (plan.runs, plan.number) == ((RUN,), 1)
    assert plan.extra == {DISPLACES: [["old"], AT, 10]}


def test_message_that_has_not_started_is_not_displaced() -> None:
    queued = RUN._replace(retries=-1, token="kold")
    assert plan_displacement(CANCELS, conflict(queued)).runs == ()


@pytest.mark.parametrize(("before", "is_displaced"), [(1, True), (2, False), ("x", True)])
def test_after_too_many_displacements_a_run_may_finish(before: Any, is_displaced: bool) -> None:
    run = RUN._replace(extra={DISPLACEMENTS: before})
    assert bool(plan_displacement(CANCELS, conflict(run)).runs) is is_displaced


class Server:
    """Locks whose one lock has a run, and a parked message with the given record."""

    def __init__(self, written: Any) -> None:
        self.commands = SimpleNamespace(info=lambda name: name)
        waiter = Holder(task_id="new", retries=-1, extra={DISPLACES: written})
        self._info = SimpleNamespace(holders=(RUN,), waiters=(waiter,))

    def perform(self, name: str) -> Any:
        return self._info if name == "a" else None


class Control:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def revoke(self, ids: list[str], terminate: bool, signal: str) -> None:
        self.sent.append((ids, terminate, signal))


@pytest.mark.parametrize(
    ("waited", "signals"), [(9, []), (10, ["SIGTERM"]), (19, ["SIGTERM"]), (20, ["SIGKILL"])]
)
def test_run_that_does_not_stop_is_terminated(
    clock: list[float], waited: float, signals: list[str]
) -> None:
    app = SimpleNamespace(control=Control())
    clock[0] = AT + waited
    terminate_late(app, Server([["old"], AT, 10]), ["a", "gone"])  # type: ignore[arg-type]
    assert app.control.sent == [(["old"], True, signal) for signal in signals]


def test_run_finds_who_supersedes_it() -> None:
    server: Any = Server([["old"], AT, 10])
    assert find_superseding(server, "a", "old") == "new"
    assert find_superseding(server, "a", "other") == ""
    assert find_superseding(server, "gone", "old") == ""


@pytest.mark.parametrize("written", [None, "x", [], [1, 2, 3], [["old"]]])
def test_record_of_another_form_displaces_nobody(written: Any) -> None:
    server: Any = Server(written)
    assert find_superseding(server, "a", "old") == ""
