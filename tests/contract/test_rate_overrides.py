"""What operators set for a rate, a pause or another rate, wins over every caller.

The rates are slow enough that a busy machine does not reach the next start. Time that has to pass
is taken out of what the server keeps.
"""

import json
import time
from itertools import pairwise
from typing import Any

import pytest

from celery_locks import Lease, Locks, LockUsageError, RateLimited, admin
from celery_locks.admin.metric_sums import read_tallies
from celery_locks.core.requests import new_token
from celery_locks.store.commands.rates import RateCommands
from celery_locks.store.commands.replies import Limited
from celery_locks.types import Override
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.contract.test_rates import check, start

TEN_YEARS = 10 * 365 * 86400


def lapse(backend: Backend, name: str, field: str) -> None:
    """Pretend that what was set has ended a moment ago."""
    key = backend.locks().commands.root(name) + "r:" + name
    _, rest = backend.raw.hget(key, field).split(b" ", 1)
    backend.raw.hset(key, field, b"1000 " + rest)


def come_back(backend: Backend, name: str, job: str) -> None:
    """Pretend that the time is over after which a job comes back."""
    key = backend.locks().commands.root(name) + "d:" + name
    backend.raw.zadd(key, {f"j{job}": -(time.time() - 1) * 1e6})


def test_paused_rate_lets_nothing_start_and_says_why(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    done = admin.pause_rate(locks, "api", reason="wrong data", by="ann")
    assert (done.was_set, done.locks) == (False, ())
    assert done.rate
    assert done.rate.pause
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "1/s", wait=5)
    assert str(raised.value) == "the rate of 'api' is paused by ann: wrong data"
    assert raised.value.pause
    assert (raised.value.pause.by, raised.value.pause.until) == ("ann", None)
    assert raised.value.retry_after == 30
    api.throttle("another", "1/s")
    assert admin.resume_rate(locks, "api", by="ann").was_set
    api.throttle("api", "1/s")
    assert not admin.resume_rate(locks, "api", by="ann").was_set


def test_error_of_a_paused_rate_survives_a_json_result_backend(locks: Locks) -> None:
    admin.pause_rate(locks, "api", reason="wrong data", by="ann")
    with pytest.raises(RateLimited) as raised:
        locks.throttle("api", "1/s")
    restored = RateLimited(*json.loads(json.dumps(raised.value.args)))
    assert str(restored) == str(raised.value)
    assert restored.pause == raised.value.pause


def test_pause_with_an_end_says_when_and_ends_by_itself(api: LocksApi, backend: Backend) -> None:
    admin.pause_rate(backend.locks(), "api", seconds=3600, reason="stop")
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "1/s", wait=5)
    assert 3590 < raised.value.retry_after <= 3600
    lapse(backend, "api", "pause")
    api.throttle("api", "1/s")
    assert admin.list_rates(backend.locks()) == []


def test_throttle_with_the_patience_for_it_waits_for_the_end_of_a_pause(
    api: LocksApi, backend: Backend
) -> None:
    admin.pause_rate(backend.locks(), "api", seconds=0.5, reason="stop")
    began = time.monotonic()
    api.throttle("api", "1/s", wait=20)
    assert time.monotonic() - began >= 0.45


def test_delayed_jobs_of_a_paused_rate_come_back_apart_and_use_up_nothing(
    backend: Backend, locks: Locks
) -> None:
    """Nobody knows the end, so no start is reserved; 10,000 jobs are 100 messages in a second."""
    admin.pause_rate(locks, "api", reason="stop")
    answers = [start(locks, check("api"), job=job) for job in "abc"]
    assert all(isinstance(answer, Limited) and answer.is_promised for answer in answers)
    assert all(answer.pause.why == "stop" for answer in answers)
    assert 29 < answers[0].seconds <= 30
    key = locks.commands.root("api") + "d:api"
    times = {job: -at for job, at in backend.raw.zrange(key, 0, -1, withscores=True)}
    assert all(times[b] - times[a] >= 10_000 for a, b in pairwise((b"ja", b"jb", b"jc")))
    [info] = admin.list_rates(locks)
    assert (info.delayed, info.limits) == (3, ("1/h",))
    assert not any(caller.is_promised for caller in info.callers)
    assert {caller.task_id for caller in info.callers} == {"a", "b", "c"}
    come_back(backend, "api", "a")
    assert 29 < start(locks, check("api"), job="a").seconds < 40, "still paused: it goes again"
    admin.resume_rate(locks, "api")
    for job in "abc":
        come_back(backend, "api", job)
    lease = start(locks, check("api"), job="b")
    assert isinstance(lease, Lease), "the first one that comes starts"
    locks.release(lease)
    promised = [start(locks, check("api"), job=job) for job in "ac"]
    assert [round(answer.seconds / 3600) for answer in promised] == [1, 2]
    assert [answer.pause for answer in promised] == [None, None]
    [info] = admin.list_rates(locks)
    assert [caller.is_promised for caller in info.callers] == [True, True]


