"""Rates on every store: starts are spaced, promised in order, and consumed only with the lock.

The exact times are the model's in `test_state_machine.py`; here time passes by itself, so the rates
are slow enough that a busy machine does not reach the next start.
"""

import time
from typing import Any

import pytest

from celery_locks import Conflict, Holder, Lease, Locks, LockUsageError, RateLimited
from celery_locks.clock import now
from celery_locks.core.requests import AcquireRequest, new_token
from celery_locks.rates import Rate
from celery_locks.store.commands.locks import AcquireExtras, RateCheck
from celery_locks.store.commands.rates import RateCommands
from celery_locks.store.commands.replies import Limited
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend

FOREVER = 1e6


def check(name: str, rate: str = "1/h", *, patience: float = FOREVER, **options: Any) -> RateCheck:
    return RateCheck(name, Rate.parse(rate, **options).text, patience)


def start(
    locks: Locks, *rates: RateCheck, name: str = "job", job: str | None = None, **spec: Any
) -> Any:
    """Acquire a lock with rates, as a task does; each call is another run."""
    request: AcquireRequest[Lease] = AcquireRequest(
        LockSpec(name, **spec),
        Holder(task_id=job, retries=0) if job else Holder(),
        new_token(),
        now(),
        extras=AcquireExtras(rates=rates),
    )
    return locks.run(locks.operations.acquire(request))


def starts_in(answer: Any) -> float:
    assert isinstance(answer, Limited), answer
    return answer.seconds


def test_throttle_lets_one_through_and_tells_the_next_when(api: LocksApi, other: LocksApi) -> None:
    api.throttle("api", "30/m")
    with pytest.raises(RateLimited) as raised:
        other.throttle("api", "30/m")
    assert raised.value.name == "api"
    assert 0 < raised.value.retry_after <= 2.01
    other.throttle("another", "30/m")


def test_throttle_waits_for_its_turn(api: LocksApi) -> None:
    """Three starts at 5/s are at least two intervals apart."""
    api.throttle("api", "5/s")
    began = time.monotonic()
    api.throttle("api", "5/s", wait=5)
    api.throttle("api", "5/s", wait=5)
    assert time.monotonic() - began >= 0.35


def test_throttle_refused_call_consumes_nothing(api: LocksApi) -> None:
    """However often it is refused, the next start stays where it was."""
    api.throttle("api", "1/h")
    waits = []
    for _ in range(4):
        with pytest.raises(RateLimited) as raised:
            api.throttle("api", "1/h", wait=60)
        waits.append(raised.value.retry_after)
    assert waits == sorted(waits, reverse=True)
    assert waits[0] <= 3601


def test_throttle_burst_starts_at_once(api: LocksApi) -> None:
    for _ in range(3):
        api.throttle("api", "1/h", burst=3)
    with pytest.raises(RateLimited):
        api.throttle("api", "1/h", burst=3)


def test_throttle_cost_counts_as_several_starts(api: LocksApi) -> None:
    api.throttle("api", "1/h", cost=3)
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "1/h")
    assert 3 * 3500 < raised.value.retry_after <= 3 * 3601


def test_throttle_with_several_limits_keeps_to_each(api: LocksApi) -> None:
    for _ in range(2):
        api.throttle("api", ("2/h", "2/d"), burst=2)
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", ("2/h", "2/d"), burst=2)
    assert raised.value.retry_after > 40_000


def test_promise_removes_a_rate_that_nobody_uses_from_the_list(
    locks: Locks, backend: Backend
) -> None:
    """Names of rates may hold a customer's id: the list of all of them must not only grow."""
    listed = locks.commands.root("api") + "rates"
    backend.raw.zadd(listed, {"old": 1})
    throttle = RateCommands(locks.commands).throttle
    locks.perform(throttle(check("api"), "first", "j1"))
    assert isinstance(locks.perform(throttle(check("api"), "second", "j2")), Limited)
    assert backend.raw.zrange(listed, 0, -1) == [b"api"]


def test_throttle_that_starts_gives_its_promise_up(locks: Locks, backend: Backend) -> None:
    """Else those behind it are told that somebody is ahead who has started long ago."""
    rate, throttle = check("api"), RateCommands(locks.commands).throttle
    root = locks.commands.root("api")
    assert locks.perform(throttle(rate, "first", "j1")) == 0
    assert isinstance(locks.perform(throttle(rate, "second", "j2")), Limited)
    # Its turn has come: the first one started an hour ago.
    backend.raw.hset(f"{root}r:api", "hs", 0)
    assert backend.raw.zadd(f"{root}d:api", {"j2": (time.time() - 1) * 1e6}, xx=True, ch=True) == 1
    assert locks.perform(throttle(rate, "again", "j2")) == 0
    assert backend.raw.zcard(f"{root}d:api") == 0


