"""An option that would have no effect is refused where it is written, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask, LockUsageError, single_instance

IDLE = [
    ({"wait": 5, "on_conflict": "skip"}, "wait has no effect with on_conflict='skip'; write"),
    ({"wait": 5, "on_conflict": "raise"}, "wait has no effect with on_conflict='raise'"),
    ({"on_conflict": "replace"}, "on_conflict='replace' is for calls .* scope='running'; write"),
    ({"on_conflict": {"publish": "allow"}}, "on_conflict='allow' .* no effect with scope"),
    ({"reuse": "never"}, "reuse has no effect without once; write"),
    ({"pending_ttl": 60}, "pending_ttl has no effect with scope='running'; write"),
    ({"debounce": 5, "scope": "running"}, "debounce has no effect with scope='running'"),
    ({"debounce": 5, "on_conflict": "allow"}, "on_conflict='allow' has no effect with debounce"),
    ({"debounce": 5, "on_conflict": "skip"}, "debounce .* would lose the last call .*; write"),
]
USEFUL: list[dict[str, Any]] = [
    {"wait": 5},
    {"wait": 5, "on_conflict": "requeue"},
    {"wait": "forever", "on_conflict": "wait"},
    {"on_conflict": "replace", "scope": "queued"},
    {"on_conflict": "raise"},
    {"reuse": "never", "once": 60},
    {"debounce": 5},
    {"debounce": 5, "on_conflict": "requeue", "wait": 9},
    {"debounce": 5, "on_conflict": "replace"},
    {"enabled": False, "wait": 5, "on_conflict": "skip"},
]


@pytest.fixture
def app() -> Celery:
    app = Celery("idle", broker="redis://nowhere", set_as_current=False)
    app.finalize()
    return app


def as_attributes(options: dict[str, Any]) -> dict[str, Any]:
    return {f"lock_{word}": value for word, value in options.items()}


def bill(n: int) -> None: ...


@pytest.mark.parametrize(("options", "sentence"), IDLE)
def test_idle_options_of_a_task_are_refused(
    app: Celery, options: dict[str, Any], sentence: str
) -> None:
    """Taken in silence, they would let the author believe in a lock that is not there."""
    named = {**options, "key": "bill:{n}"}
    with pytest.raises(LockUsageError, match=f"task below: {sentence}"):
        app.task(name="below", shared=False)(single_instance(**named)(bill))
    with pytest.raises(LockUsageError, match=f"task above: {sentence}"):
        single_instance(**named)(app.task(name="above", shared=False)(bill))
    with pytest.raises(LockUsageError, match=f"task based: {sentence}"):
        app.task(name="based", base=LockedTask, shared=False, **as_attributes(named))(bill)
    body = {"name": "classy", "run": staticmethod(bill), **as_attributes(named)}
    with pytest.raises(LockUsageError, match=f"task classy: {sentence}"):
        app.register_task(type("Classy", (LockedTask,), body)())


def test_options_that_contradict_each_other_are_refused(app: Celery) -> None:
    with pytest.raises(LockUsageError, match=r"task paid: once with limit 2: .*; leave"):
        app.task(name="paid", shared=False)(single_instance(key="b:{n}", once=9, limit=2)(bill))


@pytest.mark.parametrize(("options", "sentence"), IDLE)
def test_idle_options_of_a_call_are_refused(
    app: Celery, options: dict[str, Any], sentence: str
) -> None:
    task = app.task(name="called", base=LockedTask, lock_key="bill:{n}", shared=False)(bill)
    where = r"task called: apply_async\(lock=…\): "
    with pytest.raises(LockUsageError, match=where + sentence):
        task.apply_async((1,), lock=options)


@pytest.mark.parametrize("options", USEFUL)
def test_useful_options_are_taken(app: Celery, options: dict[str, Any]) -> None:
    named = {**options, "key": "bill:{n}"}
    app.task(name="useful", shared=False)(single_instance(**named)(bill))
    app.task(name="useful2", base=LockedTask, shared=False, **as_attributes(named))(bill)
    assert isinstance(app.tasks["useful"], LockedTask)


def test_a_default_of_all_tasks_is_no_option_of_this_one() -> None:
    """Settings and bases say what holds where it has a meaning."""
    app = Celery("idle", broker="redis://nowhere", set_as_current=False)
    app.conf.update(locks_wait=60, locks_scope="queued", locks_reuse="never", locks_pending_ttl=9)

    class Base(LockedTask):
        abstract = True
        lock_wait = 5
        lock_scope = "queued"

    app.finalize()
    app.task(name="by_id", base=LockedTask, lock_ttl=5, shared=False)(bill)
    app.task(name="based", base=Base, lock_on_conflict="skip", shared=False)(bill)
    replacing = app.task(name="replacing", shared=False)(
        single_instance(key="r:{n}", on_conflict="replace")(bill)
    )
    assert replacing.lock_options().on_publish == "replace"
    assert replacing.lock_options().on_conflict == "skip"


@pytest.mark.parametrize("options", [{"scope": "queued"}, {"debounce": 5}])
def test_a_scope_without_a_key_is_refused(app: Celery, options: dict[str, Any]) -> None:
    """A lock by task id is never met by another call."""
    with pytest.raises(LockUsageError, match="has no effect on a lock by task id; write a key"):
        app.task(base=LockedTask, name="keyless", shared=False, **as_attributes(options))(bill)


@pytest.mark.parametrize(
    "option", [{"on_conflict": "raise"}, {"ttl": 5}, {"key": "x"}, {"on_retry": "keep"}]
)
def test_an_option_without_its_prefix_is_refused(app: Celery, option: dict[str, Any]) -> None:
    [word] = option
    sentence = f"task .*: {word} has no effect; write lock_{word} instead"
    with pytest.raises(LockUsageError, match=sentence):
        app.task(name="unprefixed", base=LockedTask, shared=False, **option)(bill)
    with pytest.raises(LockUsageError, match=sentence):
        app.task(name="marked", shared=False, **option)(single_instance(key="b:{n}")(bill))


def test_a_class_may_have_attributes_of_its_own() -> None:
    """Only what nobody could mean otherwise is refused there; ``on_retry`` is Celery's handler."""

    class Sync(LockedTask):
        limit = 100
        key = "mine"

        def on_retry(self, *args: Any) -> None: ...

    assert Sync._lock_values == {}
    with pytest.raises(LockUsageError, match="on_conflict has no effect; write lock_on_conflict"):
        type("Wrong", (LockedTask,), {"on_conflict": "raise"})


