"""``@single_instance`` and ``lock_…``: what is said at import is checked at import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, shared_task

from celery_locks import LockedTask, LockUsageError, single_instance
from celery_locks.integration.current_execution import current_lease
from celery_locks.testing import in_memory_locks


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("unit", broker="memory://", backend="cache+memory://", set_as_current=False)
    with in_memory_locks(app):
        yield app
    app.close()


def held() -> str | None:
    lease = current_lease()
    return lease.name if lease else None


def test_wrong_words_are_refused_at_decoration() -> None:
    for options, sentence in (
        ({"on_conflict": "ignore"}, "@single_instance: on_conflict is 'ignore'; write 'skip' or"),
        ({"ttl": 0.2}, "@single_instance: ttl is 0.2 s"),
        ({"limit": 0}, "@single_instance: limit"),
        ({"kye": "x"}, "@single_instance: no lock option 'kye'"),
        ({"key": 3}, "@single_instance: key is 3"),
    ):
        with pytest.raises(LockUsageError, match=sentence):
            single_instance(**options)  # type: ignore[call-overload]


def test_a_template_is_checked_below_app_task() -> None:
    with pytest.raises(LockUsageError, match="names 'invoice', but the parameters are number"):

        @single_instance(key="i:{invoice}")
        def bill(number: int) -> None: ...


def test_a_template_is_checked_above_app_task(app: Celery) -> None:
    """A lazy task is checked when it is made, a made one at once."""

    @single_instance(key="i:{invoice}")
    @app.task(name="lazily_wrong", shared=False)
    def bill(number: int) -> None: ...

    with pytest.raises(LockUsageError, match="names 'invoice', but the parameters are number"):
        bill.name  # noqa: B018


def test_a_template_is_checked_as_an_option(app: Celery) -> None:
    app.finalize()
    with pytest.raises(LockUsageError, match="names 'invoice', but the parameters are number"):

        @app.task(base=LockedTask, lock_key="i:{invoice}", name="wrong_option", shared=False)
        def bill(number: int) -> None: ...

    app.tasks.pop("wrong_option", None)


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ({"lock_on_conflict": "ignore"}, "task .*: on_conflict is 'ignore'"),
        ({"lock_ttl": 0}, "task .*: ttl is 0 s"),
        ({"lock_timeout": 5}, "task .*: no lock option 'timeout'"),
    ],
)
def test_wrong_attributes_are_refused(
    app: Celery, attribute: dict[str, Any], sentence: str
) -> None:
    app.finalize()
    with pytest.raises(LockUsageError, match=sentence):

        @app.task(base=LockedTask, name="wrong", shared=False, **attribute)
        def wrong() -> None: ...

    with pytest.raises(LockUsageError, match=sentence):
        type("Wrong", (LockedTask,), attribute)


@pytest.mark.parametrize(
    ("lock", "sentence"),
    [
        ({"on_conflict": "ignore"}, r"apply_async\(lock=…\): on_conflict is 'ignore'"),
        ({"ttl": 0}, r"apply_async\(lock=…\): ttl"),
        ({"nothing": 1}, r"apply_async\(lock=…\): no lock option 'nothing'"),
        ({"key": lambda: "x"}, r"apply_async\(lock=…\): a key for one call must be a text"),
    ],
)
def test_wrong_words_of_a_call_are_refused_by_the_call(
    app: Celery, lock: dict[str, Any], sentence: str
) -> None:
    @app.task(base=LockedTask, shared=False)
    def called() -> None: ...

    with pytest.raises(LockUsageError, match=sentence):
        called.apply_async(lock=lock)
    with pytest.raises(LockUsageError, match=sentence):
        called.s().set(lock=lock).apply_async()


def test_the_key_of_a_call_is_checked_by_the_call(app: Celery) -> None:
    """A template that names no parameter would fail in the worker, where nobody looks."""

    @app.task(base=LockedTask, shared=False)
    def called(number: int) -> None: ...

    with pytest.raises(LockUsageError, match="names 'invoice', but the parameters are number"):
        called.apply_async([1], lock={"key": "i:{invoice}"})


@pytest.mark.parametrize("target", [int, object(), 3])
def test_only_tasks_and_functions_can_be_marked(target: Any) -> None:
    with pytest.raises(LockUsageError, match="is for tasks and their functions"):
        single_instance(target)


def test_a_coroutine_is_refused() -> None:
    """Celery would not await it, so the lock would be free before the work began."""
    sentence = "@single_instance of .*work: async functions are not supported"
    with pytest.raises(LockUsageError, match=sentence):

        @single_instance
        async def work() -> None: ...


@pytest.mark.parametrize("bind", [False, True])
def test_a_coroutine_is_refused_as_a_locked_task(app: Celery, bind: bool) -> None:
    app.finalize()
    sentence = "task work: async functions are not supported"
    with pytest.raises(LockUsageError, match=sentence):

        @app.task(base=LockedTask, bind=bind, shared=False)
        async def work(*args: Any) -> None: ...

    with pytest.raises(LockUsageError, match="async functions are not supported"):

        class Work(LockedTask):
            async def run(self) -> None: ...

    @app.task(base=LockedTask, lock_enabled=False, shared=False)
    async def unlocked() -> None: ...


def test_a_key_without_its_word_is_refused() -> None:
    with pytest.raises(LockUsageError, match=r"write @single_instance\(key='invoice:{n}'\)"):
        single_instance("invoice:{n}")  # type: ignore[type-var]


def test_twice_is_refused(app: Celery) -> None:
    """Below and below, above and above, above and below: which of them would hold?"""

    def work(n: int) -> None: ...

    with pytest.raises(LockUsageError, match="work has @single_instance twice"):
        single_instance(single_instance(key="a:{n}")(work))
    below = app.task(name="below", shared=False)(single_instance(key="a:{n}")(work))
    above = single_instance(key="a:{n}")(app.task(name="above", shared=False)(work))
    app.finalize()
    for task in (below, above):
        with pytest.raises(LockUsageError, match=f"task {task.name} has @single_instance twice"):
            single_instance(key="b:{n}")(task)


def by_other(invoice: int) -> str:
    return f"i:{invoice}"


def by_none() -> str:
    return "always"


def test_a_key_function_that_fits_no_call_is_refused_at_once(app: Celery) -> None:
    app.finalize()
    sentence = (
        r"task bill: the key function by_none\(\) -> 'str' cannot take the task's arguments \(n: "
    )
    with pytest.raises(LockUsageError, match=sentence):

        @app.task(name="bill", shared=False)
        @single_instance(key=by_none)
        def bill(n: int) -> None: ...

    app.tasks.pop("bill", None)


def test_a_key_function_that_does_not_fit_a_call_says_so(app: Celery) -> None:
    """It once was a bare TypeError of ``<lambda>``, in the worker."""

    @app.task(name="bill", shared=False)
    @single_instance(key=by_other)
    def bill(n: int) -> str | None:
        return held()

    assert bill(7) == "i:7"
    sentence = (
        "task bill: the key function by_other.* does not take the arguments of this call: .*n"
    )
    with pytest.raises(LockUsageError, match=sentence):
        bill(n=7)


def test_an_error_of_a_key_function_is_its_own(app: Celery) -> None:
    @app.task(name="bill", base=LockedTask, lock_key=lambda n: "x" + n, shared=False)
    def bill(n: int) -> None: ...

    with pytest.raises(TypeError, match="can only concatenate str"):
        bill(7)


def test_a_task_tells_its_lock_name(app: Celery) -> None:
    """For ``Locks.hold`` beside the task: a text made by hand may be spelt otherwise."""

    @app.task(name="bill", shared=False)
    @single_instance(key="invoice:{tenant}:{number}")
    def bill(tenant: str, number: int) -> str | None:
        return held()

    app.finalize()
    assert bill.lock_name("acme:eu", number=7) == bill("acme:eu", 7) == 'invoice:"acme:eu":7'

    @app.task(name="by_id", base=LockedTask, shared=False)
    def by_id() -> None: ...

    assert by_id.lock_name() is None


def test_above_shared_task_is_refused() -> None:
    with pytest.raises(LockUsageError, match="cannot stand above @shared_task; write it below"):

        @single_instance
        @shared_task(name="shared_above")
        def work() -> None: ...


def test_a_marked_function_that_is_no_task_refuses_to_run() -> None:
    """In no placement does anything run silently unlocked."""

    @single_instance(key="x")
    def lonely() -> None: ...

    with pytest.raises(LockUsageError, match="is no task, so nothing would lock it"):
        lonely()


def test_a_marked_function_called_by_another_task_refuses(app: Celery) -> None:
    @single_instance(key="x")
    def helper() -> None: ...

    @app.task(base=LockedTask, shared=False)
    def outer() -> None:
        helper()

    with pytest.raises(LockUsageError, match="is no task"):
        outer()


def test_a_direct_call_takes_the_lock(app: Celery) -> None:
    @app.task(base=LockedTask, lock_key="direct:{n}", shared=False)
    def work(n: int) -> str | None:
        return held()

    assert work(1) == "direct:1"
    assert work.apply([2]).get() == "direct:2"


def test_a_direct_call_without_a_key_has_no_lock(app: Celery) -> None:
    """The lock is by task id, and there is no id."""

    @app.task(base=LockedTask, bind=True, shared=False)
    def work(self: Any) -> Any:
        return bool(self.lock), self.lock.fence

    assert work() == (False, 0)


@pytest.mark.parametrize("finalised", [False, True])
@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("base", [Task, LockedTask])
@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_every_placement_locks(
    app: Celery, finalised: bool, above: bool, base: Any, bind: bool, lazy: bool
) -> None:
    """Below or above, on either base, bound or not, before and after the app is finalised."""
    if finalised:
        app.finalize()
    mark = single_instance(key="placed:{n}", ttl=7)
    as_task = app.task(base=base, bind=bind, lazy=lazy, shared=False, name="placed")

    def bound(self: Any, n: int) -> str | None:
        return held()

    def free(n: int) -> str | None:
        return held()

    function = bound if bind else free
    task: Any = mark(as_task(function)) if above else as_task(mark(function))
    assert task(1) == "placed:1"
    assert task.apply([2]).get() == "placed:2"
    assert task(n=3) == "placed:3"
    assert isinstance(app.tasks["placed"], LockedTask)
    assert app.tasks["placed"].lock_options().ttl == 7
    assert app.tasks["placed"].name == "placed"


def test_without_parentheses_it_is_all_arguments(app: Celery) -> None:
    @app.task(name="bare", shared=False)
    @single_instance
    def below(n: int, d: int = 3) -> str | None:
        return held()

    @single_instance
    @app.task(name="bare_above", shared=False)
    def above(n: int, *rest: int, **more: int) -> str | None:
        return held()

    assert below(1) == below(n=1, d=3) == "bare(n=1,d=3)"
    assert above(1, 2, x=3) == 'bare_above(n=1,rest=[2],more={"x":3})'


def test_the_decorator_and_the_attributes_add_up(app: Celery) -> None:
    """What stands nearer to the task (``lock_…``) wins over what stands on its function."""

    @app.task(base=LockedTask, lock_ttl=9, shared=False)
    @single_instance(key="both:{n}", ttl=5, limit=2)
    def work(n: int) -> str | None:
        return held()

    options = work.lock_options()
    assert (options.ttl, options.limit, options.key) == (9, 2, "both:{n}")


@pytest.mark.parametrize("above", [False, True])
def test_attributes_count_on_a_plain_task_too(app: Celery, above: bool) -> None:
    """``lock_ttl`` beside the decorator, without ``base=LockedTask``, was once left unread."""

    class Base(Task):
        abstract = True
        lock_limit = 2

    def work(n: int) -> None: ...

    mark = single_instance(key="both:{n}", ttl=5)
    as_task = app.task(name="plain", base=Base, lock_ttl=9, shared=False)
    task: Any = mark(as_task(work)) if above else as_task(mark(work))
    options = task.lock_options()
    assert (options.ttl, options.limit, options.key) == (9, 2, "both:{n}")
    with pytest.raises(LockUsageError, match="no lock option 'timeout'"):
        app.task(name="wrong", lock_timeout=5, lazy=False, shared=False)(
            single_instance(key="both:{n}")(work)
        )


def test_a_task_whose_class_needs_arguments_is_locked(app: Celery) -> None:
    """What is checked is the task that is there; no second one is made for that."""

    class Work(LockedTask):
        name = "work"
        lock_key = "work:{n}"

        def __init__(self, store: str) -> None:
            self.store = store

        def run(self, n: int) -> tuple[str, str | None]:
            return self.store, held()

    assert app.register_task(Work("s3"))(7) == ("s3", "work:7")


def test_options_are_inherited_by_classes(app: Celery) -> None:
    class Careful(LockedTask):
        abstract = True
        lock_ttl = 9
        lock_on_conflict = "wait"

    @app.task(base=Careful, lock_ttl=4, shared=False)
    def work() -> None: ...

    assert (work.lock_options().ttl, work.lock_options().on_conflict) == (4, "wait")


def test_two_tasks_with_one_base_do_not_mix(app: Celery) -> None:
    """Options stand on a task's own class."""

    @single_instance(key="one")
    @app.task(base=LockedTask, shared=False)
    def one() -> str | None:
        return held()

    @single_instance(key="two")
    @app.task(base=LockedTask, shared=False)
    def two() -> str | None:
        return held()

    assert (one(), two(), one()) == ("one", "two", "one")
    assert LockedTask._lock_values == {}


def test_as_the_default_base_of_an_app() -> None:
    """``task_cls``: every task has at least the lock by its id; one opts out."""
    app = Celery(
        "unit", broker="memory://", task_cls="celery_locks:LockedTask", set_as_current=False
    )

    @app.task(name="any_task", shared=False)
    def any_task() -> str | None:
        return held()

    @app.task(name="free_task", lock_enabled=False, shared=False)
    def free_task() -> str | None:
        return held()

    assert isinstance(app.tasks["any_task"], LockedTask)
    with in_memory_locks(app):
        result = any_task.apply()
        assert result.get() == f"any_task[{result.id}]"
        assert free_task.apply().get() is None
    app.close()


def test_a_users_own_call_runs_inside_the_lock(app: Celery) -> None:
    """A base with ``__call__`` (Flask's context, say) still wraps the body."""

    class Context(Task):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return ["called", held(), self.run(*args, **kwargs)]

    @app.task(base=Context, name="in_context", shared=False)
    @single_instance(key="context")
    def work() -> str | None:
        return held()

    app.finalize()
    assert work() == ["called", "context", "context"]
