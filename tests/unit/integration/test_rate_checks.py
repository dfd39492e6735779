"""``@rate_limited``, ``lock_rates`` and ``lock={"rates": …}``, with locks in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_locks import (
    LockedTask,
    Locks,
    LockUsageError,
    RateLimited,
    is_skipped,
    limited,
    rate_limited,
    single_instance,
)
from celery_locks.integration.headers import HEADER, LockHeader
from celery_locks.testing import hold_lock, in_memory_locks, locks_disabled


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("unit", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def locks(app: Celery) -> Iterator[Locks]:
    with in_memory_locks(app) as locks:
        yield locks


def limits_of(task: Any) -> list[tuple[Any, Any]]:
    return [(rule.rate, rule.key) for rule in task.lock_options().rates]


def test_decorators_stack_in_any_order(app: Celery, locks: Locks) -> None:
    @app.task(base=LockedTask, shared=False)
    @limited(3, key="api:{tenant}")
    @rate_limited("30/m", key="api:{tenant}")
    @rate_limited("1000/h")
    def first(tenant: str) -> None: ...

    @app.task(shared=False)
    @rate_limited("30/m", key="api:{tenant}")
    @rate_limited("1000/h")
    @limited(3, key="api:{tenant}")
    def second(tenant: str) -> None: ...

    @rate_limited("30/m", key="api:{tenant}")
    @limited(3, key="api:{tenant}")
    @app.task(shared=False)
    @rate_limited("1000/h")
    def third(tenant: str) -> None: ...

    for task in (first, second, third):
        options = task.lock_options()
        assert (options.key, options.limit) == ("api:{tenant}", 3)
        assert limits_of(task) == [("30/m", "api:{tenant}"), ("1000/h", None)]


def test_rate_without_a_lock_is_locked_by_the_task_id(app: Celery, locks: Locks) -> None:
    @app.task(bind=True, shared=False)
    @rate_limited("1/h")
    def call(self: Any) -> str:
        return str(self.lock.name)

    assert isinstance(call, LockedTask)
    assert call.apply(task_id="7").get().endswith("[7]")


@pytest.mark.parametrize(
    "key",
    [None, lambda: None, [lambda: None, lambda: None]],
    ids=["by id", "no lock", "none of several"],
)
def test_rate_applies_to_a_call_without_a_lock(app: Celery, locks: Locks, key: Any) -> None:
    """A direct call has no task id, and a key function may return None."""

    @app.task(base=LockedTask, shared=False, lock_key=key, lock_rates="1/h")
    def call() -> str:
        return "ran"

    assert call() == "ran"
    with pytest.raises(RateLimited):
        call()
    with pytest.raises(RateLimited):
        call.apply().get()


def test_limit_function_is_not_asked_about_a_call_without_a_lock(app: Celery, locks: Locks) -> None:
    def slots(tenant: str | None) -> int:
        return len(tenant or "")  # 0 is no limit

    @app.task(base=LockedTask, shared=False)
    @limited(slots, key=lambda tenant: tenant)
    @rate_limited("1/h")
    def call(tenant: str | None) -> str:
        return "ran"

    assert call(None) == "ran"


def test_default_key_is_the_task_and_others_are_shared(app: Celery, locks: Locks) -> None:
    @app.task(name="a", shared=False)
    @rate_limited("1/h")
    def a() -> str:
        return "ran"

    rates = ["1/h", {"rate": "2/h", "key": "tenant:{tenant}", "burst": 2}]

    @app.task(base=LockedTask, name="b", shared=False, lock_rates=rates)
    def b(tenant: str = "x") -> str:
        return "ran"

    b.apply()
    assert a.apply().result == "ran"
    with pytest.raises(RateLimited, match="'a' allows no start for 3"):
        a.apply().get()
    with pytest.raises(RateLimited, match="'b'"):
        b.apply().get()
    with pytest.raises(RateLimited):
        locks.throttle("a", "1/h")


@pytest.mark.parametrize("key", ["tenant:{tenant}", "*", lambda tenant: f"tenant:{tenant}"])
def test_key_with_arguments_is_made_for_each_call(app: Celery, locks: Locks, key: Any) -> None:
    """Only checks that are the same for all calls may be kept."""

    @app.task(base=LockedTask, shared=False, lock_rates=[{"rate": "1/h", "key": key}])
    def call(tenant: str) -> str:
        return "ran"

    assert [call.apply((it,)).result for it in ("a", "b")] == ["ran", "ran"]
    assert isinstance(call.apply(("a",)).result, RateLimited)


def test_rates_of_one_call_do_not_stay_with_the_task(app: Celery, locks: Locks) -> None:
    """The checks that are kept belong to rules, not to the task."""

    @app.task(base=LockedTask, shared=False, lock_rates=[{"rate": "1/h", "key": "own"}])
    def call() -> str:
        return "ran"

    other = {"rates": [{"rate": "1/h", "key": "other"}]}
    assert [call.apply().result, call.apply(lock=other).result] == ["ran", "ran"]
    for lock, name in ((None, "'own'"), (other, "'other'")):
        with pytest.raises(RateLimited, match=name):
            call.apply(lock=lock).get()


def test_skip_says_so(app: Celery, locks: Locks) -> None:
    @app.task(shared=False)
    @rate_limited("1/h", key="k", on_limit="skip")
    def call() -> str:
        return "ran"

    assert call.apply().result == "ran"
    result = call.apply().result
    assert is_skipped(result)
    assert (result["reason"], result["rate"]) == ("rate_limited", "k")
    assert 3500 < result["retry_after"] <= 3601


def test_each_rate_has_its_own_answer(app: Celery, locks: Locks) -> None:
    @app.task(shared=False)
    @rate_limited("1/h", key="skips", on_limit="skip")
    @rate_limited("1/h", key="raises", on_limit="raise")
    def call() -> str:
        return "ran"

    locks.throttle("skips", "1/h")
    assert is_skipped(call.apply().result)
    locks.throttle("raises", "1/h", cost=2)
    assert isinstance(call.apply().result, RateLimited)


def test_rate_may_be_a_function_of_the_arguments(app: Celery, locks: Locks) -> None:
    @app.task(shared=False)
    @rate_limited(lambda tenant: None if tenant == "vip" else ("1/h", "5/d"), key="k:{tenant}")
    def call(tenant: str) -> str:
        return "ran"

    assert [call.apply(("vip",)).result for _ in range(3)] == ["ran"] * 3
    assert call.apply(("a",)).result == "ran"
    assert isinstance(call.apply(("a",)).result, RateLimited)


def test_key_function_may_leave_a_call_unlimited_or_unlocked(app: Celery, locks: Locks) -> None:
    """A call that has no lock still keeps to its rates."""

    @app.task(shared=False)
    @rate_limited("1/h", key=lambda tenant: None if tenant == "vip" else "all")
    def unlimited(tenant: str) -> str:
        return "ran"

    @app.task(shared=False)
    @single_instance(key=lambda: None)
    @rate_limited("1/h", key="k")
    def unlocked() -> str:
        return "ran"

    assert [unlimited.apply((it,)).result for it in ("a", "vip", "vip")] == ["ran"] * 3
    assert isinstance(unlimited.apply(("b",)).result, RateLimited)
    assert unlocked.apply().result == "ran"
    assert isinstance(unlocked.apply().result, RateLimited)


def test_busy_lock_consumes_no_rate(app: Celery, locks: Locks) -> None:
    @app.task(shared=False)
    @single_instance(key="k")
    @rate_limited("1/h")
    def call() -> str:
        return "ran"

    with hold_lock("k", app=app):
        assert is_skipped(call.apply().result)
    assert call.apply().result == "ran"


def test_push_back_reaches_every_rate_of_the_run(app: Celery, locks: Locks) -> None:
    @app.task(bind=True, shared=False)
    @rate_limited("1000/s", key="one", burst=5)
    @rate_limited("1000/s", key="two", burst=5)
    def call(self: Any) -> None:
        self.lock.push_back(60)

    call.apply().get()
    for key in ("one", "two"):
        with pytest.raises(RateLimited) as raised:
            locks.throttle(key, "1000/s", burst=5)
        assert 50 < raised.value.retry_after <= 60
    with locks_disabled():
        call.apply().get()


def test_push_back_without_a_rate_is_refused(locks: Locks) -> None:
    with locks.hold("a") as lease, pytest.raises(LockUsageError, match="no rate"):
        lease.push_back(1)


def test_rates_of_one_name_are_kept_together(app: Celery, locks: Locks) -> None:
    @app.task(shared=False, base=LockedTask, lock_rates=("2/h", "2/d"))
    def good() -> None: ...

    @app.task(shared=False, base=LockedTask, lock_rates=("2/h", "3/h"))
    def bad() -> None: ...

    good.apply().get()
    assert limits_of(bad)
    with pytest.raises(LockUsageError, match="the same period"):
        bad.apply().get()


def test_rates_of_the_settings_and_of_a_call(app: Celery) -> None:
    app.conf.locks_rates = "1/h"

    @app.task(base=LockedTask, name="t", shared=False)
    def call(tenant: str = "a") -> str:
        return "ran"

    with in_memory_locks(app) as locks:
        locks.throttle("t", "1/h")
        assert isinstance(call.apply().result, RateLimited)
        own = {"rates": [{"rate": "1/h", "key": "own:{tenant}", "on_limit": "skip"}]}
        assert call.apply(lock=own).result == "ran"
        assert is_skipped(call.apply(lock=own).result)


def test_rates_of_a_call_travel_in_the_header(app: Celery, locks: Locks) -> None:
    raw = {"version": 1, "options": {"rates": [{"rate": ["1/h", "5/d"], "cost": 2}, "3/s"]}}
    header = LockHeader.read({HEADER: raw})
    written = json.loads(json.dumps(header.write({})))
    assert LockHeader.read(written) == header
    assert written[HEADER]["options"]["rates"][1] == {"rate": "3/s"}


@pytest.mark.parametrize(
    "rates", [[{"rate": "30"}], {"rate": "1/s", "kye": 1}, ["1/s"] * 9, [{"key": "a"}], 7]
)
def test_wrong_rates_in_a_header_are_refused(rates: Any) -> None:
    with pytest.raises(LockUsageError):
        LockHeader.read({HEADER: {"version": 1, "options": {"rates": rates}}})


@pytest.mark.parametrize(
    ("rate", "options", "sentence"),
    [
        ("30", {}, "@rate_limited: the rate '30' must be"),
        ("0/m", {}, "the rate '0/m'"),
        ("30/x", {}, "the rate '30/x'"),
        ("30/m", {"cost": -1}, "cost is -1"),
        ("30/m", {"burst": 0}, "burst is 0"),
        ("30/m", {"key": ""}, "the key of a rate is ''"),
        ("30/m", {"on_limit": "wait"}, "on_limit is 'wait'; write 'delay' or 'skip' or 'raise'"),
    ],
)
def test_wrong_rate_is_refused_at_decoration(
    rate: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        rate_limited(rate, **options)


def test_key_that_does_not_fit_is_refused_at_decoration(app: Celery) -> None:
    with pytest.raises(LockUsageError, match="names 'tenant', but the parameters are n"):

        @app.task(shared=False, lazy=False)
        @rate_limited("1/s", key="k:{tenant}")
        def call(n: int) -> None: ...

    with pytest.raises(LockUsageError, match="for tasks and their functions"):
        rate_limited("1/s")(3)  # type: ignore[type-var]


def test_function_for_one_call_is_refused(app: Celery, locks: Locks) -> None:
    @app.task(base=LockedTask, shared=False)
    def call() -> None: ...

    for rates in (lambda: "1/s", [{"rate": "1/s", "cost": lambda: 2}]):
        with pytest.raises(LockUsageError, match="the rates of one call must have no functions"):
            call.apply_async(lock={"rates": rates})


def test_cost_may_be_a_function_of_the_arguments(app: Celery, locks: Locks) -> None:
    @app.task(shared=False)
    @rate_limited("1/h", key="a", cost=lambda pages: pages / 2)
    def call(pages: int) -> str:
        return "ran"

    rates = [{"rate": "1/h", "key": "b", "cost": lambda pages: pages}]

    @app.task(base=LockedTask, shared=False, lock_rates=rates)
    def other(pages: int) -> str:
        return "ran"

    for task, name, hours in ((call, "a", 3), (other, "b", 6)):
        assert task.apply((6,)).result == "ran"
        with pytest.raises(RateLimited) as raised:
            locks.throttle(name, "1/h")
        assert round(raised.value.retry_after / 3600) == hours


def test_cost_function_of_the_settings_applies(app: Celery) -> None:
    app.conf.locks_rates = [{"rate": "1/h", "cost": lambda pages=2: pages}]

    @app.task(base=LockedTask, name="t", shared=False)
    def call(pages: int = 2) -> str:
        return "ran"

    with in_memory_locks(app) as locks:
        assert call.apply((4,)).result == "ran"
        with pytest.raises(RateLimited) as raised:
            locks.throttle("t", "1/h")
        assert round(raised.value.retry_after / 3600) == 4


@pytest.mark.parametrize("value", [0, -1, "3", None, True, float("nan"), float("inf")])
def test_wrong_value_of_a_cost_function_fails_the_task(
    app: Celery, locks: Locks, value: Any
) -> None:
    def cost_of() -> Any:
        return value

    @app.task(name="bill", shared=False)
    @rate_limited("1/h", key="k", cost=cost_of)
    def call() -> None: ...

    error = call.apply().result
    assert isinstance(error, LockUsageError)
    assert str(error).startswith("task bill: the cost function ")
    assert f"cost_of returned {value!r}; it must return a number above 0" in str(error)
    locks.throttle("k", "1/h")


def test_wrong_value_of_a_rate_function_names_the_task(app: Celery, locks: Locks) -> None:
    @app.task(name="bill", shared=False)
    @rate_limited(lambda: "30", key="k")
    def call() -> None: ...

    with pytest.raises(LockUsageError, match="task bill: the rate '30' must be"):
        call.apply().get()


def test_cost_function_that_does_not_fit_is_refused_at_decoration(app: Celery) -> None:
    with pytest.raises(LockUsageError, match="cost"):

        @app.task(shared=False, lazy=False)
        @rate_limited("1/s", cost=lambda: 2)
        def call(n: int) -> None: ...