@pytest.mark.parametrize("option", [{"lock_ttl": 5}, {"on_conflict": "raise"}])
def test_an_option_of_a_call_outside_lock_is_refused(app: Celery, option: dict[str, Any]) -> None:
    task = app.task(name="called", base=LockedTask, lock_key="bill:{n}", shared=False)(bill)
    [name] = option
    sentence = f"task called: {name} is no option of a call; write lock="
    with pytest.raises(LockUsageError, match=sentence):
        task.apply_async((1,), **option)
    with pytest.raises(LockUsageError, match=sentence):
        task.s(1).set(**option).apply_async()
    with pytest.raises(LockUsageError, match=sentence):
        task.apply((1,), **option)


def test_limit_function_that_cannot_take_the_arguments_is_refused(app: Celery) -> None:
    with pytest.raises(LockUsageError, match=r"task t: the limit function .* cannot take"):
        app.task(name="t", shared=False, base=LockedTask, lock_key="b:{n}", lock_limit=lambda: 1)(
            bill
        )


def test_limit_function_does_not_go_with_once_or_one_call(app: Celery) -> None:
    """A header carries no function, and with ``once`` only one may do the work."""
    options: Any = {"base": LockedTask, "shared": False, "lock_key": "b:{n}"}
    with pytest.raises(LockUsageError, match="once with limit a function"):
        app.task(name="t", lock_limit=lambda n: n, lock_once=60, **options)(bill)
    task = app.task(name="u", lock_limit=lambda n: n, **options)(bill)
    with pytest.raises(LockUsageError, match="a limit for one call must be a number"):
        task.apply_async((1,), lock={"limit": lambda n: n})