@pytest.mark.parametrize(
    ("rate", "options"), [("30", {}), ("0/m", {}), ("1/m", {"cost": -1}), ("1/m", {"wait": -1})]
)
def test_throttle_refuses_wrong_input(
    api: LocksApi, backend: Backend, rate: str, options: dict[str, Any]
) -> None:
    with pytest.raises(LockUsageError):
        api.throttle("api", rate, **options)
    with pytest.raises(LockUsageError):
        api.push_back("api", -1)
    assert backend.keys() == set()


def test_push_back_lets_nothing_start(api: LocksApi, other: LocksApi) -> None:
    other.push_back("api", 100)
    api.push_back("api", 50)  # does not shorten it
    with pytest.raises(RateLimited) as raised:
        api.throttle("api", "30/m")
    assert 90 < raised.value.retry_after <= 100


def test_acquire_starts_once_and_promises_the_rest_in_order(locks: Locks) -> None:
    lease = start(locks, check("api"), job="a")
    assert lease.fence
    locks.release(lease)
    waits = [starts_in(start(locks, check("api"), job=job)) for job in "bcd"]
    assert [round(wait / 3600) for wait in waits] == [1, 2, 3]
    assert start(locks, check("api"), job="d").ahead == 2
    assert locks.info("job") is None


def test_acquire_promise_is_kept_however_often_the_job_comes(locks: Locks) -> None:
    """A message that is delivered twice must not take two places in the line."""
    start(locks, check("api"), name="first")
    first = start(locks, check("api"), job="b")
    again = start(locks, check("api"), job="b")
    assert first.is_promised
    assert again.is_promised
    assert first.seconds - 60 < again.seconds <= first.seconds
    assert round(starts_in(start(locks, check("api"), job="c")) / 3600) == 2


def test_acquire_without_patience_gets_no_promise(locks: Locks) -> None:
    start(locks, check("api"), name="first")
    answers = [start(locks, check("api", patience=0), job=job) for job in "bc"]
    assert [answer.is_promised for answer in answers] == [False, False]
    assert [round(answer.seconds / 3600) for answer in answers] == [1, 1]


def test_acquire_consumes_no_rate_while_the_lock_is_busy(locks: Locks) -> None:
    with locks.hold("job"):
        assert isinstance(start(locks, check("api")), Conflict)
    locks.release(start(locks, check("api")))


def test_acquire_limited_by_one_rate_consumes_no_other(locks: Locks) -> None:
    """Both are granted or neither is consumed."""
    start(locks, check("tenant"), name="first")
    answer = start(locks, check("total"), check("tenant"), job="b")
    assert answer.rate == "tenant"
    locks.throttle("total", "1/h")


def test_acquire_counts_each_rate_in_other_shards(backend: Backend) -> None:
    """The lock's call cannot decide them: they are asked, then counted, one by one."""
    locks = backend.locks(shards=2)
    rates = [f"rate{i}" for i in range(8)]
    locks.release(start(locks, *(check(rate) for rate in rates)))
    for rate in rates:
        with pytest.raises(RateLimited):
            locks.throttle(rate, "1/h")
    answer = start(locks, check("free"), check("rate0"), name="another", job="b")
    assert answer.rate == "rate0"
    assert locks.info("another") is None
    locks.throttle("free", "1/h")


def test_promise_that_nobody_came_for_is_forgotten(backend: Backend, locks: Locks) -> None:
    start(locks, check("api"), name="first")
    start(locks, check("api"), job="b")
    key = locks.commands.root("api") + "d:api"
    backend.raw.zadd(key, {"jb": (time.time() - 7200) * 1e6})
    answer = start(locks, check("api"), job="c")
    assert (round(answer.seconds / 3600), answer.ahead) == (2, 0)
    assert round(starts_in(start(locks, check("api"), job="b")) / 3600) == 3


