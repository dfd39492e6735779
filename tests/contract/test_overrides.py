"""What operators set, a pause or a limit, wins over every caller; and nobody is lost by it."""

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_locks import Conflict, Holder, LockConflict, Locks, LockUsageError, admin
from celery_locks.admin.metric_sums import read_tallies
from celery_locks.store.commands.locks import reservation_token
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.contract.test_queue import in_line
from tests.support.waiting import wait_until


def names(locks: Locks) -> set[str]:
    return {lock.name for lock in admin.list_locks(locks)}


def lapse_overrides(backend: Backend, name: str) -> None:
    """Pretend that every pause and limit of a lock has ended a moment ago."""
    key = backend.key("h:", name)
    for member in backend.raw.zrange(key, 0, -1):
        if member.startswith(b"~"):
            kind, _, rest = member.split(b" ", 2)
            backend.raw.zrem(key, member)
            backend.raw.zadd(key, {b" ".join((kind, b"1000", rest)): float("inf")})


def test_paused_lock_accepts_no_new_holder_and_says_why(api: LocksApi, backend: Backend) -> None:
    admin.pause(backend.locks(), "a", seconds=3600, reason="bad data", by="ops")
    answer = api.try_acquire("a")
    assert isinstance(answer, Conflict)
    assert answer.pause
    assert (answer.pause.by, answer.pause.why, answer.holders) == ("ops", "bad data", ())
    assert answer.pause.until
    assert 3590 < answer.pause.until - answer.as_of <= 3600
    assert "paused by ops, until " in str(answer)
    assert str(answer).endswith(": bad data")
    assert Conflict.from_dict(answer.as_dict()).pause == answer.pause
    with pytest.raises(LockConflict, match="paused by ops"), api.hold("a"):
        pass