def test_started_caller_leaves_the_list_after_a_pause(backend: Backend, locks: Locks) -> None:
    admin.pause_rate(locks, "api", reason="stop")
    start(locks, check("api"), job="a")
    admin.resume_rate(locks, "api")
    assert [info.delayed for info in admin.list_rates(locks)] == [1]
    locks.release(start(locks, check("api"), job="a"))
    assert admin.list_rates(locks) == []


def test_promise_from_before_a_pause_is_kept_if_its_time_comes_later(locks: Locks) -> None:
    start(locks, check("api"), name="first")
    promised = start(locks, check("api"), job="b")
    admin.pause_rate(locks, "api", reason="stop")
    again = start(locks, check("api"), job="b")
    assert promised.seconds - 60 < again.seconds <= promised.seconds
    assert again.pause
    admin.resume_rate(locks, "api")
    assert 3000 < start(locks, check("api"), job="b").seconds <= promised.seconds


def test_paused_rate_lets_no_other_rate_make_a_promise(backend: Backend) -> None:
    """A start that is reserved in another rate would be lost."""
    locks = backend.locks(shards=1)
    start(locks, check("total"), name="first")
    admin.pause_rate(locks, "tenant", reason="stop")
    answer = start(locks, check("total"), check("tenant"), job="b")
    assert (answer.rate, bool(answer.pause)) == ("tenant", True)
    assert round(start(locks, check("total"), job="c").seconds / 3600) == 1


def test_pause_counts_for_rates_in_other_shards(backend: Backend) -> None:
    locks = backend.locks(shards=2)
    for number in range(4):
        admin.pause_rate(locks, f"rate{number}", reason="stop")
        answer = start(locks, check(f"rate{number}"), name="job", job="b")
        assert (answer.rate, bool(answer.pause)) == (f"rate{number}", True)
    assert locks.info("job") is None
    assert [entry.name for entry in admin.history(locks)] == [f"rate{n}" for n in (3, 2, 1, 0)]


def test_operators_rate_takes_the_place_of_every_callers(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    done = admin.set_rate(locks, "api", "2/h", reason="they throttle us", by="ann")
    assert done.rate
    assert done.rate.rate_override
    assert str(done.rate.rate_override) == "limited to 2/h by ann: they throttle us"
    api.throttle("api", ("100/s", "1/d"), burst=50)
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "100/s", burst=50)
    assert 1700 < raised.value.retry_after <= 1801
    assert raised.value.pause is None
    assert admin.reset_rate(locks, "api").was_set
    api.throttle("api", "100/s", burst=50)
    assert not admin.reset_rate(locks, "api").was_set


def test_operators_rate_may_be_faster_and_have_several_limits(
    api: LocksApi, backend: Backend
) -> None:
    api.throttle("api", "1/d")
    admin.set_rate(backend.locks(), "api", "2/h 3/m", reason="catch up")
    api.throttle("api", "1/d")
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "1/d")
    assert 1700 < raised.value.retry_after <= 1801


def test_cost_applies_to_an_operators_rate(api: LocksApi, backend: Backend) -> None:
    admin.set_rate(backend.locks(), "api", "1/h", reason="slower")
    api.throttle("api", "1000000/s", cost=2.5)
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "1000000/s")
    assert 2.5 * 3500 < raised.value.retry_after <= 2.5 * 3601