def test_acquire_promise_is_made_by_the_latest_rate_only(locks: Locks) -> None:
    """A promise far ahead in a shared rate would keep the others from it."""
    start(locks, check("tenant"), check("total", "2/h"), name="first")
    answer = start(locks, check("tenant"), check("total", "2/h"), name="second", job="b")
    assert answer.rate == "tenant"
    assert round(starts_in(start(locks, check("total", "2/h"), job="c")) / 1800) == 1


def test_acquire_grants_a_start_in_the_near_future(locks: Locks) -> None:
    """A promised caller that comes a little early sleeps instead of coming again."""
    locks.throttle("api", "2/s")
    promise = start(locks, check("api", "2/s"), job="b")
    assert promise.is_promised
    began = time.monotonic()
    lease = start(locks, check("api", "2/s"), job="b")
    waited = time.monotonic() - began
    assert isinstance(lease, Lease)
    assert waited >= promise.seconds - 0.25 or promise.seconds < 0.25
    locks.release(lease)


def test_acquire_handed_over_by_the_queue_keeps_to_the_rate(locks: Locks, in_thread: Any) -> None:
    """Who waits in line for the lock is asked for the rate when it gets the lock, not before."""
    first = start(locks, check("api", "1/h", burst=2), ttl=30)
    waiting = in_thread(
        lambda: start(locks, check("api", "1/h", burst=2), ttl=30, wait=20, job="b")
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        info = locks.info("job")
        if info and info.waiters:
            break
    locks.throttle("api", "1/h", burst=2)
    locks.release(first)
    answer = waiting.result(timeout=30)
    assert isinstance(answer, Limited)
    assert locks.info("job") is None


def test_list_of_rates_has_those_with_delayed_callers(locks: Locks) -> None:
    locks.throttle("idle", "1/h")
    locks.throttle("api", "1/h")
    for job in ("b", "c d"):
        start(locks, check("api"), job=job)
    locks.push_back("slow", 100)
    infos = {info.name: info for info in locks.run(locks.rates.list_rates())}
    assert set(infos) == {"api", "slow"}
    info = infos["api"]
    assert (info.limits, info.delayed) == (("1/h",), 2)
    assert [caller.task_id for caller in info.callers] == ["b", "c d"]
    assert [round(caller.starts_in / 3600) for caller in info.callers] == [1, 2]
    assert round(info.free_in / 3600) == 3
    assert 90 < infos["slow"].pushed_back <= 100
    assert info.as_dict()["delayed"] == 2


def test_started_caller_leaves_the_list(locks: Locks) -> None:
    locks.throttle("api", "2/s")
    assert start(locks, check("api", "2/s"), job="b").is_promised
    locks.release(start(locks, check("api", "2/s"), job="b"))
    assert locks.run(locks.rates.list_rates()) == []


def test_caller_whose_start_is_past_is_not_counted_as_delayed(
    backend: Backend, locks: Locks
) -> None:
    """It was revoked or skipped, or waits for a worker: the rate delays nobody for it."""
    locks.throttle("api", "1/h")
    for job in ("revoked", "skipped", "next"):
        start(locks, check("api"), job=job)
    past = {f"j{job}": (time.time() - 60) * 1e6 for job in ("revoked", "skipped")}
    backend.raw.zadd(locks.commands.root("api") + "d:api", past)
    assert start(locks, check("api"), job="next").ahead == 0
    assert start(locks, check("api"), job="last").ahead == 1
    assert start(locks, check("api", patience=0), job="refused").ahead == 2
    [info] = locks.run(locks.rates.list_rates())
    assert info.delayed == 2
    assert [caller.task_id for caller in info.callers] == ["next", "last"]
    [info] = locks.run(locks.rates.list_rates("last"))
    assert info.delayed == 1
    [info] = locks.run(locks.rates.list_rates("skipped"))
    assert info.callers[0].starts_in < 0


def test_keys_of_rates_expire(backend: Backend, locks: Locks) -> None:
    start(locks, check("api"), name="first")
    start(locks, check("api"), job="b")
    root = locks.commands.root("api")
    for key in ("r:api", "d:api", "rates"):
        assert 3000 < backend.raw.ttl(root + key) <= 2 * 3602 + 3600


def test_repeated_call_starts_once(locks: Locks) -> None:
    """The reply of the first was lost: the second is the same start, not another."""
    call = RateCommands(locks.commands).throttle(check("api", patience=0), new_token())
    assert locks.perform(call) == 0
    assert locks.perform(call) == 0
    with pytest.raises(RateLimited) as raised:
        locks.throttle("api", "1/h")
    assert raised.value.retry_after <= 3601