def test_pause_lets_a_holder_renew_and_finish(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    done = admin.pause(backend.locks(), "a", reason="stop")
    assert (done.was_set, done.holders, done.waiters) == (False, 1, 0)
    api.renew(lease)
    assert api.acquire("a") is None
    assert api.release(lease)
    assert api.acquire("a") is None
    assert names(backend.locks()) == {"a"}


@pytest.mark.usefixtures("without_repoll")
def test_waiter_stays_in_line_and_gets_the_lock_on_resume(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    admin.pause(backend.locks(), "a", reason="stop")
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 1)
    assert admin.resume(backend.locks(), "a").was_set
    assert waiter.result(timeout=20).token == api.holders("a")[0].token
    assert not admin.resume(backend.locks(), "a").was_set


@pytest.mark.usefixtures("without_repoll")
def test_release_of_a_paused_lock_hands_it_to_nobody(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    lease = api.acquire("a", ttl=60)
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 1)
    admin.pause(backend.locks(), "a", reason="stop")
    api.release(lease)
    assert api.holders("a") == ()
    in_line(api, "a", 1)
    assert api.acquire("a") is None, "nor may a newcomer pass the waiter"
    admin.resume(backend.locks(), "a")
    assert waiter.result(timeout=20)


def test_pause_ends_by_itself_and_the_first_waiter_is_first(
    api: LocksApi, backend: Backend
) -> None:
    locks = backend.locks()
    admin.pause(locks, "a", seconds=60, reason="stop")
    queued = locks.commands.acquire(LockSpec("a"), "first", Holder(), alive=60)
    assert isinstance(locks.perform(queued), Conflict)
    lapse_overrides(backend, "a")
    assert api.acquire("a") is None
    assert [holder.token for holder in api.holders("a")] == ["first"]
    info = api.info("a")
    assert info
    assert info.pause is None


@pytest.mark.usefixtures("without_repoll")
def test_higher_limit_of_an_operator_lets_waiters_in(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    assert api.acquire("a", ttl=60)
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 1)
    admin.set_limit(backend.locks(), "a", 2, reason="more")
    assert waiter.result(timeout=20)
    info = api.info("a")
    assert info
    assert (info.limit, info.limit_override and info.limit_override.why) == (2, "more")


def test_lower_limit_of_an_operator_applies_to_every_caller(
    api: LocksApi, backend: Backend
) -> None:
    locks = backend.locks()
    leases = [api.acquire("s", limit=5) for _ in range(3)]
    admin.set_limit(locks, "s", 2, reason="less")
    assert api.acquire("s", limit=5) is None
    assert api.acquire("s", limit=9) is None
    for lease in leases:
        api.renew(lease)
    api.release(leases.pop())
    assert api.acquire("s", limit=5) is None, "two are left"
    api.release(leases.pop())
    assert api.acquire("s", limit=5)
    assert admin.reset_limit(locks, "s").was_set
    assert api.acquire("s", limit=5)
    assert not admin.reset_limit(locks, "s").was_set


def test_limit_and_pause_are_apart(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    admin.set_limit(locks, "s", 2, reason="two")
    admin.pause(locks, "s", reason="none")
    assert api.acquire("s") is None
    admin.resume(locks, "s")
    assert api.acquire("s")
    assert api.acquire("s")
    assert api.acquire("s") is None


def test_nothing_is_left_after_resume_and_reset(backend: Backend) -> None:
    """The name leaves the index too, although the pause had no end."""
    locks = backend.locks()
    for _ in range(2):  # the second replaces the first
        admin.pause(locks, "a", reason="stop")
        admin.set_limit(locks, "a", 3, reason="three")
    admin.resume(locks, "a")
    admin.reset_limit(locks, "a")
    admin.pause(locks, "a*", reason="stop")
    admin.resume(locks, "a*")
    assert backend.keys() <= {"fence", "log"}
    for key in backend._scan(f"{backend.prefix}:*fence"):
        assert backend.raw.get(key).isdigit()


def test_holder_that_dies_after_a_pause_is_forgotten_in_time(
    api: LocksApi, backend: Backend
) -> None:
    """A pause without an end must not keep the name in the index for ever."""
    lease = api.acquire("a")
    admin.pause(backend.locks(), "a", reason="stop")
    admin.resume(backend.locks(), "a")
    score = backend.raw.zscore(backend.key("index", "a"), "a")
    assert score == backend.raw.zscore(backend.key("h:", "a"), lease.token)


def test_pattern_pauses_names_that_nobody_has_used(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    admin.pause(locks, "invoice:*", reason="bad data", by="ops")
    answer = api.try_acquire("invoice:42")
    assert isinstance(answer, Conflict)
    assert answer.pause
    assert (answer.pause.glob, answer.pause.by) == ("invoice:*", "ops")
    assert api.acquire("report:42")
    info = api.info("invoice:7")
    assert info
    assert info.pause
    [listed] = admin.list_patterns(locks)
    assert (listed.glob, listed.why) == ("invoice:*", "bad data")
    assert names(locks) == {"report:42"}, "a refused caller leaves nothing behind"
    assert admin.resume(locks, "invoice:*").was_set
    assert api.acquire("invoice:42")
    assert admin.list_patterns(locks) == []


def test_pattern_pauses_locks_in_use(api: LocksApi, backend: Backend) -> None:
    """A semaphore has free slots, and a release must not hand the lock over."""
    locks = backend.locks()
    lease = api.acquire("s:1", limit=3)
    done = admin.pause(locks, "s:*", reason="stop")
    assert (done.holders, [lock.name for lock in done.locks]) == (1, ["s:1"])
    assert api.acquire("s:1", limit=3) is None
    api.renew(lease)
    queued = locks.commands.acquire(LockSpec("s:1", limit=3), "first", Holder(), alive=60)
    assert isinstance(locks.perform(queued), Conflict)
    api.release(lease)
    assert api.holders("s:1") == ()
    admin.resume(locks, "s:*")
    assert [holder.token for holder in api.holders("s:1")] == ["first"]


@pytest.mark.usefixtures("without_repoll")
def test_waiter_behind_a_pattern_is_first_on_resume(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    locks = backend.locks()
    admin.pause(locks, "a*", reason="stop")
    waiter = in_thread(other.acquire, "abc", wait=30, ttl=60)
    in_line(api, "abc", 1)
    admin.resume(locks, "a*")
    assert waiter.result(timeout=20).token == api.holders("abc")[0].token


def test_pattern_that_has_ended_is_forgotten(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks(shards=1)
    mine = backend.locks(shards=1)
    admin.pause(locks, "a*", seconds=60, reason="stop")
    key = f"{locks.commands.roots[0]}patterns"
    value = backend.raw.hget(key, "a*").split(b" ", 1)[1]
    backend.raw.hset(key, "a*", b"1000 " + value)
    assert admin.list_patterns(locks) == []
    assert mine.acquire("abc")
    assert not backend.raw.exists(key)
    admin.pause(locks, "a*", seconds=60, reason="stop")
    value = backend.raw.hget(key, "a*").split(b" ", 1)[1]
    backend.raw.hset(key, "a*", b"1000 " + value)
    assert admin.trim(locks, dry_run=True) == 1
    assert admin.trim(locks) == 1
    assert not backend.raw.exists(key)
    assert backend.raw.get(f"{locks.commands.roots[0]}fence").isdigit()


def test_fences_rise_while_a_pattern_is_set(api: LocksApi, backend: Backend) -> None:
    admin.pause(backend.locks(), "a*", reason="stop")
    fences = []
    for _ in range(3):
        lease = api.acquire("b")
        fences.append(lease.fence)
        api.release(lease)
    assert fences == sorted(set(fences))


def test_reservation_is_granted_while_paused(backend: Backend) -> None:
    """Nothing runs by it: calls are published, and duplicates recognised, during a pause."""
    locks = backend.locks()
    admin.pause(locks, "a*", reason="stop")
    message, run = Holder(task_id="j", retries=-1), Holder(task_id="j")
    reserve = locks.commands.acquire(LockSpec("a"), reservation_token("j"), message)
    assert isinstance(locks.perform(reserve), int)
    refused = locks.perform(locks.commands.acquire(LockSpec("a"), "run", run))
    assert isinstance(refused, Conflict)
    assert refused.pause
    assert refused.holders == (), "its own reservation is not in its way"
    admin.resume(locks, "a*")
    assert isinstance(locks.perform(locks.commands.acquire(LockSpec("a"), "run", run)), int)


def test_publisher_that_waits_is_not_stopped_by_a_pause(backend: Backend) -> None:
    """With ``max_queued`` a publisher waits for a reservation, behind which nothing runs."""
    locks = backend.locks()
    reserve = [
        locks.commands.acquire(
            LockSpec("a"), reservation_token(job), Holder(task_id=job, retries=-1), alive=60
        )
        for job in "jk"
    ]
    assert isinstance(locks.perform(reserve[0]), int)
    assert isinstance(locks.perform(reserve[1]), Conflict)
    admin.pause(locks, "a", reason="stop")
    locks.perform(locks.commands.release("a", reservation_token("j")))
    assert [holder.token for holder in locks.holders("a")] == [reservation_token("k")]


def test_force_release_takes_it_from_holders_and_keeps_the_pause(
    api: LocksApi, backend: Backend
) -> None:
    locks = backend.locks()
    lease = api.acquire("a")
    admin.pause(locks, "a", reason="stop")
    assert [holder.token for holder in admin.force_release(locks, "a")] == [lease.token]
    assert api.acquire("a") is None
    assert [holder.token for holder in admin.stop(locks, "a")] == []
    assert admin.trim(locks) == 0
    assert api.acquire("a") is None


def test_history_says_who_and_why(backend: Backend) -> None:
    locks = backend.locks()
    admin.pause(locks, "a", seconds=3600, reason="bad data", by="ann")
    admin.resume(locks, "a", reason="good again", by="bob")
    admin.resume(locks, "a", by="nobody: it is not paused")
    admin.set_limit(locks, "a", 5, reason="quota", by="ann")
    admin.reset_limit(locks, "a", by="bob")
    admin.pause(locks, "b*", reason="all", by="ann")
    admin.resume(locks, "b*", by="bob")
    entries = list(reversed(admin.history(locks)))
    found = [(entry.act, entry.name, entry.by, entry.why, entry.limit) for entry in entries]
    assert sorted(found[:4]) == sorted(
        [
            ("pause", "a", "ann", "bad data", None),
            ("resume", "a", "bob", "good again", None),
            ("limit", "a", "ann", "quota", 5),
            ("limit_reset", "a", "bob", "", 1),
        ]
    )
    assert sorted(found[4:]) == [
        ("pause", "b*", "ann", "all", None),
        ("resume", "b*", "bob", "", None),
    ]
    sentences = [admin.describe_entry(entry).split(": ", 1)[1] for entry in entries]
    assert any(s.startswith("ann paused 'a' until ") and "bad data" in s for s in sentences)
    assert "ann set the limit of 'a' to 5. Reason: quota" in sentences
    assert "bob reset the limit of 'a'. No reason was given." in sentences


def test_repeated_override_is_done_once(backend: Backend) -> None:
    """The reply of the first was lost; another operator resumed the lock in between."""
    from celery_locks.store.commands.admin import AdminCommands
    from celery_locks.types import Override

    locks = backend.locks()
    pause = Override(0, "ann", "why", 0.0)
    call = AdminCommands(locks.commands).override("a", "pause", pause, request_id="r")
    first = locks.perform(call)
    admin.resume(locks, "a", by="bob")
    assert locks.perform(call) == first
    assert locks.info("a") is None


def test_gauge_counts_paused_locks_and_patterns(backend: Backend) -> None:
    locks = backend.locks()
    admin.pause(locks, "a", reason="stop")
    admin.set_limit(locks, "b", 2, reason="two")
    admin.pause(locks, "c*", reason="stop")
    assert sum(tally.paused for tally in read_tallies(locks).values()) == 2
    assert sum(tally.held for tally in read_tallies(locks).values()) == 0


def test_list_shows_what_is_paused(backend: Backend) -> None:
    locks = backend.locks()
    admin.pause(locks, "a", reason="stop")
    admin.set_limit(locks, "b", 2, reason="two")
    assert names(locks) == {"a", "b"}
    assert [lock.name for lock in admin.list_locks(locks, state="paused")] == ["a"]
    [sentence] = [s for s in admin.why(locks, "a").sentences if "paused" in s and "Nobody can" in s]
    assert "stop" in sentence
    assert admin.stale(locks) == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1h"])
def test_wrong_duration_is_refused(locks: Locks, seconds: Any) -> None:
    with pytest.raises(LockUsageError, match="seconds"):
        admin.pause(locks, "a", seconds=seconds, reason="stop")


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5"])
def test_wrong_limit_is_refused(locks: Locks, limit: Any) -> None:
    with pytest.raises(LockUsageError, match="limit is"):
        admin.set_limit(locks, "a", limit, reason="stop")


def test_patterns_are_bounded(backend: Backend) -> None:
    """Each is compared with every name that is acquired."""
    locks = backend.locks(shards=1)
    for number in range(100):
        admin.pause(locks, f"{number}*", reason="stop")
    with pytest.raises(LockUsageError, match="too many patterns"):
        admin.pause(locks, "one more*", reason="stop")
    admin.pause(locks, "7*", reason="again")
    admin.resume(locks, "7*")
    admin.pause(locks, "one more*", reason="stop")


LETTERS = st.text(alphabet=st.sampled_from([*"ab%.-^$[]()+\\é", "日", "\n", "\0"]), max_size=6)
GLOBS = st.text(alphabet=st.sampled_from([*"ab*?*?%.-^$[]()+\\é", "日", "\n", "\0"]), max_size=8)


def test_server_and_python_agree_about_globs(backend: Backend) -> None:
    """The server refuses callers by its matcher; names in use are found by Python's."""
    from celery_locks.store.scripts import _read

    if backend.__class__.__name__ == "ClusterBackend":
        pytest.skip("the script has no key")
    script = f"{_read('lib/patterns.lua')}\nreturn glob_matches(ARGV[1], ARGV[2]) and 1 or 0"

    @settings(max_examples=200, deadline=None, database=None)
    @given(GLOBS, LETTERS)
    def check(glob: str, name: str) -> None:
        assert bool(backend.raw.eval(script, 0, glob, name)) is admin.matcher(glob)(name)

    check()
    everything = string.printable * 5
    assert backend.raw.eval(script, 0, "*a" * 60 + "b", "a" * 500) == 0, "and it takes no time"
    assert backend.raw.eval(script, 0, "*", everything) == 1


def test_waiter_that_gives_up_leaves_a_paused_lock(api: LocksApi, backend: Backend) -> None:
    admin.pause(backend.locks(), "a*", reason="stop")
    assert api.acquire("abc", wait=0.05) is None
    wait_until(
        lambda: not getattr(api.info("abc"), "waiters", ()), 10, what="the queue to be empty"
    )
    admin.resume(backend.locks(), "a*")
    assert api.acquire("abc")
