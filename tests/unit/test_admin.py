"""The operator's answers, on a store in memory; Celery's answers are given."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import time_machine
from celery import Celery

from celery_locks import LockedTask, Locks, LockUnavailable, LockUsageError, admin
from celery_locks.admin import actions as acts
from celery_locks.admin import liveness, stale_locks
from celery_locks.admin.liveness import judge
from celery_locks.integration import control as remote
from celery_locks.integration.worker_inspection import ActiveReport
from celery_locks.store.commands.requests import Renewal
from celery_locks.testing import in_memory_locks
from celery_locks.types import Holder, LockInfo, LockSpec
from celery_locks.validation import QUEUED

NOBODY: dict[str, Any] = {}
APP = Celery("t", broker="memory://", set_as_current=False)


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    yield made
    made.close()


def take(locks: Locks, name: str, token: str = "", **fields: Any) -> Any:
    """Held without a keeper: as by a process that is gone."""
    spec = LockSpec(name, fields.pop("ttl", 60.0), fields.pop("limit", 1))
    alive = fields.pop("alive", 0)
    call = locks.commands.acquire(spec, token or f"token of {name}", Holder(**fields), alive=alive)
    return locks.perform(call)


def held(**fields: Any) -> Holder:
    """A holder of a ttl of 30 s, acquired at 1000 and renewed at 1090 by the server's clock."""
    usual = {"ttl": 30.0, "acquired_at": 1000.0, "expires_at": 1120.0, "task_id": "t"}
    return Holder(token="x", worker="w", pid=7, **{**usual, **fields})


