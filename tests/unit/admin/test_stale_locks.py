"""Locks whose holder is gone or takes too long; the workers' answers are given."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_locks import Locks, LockUnavailable, admin
from celery_locks.admin import liveness, stale_locks
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.store.commands.replies import Renewal
from tests.support.held_locks import held_for, take

NOBODY: dict[str, Any] = {}
APP = Celery("t", broker="memory://", set_as_current=False)


def overdue(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every renewal from now on counts as overdue."""
    monkeypatch.setattr(liveness, "_OVERDUE", -1.0)


ALIVE = ActiveReport({"w": {"t": 7}})


def test_stale_asks_twice(locks: Locks, worker_reports: Any) -> None:
    """A worker may be slow to answer once."""
    take(locks, "a", worker="w", task_id="t")
    take(locks, "b", worker="v", task_id="u")
    asked = worker_reports(ActiveReport(NOBODY), ALIVE)
    assert [one.name for one in admin.stale(locks, object())] == ["b"]
    assert asked[0] is None
    assert sorted(asked[1]) == ["v", "w"]


def test_stale_finds_the_old(locks: Locks, worker_reports: Any) -> None:
    take(locks, "a", worker="w", task_id="t")
    worker_reports(ALIVE)
    assert admin.stale(locks, object(), older_than=60) == []
    [old] = admin.stale(locks, object(), older_than=-1)
    assert old.is_old
    assert "held for" in old.sentence


def test_sweep_frees_the_gone_only(
    locks: Locks, worker_reports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who answers, nor who may yet renew, nor a queued message, nor a plain process."""
    take(locks, "alive", worker="w", task_id="t")
    take(locks, "dead", worker="v", task_id="u")
    take(locks, "queued", task_id="q", retries=-1)
    take(locks, "plain", host="h", pid=1)
    worker_reports(ALIVE)
    swept = admin.sweep(locks, APP)
    assert [one.name for one in swept.skipped] == ["dead"]
    assert swept.freed == ()
    overdue(locks, monkeypatch)
    assert [one.name for one in admin.sweep(locks, APP, dry_run=True).freed] == ["dead"]
    assert locks.is_locked("dead")
    swept = admin.sweep(locks, APP, by="cron")
    assert [one.name for one in swept.freed] == ["dead"]
    assert {lock.name for lock in admin.list_locks(locks)} == {"alive", "queued", "plain"}
    [act] = admin.history(locks)
    assert (act.name, act.by) == ("dead", "cron")
    assert "does not answer" in act.why


def test_sweep_spares_who_came_back_since_he_was_judged(
    locks: Locks, worker_reports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(locks, "dead", "1", worker="v", task_id="u")
    overdue(locks, monkeypatch)
    worker_reports(ALIVE)
    judge_all = stale_locks._of_silent_workers

    def judge_then_renew(*asked: Any) -> Any:
        found = judge_all(*asked)
        locks.perform(locks.commands.renew([Renewal("dead", "1", 77.0)], 1.0))
        return found

    monkeypatch.setattr(stale_locks, "_of_silent_workers", judge_then_renew)
    assert admin.sweep(locks, APP).freed == ()
    assert locks.is_locked("dead")


def test_stale_says_that_nobody_could_be_asked(locks: Locks, worker_reports: Any) -> None:
    take(locks, "a", worker="v", task_id="u")
    worker_reports(ActiveReport(trouble="the broker gives no answer"))
    assert admin.stale(locks, object()).inconclusive.startswith(
        "It is unknown which workers are alive: the broker gives no answer."
    )


def test_sweep_refuses_when_nobody_can_be_asked(
    locks: Locks, worker_reports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker, no verdict: everything would look dead."""
    take(locks, "dead", worker="v", task_id="u")
    overdue(locks, monkeypatch)
    worker_reports(ActiveReport(trouble="the broker gives no answer"))
    with pytest.raises(LockUnavailable, match="which workers are alive"):
        admin.sweep(locks, APP)
    assert locks.is_locked("dead")


def test_stale_finds_those_far_beyond_the_usual(
    locks: Locks, worker_reports: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_for(locks, clock, 4, 5, 6)
    held_for(locks, clock, 2, task="rare")
    take(locks, "slow", worker="w", task="bill", task_id="t", ttl=6000)
    take(locks, "once before", worker="w", task="rare", task_id="t", ttl=6000)
    worker_reports(ALIVE)
    clock.shift(40)
    assert admin.stale(locks, object()) == []
    clock.shift(20)
    asked: list[str] = []
    perform = locks.perform
    monkeypatch.setattr(
        locks, "perform", lambda call: asked.append(call.script.name) or perform(call)
    )
    [slow] = admin.stale(locks, object())
    assert (slow.name, slow.is_old, slow.usual) == ("slow", False, admin.Usual(5.0, 3))
    assert slow.sentence.startswith(
        "It has been held for 1 min 0 s, 12 × the usual 5 s. Worker w is"
    )
    assert slow.as_dict()["usual"] == {"held_for": 5.0, "holds": 3}
    assert asked.count("durations") == 1, "once a shard, not once a lock"
    assert admin.stale(locks, object(), times_usual=13) == []
    assert admin.stale(locks, object(), times_usual=None) == []
    assert len(admin.stale(locks, object(), 59, times_usual=None)) == 2


def test_the_longest_hold_is_first(locks: Locks, worker_reports: Any, clock: Any) -> None:
    take(locks, "oldest", worker="w", task="bill", task_id="t1", ttl=6000)
    clock.shift(10)
    take(locks, "a newer one", worker="w", task="bill", task_id="t2", ttl=6000)
    clock.shift(10)
    take(locks, "another", worker="w", task="bill", task_id="t3", ttl=6000)
    worker_reports(ALIVE)
    names = [lock.name for lock in admin.stale(locks, object(), older_than=0)]
    assert names == ["oldest", "a newer one", "another"]