def test_operators_rate_ends_by_itself(api: LocksApi, backend: Backend) -> None:
    admin.set_rate(backend.locks(), "api", "1/h", seconds=60, reason="slower")
    api.throttle("api", "100/s")
    with pytest.raises(RateLimited):
        api.throttle("api", "100/s")
    lapse(backend, "api", "rate")
    api.throttle("api", "100/s", wait=5)


def test_what_has_no_end_is_kept_and_then_expires(backend: Backend, locks: Locks) -> None:
    """Starts and push-backs must not shorten it; after its end the keys expire as usual."""
    admin.set_rate(locks, "api", "2/s", reason="slower")
    admin.pause_rate(locks, "api", reason="stop")
    start(locks, check("api"), job="a")
    locks.push_back("api", 1)
    admin.resume_rate(locks, "api")
    locks.throttle("api", "1/h", wait=10)
    for key in (locks.commands.root("api") + "r:api", locks.commands.root("api") + "rates"):
        assert backend.raw.ttl(key) > TEN_YEARS - 1000
    admin.reset_rate(locks, "api")
    for key in (locks.commands.root("api") + "r:api", locks.commands.root("api") + "rates"):
        assert backend.raw.ttl(key) <= 3700


def test_set_rate_with_an_end_expires_with_it(backend: Backend, locks: Locks) -> None:
    admin.pause_rate(locks, "api", seconds=5000, reason="stop")
    assert 4000 < backend.raw.ttl(locks.commands.root("api") + "r:api") <= 5001
    assert 4000 < backend.raw.ttl(locks.commands.root("api") + "rates") <= 3600 + 5001


def test_actions_on_rates_are_in_the_history(locks: Locks) -> None:
    admin.pause_rate(locks, "api", seconds=3600, reason="stop", by="ann")
    admin.resume_rate(locks, "api", reason="fine again", by="bob")
    admin.resume_rate(locks, "api", by="bob")  # nothing was to end
    admin.set_rate(locks, "api", ("10/m", "100/h"), reason="slower", by="ann")
    admin.reset_rate(locks, "api", by="bob")
    entries = admin.history(locks, "api")
    acts = [(entry.act, entry.by, entry.why, entry.rate) for entry in entries]
    assert acts == [
        ("rate_reset", "bob", "", ""),
        ("rate", "ann", "slower", "10/m 100/h"),
        ("rate_resume", "bob", "fine again", ""),
        ("rate_pause", "ann", "stop", ""),
    ]
    assert [bool(entry.until) for entry in entries] == [False, False, False, True]
    texts = [admin.describe_entry(entry).split(" UTC: ", 1)[1] for entry in entries]
    assert texts[0] == "bob reset the rate 'api'. No reason was given."
    assert texts[1] == "ann set the rate 'api' to 10/m and 100/h. Reason: slower"
    assert texts[2] == "bob resumed the rate 'api'. Reason: fine again"
    assert texts[3].startswith("ann paused the rate 'api' until ")


def test_repeated_override_has_its_earlier_reply_and_one_entry(locks: Locks) -> None:
    """The reply was lost, and the call is sent again."""
    commands, new = RateCommands(locks.commands), Override(0, "ann", "stop", 0.0)
    call = commands.override("api", "rate_pause", new, request_id=new_token())
    assert [locks.perform(call), locks.perform(call)] == [False, False]
    assert len(admin.history(locks, "api")) == 1


def test_metrics_count_paused_rates(locks: Locks) -> None:
    admin.pause(locks, "a", reason="stop")
    admin.pause_rate(locks, "api", reason="stop")
    admin.set_rate(locks, "other", "1/s", reason="slower")
    assert read_tallies(locks)[""].paused == 2


@pytest.mark.parametrize(
    ("rate", "options"),
    [("10", {}), ("", {}), ("1/m 2/m", {}), ("1/m", {"seconds": 0}), ("1/m", {"seconds": -1})],
)
def test_wrong_rate_is_refused_and_nothing_is_set(
    locks: Locks, backend: Backend, rate: str, options: dict[str, Any]
) -> None:
    with pytest.raises(LockUsageError):
        admin.set_rate(locks, "api", rate, reason="x", **options)
    with pytest.raises(LockUsageError):
        admin.pause_rate(locks, "", reason="x")
    assert backend.keys() == set()