@pytest.fixture
def worker_reports(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`worker_reports(first, second, …)`: what Celery answers, the last one from then on."""

    def answer(*reports: ActiveReport) -> list[Any]:
        asked: list[Any] = []

        def call(app: Any, workers: Any = None, timeout: float = 0, **_: Any) -> ActiveReport:
            asked.append(workers)
            return reports[min(len(asked), len(reports)) - 1]

        monkeypatch.setattr(stale_locks, "inspect_active", call)
        monkeypatch.setattr(liveness, "inspect_active", call)
        return asked

    return answer


def test_find_holders_tells_whether_a_token_still_holds_the_lock(locks: Locks) -> None:
    """What an operator saw a moment ago may be over, and another may have the lock."""
    take(locks, "a", "t1", limit=2, task_id="t")
    take(locks, "a", "t2", limit=2, task_id="u")
    assert {holder.token for holder in admin.find_holders(locks, "a")} == {"t1", "t2"}
    assert [holder.task_id for holder in admin.find_holders(locks, "a", "t2")] == ["u"]
    admin.force_release(locks, "a", "t2")
    assert admin.find_holders(locks, "a", "t2") == ()
    assert admin.find_holders(locks, "free") == ()


def overdue(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every renewal from now on counts as overdue."""
    monkeypatch.setattr(liveness, "_OVERDUE", -1.0)


@pytest.mark.parametrize(
    ("glob", "name", "fits"),
    [
        ("a*", "abc", True),
        ("a*", "ba", False),
        ("a?c", "abc", True),
        ("job[*]", "job[1]", True),
        ("job[1]", "job1", False),
        ("*", "two\nlines", True),
        (".*", "abc", False),
    ],
)
def test_glob_knows_star_and_question_mark_only(glob: str, name: str, fits: bool) -> None:
    """The default name of a lock is task[id]: brackets must mean themselves."""
    assert admin.matcher(glob)(name) is fits


def test_list_filters(locks: Locks) -> None:
    take(locks, "a1", task="mail", worker="w1", task_id="1")
    take(locks, "a2", task="bill", worker="w2", task_id="2")
    take(locks, "b1", task="bill", task_id="3", retries=-1)
    take(locks, "a1", "waiter", task="bill", worker="w2", task_id="4", alive=60)

    def names(**filters: Any) -> set[str]:
        return {lock.name for lock in admin.list_locks(locks, **filters)}

    assert names() == {"a1", "a2", "b1"}
    assert names(glob="a*") == {"a1", "a2"}
    assert names(task="mail") == {"a1"}
    assert names(task="b*") == {"a1", "a2", "b1"}
    assert names(worker="w2") == {"a1", "a2"}
    assert names(worker="w2", task="mail") == set()
    assert names(state="waiting") == {"a1"}
    assert names(state="queued") == {"b1"}
    assert names(state="held") == {"a1", "a2"}


def test_list_refuses_an_unknown_state_at_once(locks: Locks) -> None:
    with pytest.raises(LockUsageError, match="'held' or 'waiting' or 'queued'"):
        admin.list_locks(locks, state="stuck")  # type: ignore[arg-type]


ALIVE = ActiveReport({"w": {"t": 7}})


@pytest.mark.parametrize(
    ("holder", "as_of", "worker_reports", "verdict"),
    [
        (held(), 1091, ALIVE, "running"),
        (held(), 1119, ALIVE, "running"),
        (held(), 1091, ActiveReport({"w": {"u": 7}}), "absent"),
        (held(), 1091, ActiveReport({"v": {}}), "silent"),
        (held(), 1106, ActiveReport({"v": {}}), "gone"),
        (held(), 1106, ActiveReport(trouble="no broker"), "late"),
        (held(), 1091, ActiveReport(trouble="no broker"), "renewed"),
        (held(), 1106, None, "late"),
        (held(), 1091, None, "renewed"),
        (held(retries=-1), 1119, ActiveReport({}), "queued"),
        # Handed over a moment ago, with a claim of a second.
        (held(acquired_at=1119, expires_at=1120), 1119.5, ActiveReport({}), "silent"),
    ],
)
def test_verdict(
    holder: Holder, as_of: float, worker_reports: ActiveReport | None, verdict: str
) -> None:
    """Dead is only who is silent and does not renew either."""
    assert judge(holder, as_of, worker_reports).verdict == verdict


def test_verdict_says_another_pid() -> None:
    other = judge(held(), 1091, ActiveReport({"w": {"t": 8}}))
    assert "but in pid 8" in other.sentence
    assert "in pid 7" in judge(held(), 1091, ALIVE).sentence


def test_verdict_of_the_rest_of_at_least() -> None:
    kept = Holder(token="-x", ttl=30, expires_at=1120, worker="w")
    assert judge(kept, 1119, ActiveReport({})).verdict == "ended"


def test_info_judges_each_holder(locks: Locks, worker_reports: Any) -> None:
    take(locks, "s", "1", limit=2, worker="w", task_id="t", pid=7)
    take(locks, "s", "2", limit=2, worker="v", task_id="u")
    asked = worker_reports(ALIVE)
    detail = admin.info(locks, "s", app=object())
    assert detail
    assert {(one.holder.token, one.verdict) for one in detail.liveness} == {
        ("1", "running"),
        ("2", "silent"),
    }
    assert asked == [{"v", "w"}]
    fields = detail.as_dict()
    assert {h["liveness"]["verdict"] for h in fields["holders"]} == {"running", "silent"}
    assert admin.info(locks, "free") is None


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


def test_why_tells_of_holder_and_waiters(locks: Locks) -> None:
    take(locks, "a", worker="w", task="bill", task_id="t", retries=2)
    take(locks, "a", "second", worker="w", task="bill", task_id="u", alive=60)
    text = "\n".join(admin.why(locks, "a").sentences)
    assert "Lock 'a' is held by task bill[t] on w" in text
    assert "retry 2" in text
    assert "It has 1 waiter:\n  1. task bill[u] on w" in text


def test_why_takes_a_task_id(locks: Locks) -> None:
    take(locks, "a", worker="w", task="bill", task_id="t")
    take(locks, "a", "second", worker="w", task="bill", task_id="u", alive=60)
    assert "Task t holds lock 'a'." in admin.why(locks, "t").sentences
    assert "Task u waits for lock 'a', as number 1 of 1." in admin.why(locks, "u").sentences


def test_why_finds_the_queued_message_by_the_name(locks: Locks) -> None:
    take(locks, "a" + QUEUED, task="bill", task_id="t", retries=-1, ttl=3600)
    why = admin.why(locks, "a")
    assert len(why.locks) == 1
    assert any("no worker has started" in sentence for sentence in why.sentences)


def test_why_of_a_free_lock_tells_what_was_done_to_it(locks: Locks) -> None:
    take(locks, "a", worker="w", task="bill", task_id="t")
    admin.force_release(locks, "a", reason="it hung", by="ann")
    why = admin.why(locks, "a")
    assert why.locks == ()
    text = "\n".join(why.sentences)
    assert "No lock 'a' is held" in text
    assert "ann took lock 'a' from task bill[t] on w" in text
    assert "it hung" in text


def test_why_tells_of_a_skip(locks: Locks) -> None:
    app = Celery("t", broker="memory://", backend="cache+memory://", set_as_current=False)
    value = {"skipped": True, "lock": "a", "holder": Holder(task_id="t", worker="w").as_dict()}
    app.backend.store_result("u", value, "SUCCESS")
    app.conf.worker_enable_remote_control = False
    sentences = admin.why(locks, "u", app).sentences
    assert any(
        "skipped because lock 'a' was held by task [t] on w" in sentence for sentence in sentences
    )


def test_force_release_signs_with_the_user(locks: Locks) -> None:
    take(locks, "a")
    admin.force_release(locks, "a")
    assert admin.history(locks)[0].by == admin.current_operator()
    with pytest.raises(LockUsageError):
        admin.force_release(locks, "")


@pytest.mark.parametrize("act", [admin.force_release, admin.stop])
def test_reason_is_bounded_and_checked(locks: Locks, act: Any) -> None:
    """What goes into the history must come out of it again, quickly and by any reader."""
    take(locks, "a")
    for wrong in ("\ud800", b"bytes", 5, None):
        with pytest.raises(LockUsageError, match="reason"):
            act(locks, "a", reason=wrong)
        assert admin.history(locks) == []
        assert locks.holders("a")
    act(locks, "a", reason="é" * 2_000_000, by="x" * 2_000_000)
    [entry] = admin.history(locks)
    assert (entry.why, entry.by) == ("é" * 500, "x" * 500)


def test_default_grace_is_of_those_at_work(locks: Locks) -> None:
    """A third of the ttl until the holder learns of it, and five seconds to end."""
    take(locks, "a", "t1", limit=3, ttl=31)
    take(locks, "a", "t2", limit=3, ttl=60)
    take(locks, "a", "q3", limit=3, ttl=3600)
    take(locks, "queued", retries=-1, ttl=3600)
    graces = {lock.name: lock.default_grace for lock in admin.list_locks(locks)}
    assert graces == {"a": 25, "queued": 0}
    assert LockInfo("free", 1, ()).default_grace == 0


def test_force_release_without_a_number_waits_as_long_as_the_holder_needs(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds were over before a holder with the usual ttl of 30 s had heard of it."""
    take(locks, "a", ttl=30)
    waited: list[float] = []
    monkeypatch.setattr(acts, "_wait_for_release", lambda *args: waited.append(args[-1]) or [])
    admin.force_release(locks, "a", grace=None)
    admin.force_release(locks, "free", grace=None)
    assert waited == [15]
    for wrong in (-1, float("nan"), "5"):
        with pytest.raises(LockUsageError, match="grace"):
            admin.force_release(locks, "a", grace=wrong)  # type: ignore[arg-type]
    assert locks.holders("a")


def test_remote_control_refuses_a_wrong_reason(locks: Locks) -> None:
    """An answer with the error reaches who asked; an exception is a line in a worker's log."""
    app = Celery("t", broker="memory://", set_as_current=False)
    state = SimpleNamespace(app=app, hostname="w")
    with in_memory_locks(app) as locks:
        take(locks, "a", worker="w")
        for wrong in ("\ud800", 5, ["why"]):
            assert "reason" in remote.release_own_lock(state, "a", wrong)["error"]
        assert "name" in remote.release_own_lock(state, "\ud800")["error"]
        [freed] = remote.release_own_lock(state, "a", "x" * 2_000_000)["ok"]["freed"]
        assert freed["token"] == "token of a"
        [act] = admin.history(locks)
        assert (act.by, act.why) == ("celery control at w", "x" * 500)


def held_for(locks: Locks, clock: Any, *seconds: float, task: str = "bill") -> None:
    """Past holds of a task, one after the other."""
    for number, one in enumerate(seconds):
        take(locks, f"past {number}", task=task, task_id="p", ttl=100_000)
        clock.shift(one)
        token = f"token of past {number}"
        locks.perform(locks.commands.release(f"past {number}", token, past=""))


@pytest.fixture
def clock() -> Iterator[Any]:
    with time_machine.travel(1_800_000_000, tick=False) as moved:
        yield moved


def test_usual_tells_when_it_is_likely_to_end(locks: Locks, clock: Any) -> None:
    held_for(locks, clock, 3, 245, 9000)
    take(locks, "a", worker="w", task="bill", task_id="t", ttl=600)
    clock.shift(185)
    detail = admin.info(locks, "a")
    assert detail
    assert detail.usual == admin.Usual(245.0, 3)
    assert detail.likely_to_end_in == 60.0
    fields = detail.as_dict()
    assert (fields["usual"], fields["likely_to_end_in"]) == ({"held_for": 245.0, "holds": 3}, 60.0)
    why = admin.why(locks, "a").sentences
    assert (
        "It usually takes 4 min 5 s (3 past holds), so it is likely to end in about 1 min 0 s."
        in why
    )


def test_usual_tells_that_it_takes_longer(locks: Locks, clock: Any) -> None:
    held_for(locks, clock, 4)
    take(locks, "a", worker="w", task="bill", task_id="t", ttl=600)
    clock.shift(12)
    detail = admin.info(locks, "a")
    assert detail
    assert detail.likely_to_end_in is None
    assert (
        "It usually takes 4 s (1 past hold); it has already taken 3.0 × as long."
        in admin.why(locks, "a").sentences
    )


def test_usual_is_of_tasks_at_work_only(locks: Locks, clock: Any) -> None:
    """A message in the queue, another task, a plain process: nobody knows."""
    held_for(locks, clock, 60, 60)
    take(locks, "queued", task="bill", task_id="q", retries=-1)
    take(locks, "other", task="mail", task_id="t")
    take(locks, "plain", host="h")
    for name in ("queued", "other", "plain"):
        detail = admin.info(locks, name)
        assert detail
        assert (detail.usual, detail.likely_to_end_in) == (None, None)
        assert not any("usual" in sentence for sentence in admin.why(locks, name).sentences)


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
    assert slow.sentence.startswith("It has been held for 60 s, 12 × the usual 5 s. Worker w is")
    assert slow.as_dict()["usual"] == {"held_for": 5.0, "holds": 3}
    assert asked.count("durations") == 1, "once a shard, not once a lock"
    assert admin.stale(locks, object(), times_usual=13) == []
    assert admin.stale(locks, object(), times_usual=None) == []
    assert len(admin.stale(locks, object(), 59, times_usual=None)) == 2


def lint(locks: Locks, server: dict[str, str] | None = None, **conf: Any) -> set[tuple[str, str]]:
    app = Celery("t", broker="redis://nowhere", set_as_current=False)
    app.conf.update(conf)
    locked: dict[str, Any] = {"base": LockedTask, "shared": False}

    @app.task(name="late", acks_late=True, lock_key="{task}:{n}", **locked)
    def late(n: int) -> None: ...

    @app.task(
        name="waits", time_limit=20, lock_ttl=30, lock_on_conflict="wait", lock_wait=60, **locked
    )
    def waits() -> None: ...

    @app.task(name="open", lock_enabled=False, **locked)
    def open_() -> None: ...

    return {(finding.where, finding.level) for finding in admin.check(locks, app)}


def test_check_of_tasks(locks: Locks) -> None:
    found = lint(locks)
    assert ("waits", "warning") in found
    assert ("waits", "note") in found
    assert ("late", "note") in found
    assert ("late", "warning") not in found
    assert not any(where == "open" for where, _ in found)


def test_check_of_redelivery(locks: Locks) -> None:
    short = {"broker_transport_options": {"visibility_timeout": 20}}
    assert ("late", "warning") in lint(locks, **short)
    assert ("late", "warning") in lint(locks, locks_keep_invisible=False)
    assert ("late", "warning") not in lint(locks, locks_keep_invisible=False, task_time_limit=60)


def test_check_of_settings(locks: Locks) -> None:
    found = lint(locks, task_always_eager=True, worker_enable_remote_control=False)
    assert {("settings", "warning"), ("settings", "note")} <= found


@pytest.mark.parametrize(
    ("fields", "levels"),
    [
        ({"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "role": "master"}, []),
        ({"redis_version": "6.0.9"}, ["error"]),
        ({"redis_version": "7.2.4", "maxmemory_policy": "allkeys-lru"}, ["error"]),
        ({"redis_version": "7.2.4", "maxmemory_policy": "volatile-lru"}, []),
        ({"redis_version": "7.2.4", "role": "slave"}, ["error"]),
        ({}, ["note"]),
    ],
)
def test_check_of_the_server(
    locks: Locks, fields: dict[str, str], levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(locks), "perform", lambda self, call: fields)
    assert [finding.level for finding in admin.check_server(locks)] == levels
