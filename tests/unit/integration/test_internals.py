"""The private parts of Celery, kombu and billiard that we use are as we found them.

Each test fails with a new release that moves or changes one of them.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, Task, chain, group, shared_task
from celery.app.task import Context
from celery.backends.rpc import RPCBackend
from celery.concurrency.prefork import TaskPool as Prefork
from celery.concurrency.solo import TaskPool as Solo
from celery.worker import request as worker_request
from celery.worker.control import Panel
from kombu.transport import redis as kombu_redis

from celery_locks.integration import internals
from celery_locks.integration.request import LockRequest


@pytest.fixture
def app() -> Any:
    app = Celery("internals", broker="memory://", set_as_current=False)
    yield app
    app.close()


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_task_is_found_without_finalizing_the_app(app: Celery) -> None:
    """Finalizing early would create the tasks before the user's settings are there."""

    @app.task(name="t", lazy=False, shared=False)
    def t() -> None: ...

    @app.task(name="lazy", shared=False)
    def lazy() -> None: ...

    assert internals.registered_task(app, "t") is not None
    assert internals.registered_task(app, "lazy") is None
    assert not app.finalized


def test_task_id_that_a_canvas_chose_is_recognised(app: Celery) -> None:
    """Others wait for it; nobody but the caller knows an id that the caller chose."""
    published: list[dict[str, Any]] = []

    class Recorded(Task):
        abstract = True

        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            published.append(options)

    @app.task(name="t", base=Recorded, shared=False)
    def t(value: int = 0) -> None: ...

    task: Any = app.tasks["t"]
    frozen = task.s(1)
    frozen.freeze()
    frozen.apply_async()
    group([task.s(1), task.s(2)]).apply_async()
    chain(task.s(1), task.s()).apply_async()
    task.s(1).set(task_id="chosen").apply_async((), parent_id="p", root_id="r")  # as the worker
    assert [internals.is_frozen(options) for options in published] == [True] * 5
    published.clear()
    task.delay(1)
    task.apply_async([1], task_id="chosen")
    task.s(1).set(task_id="chosen").apply_async()
    assert [internals.is_frozen(options) for options in published] == [False] * 3


def test_send_task_has_the_task_of_apply_async_and_these_parameters(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only without it a call is by name; the options may come by position."""
    calls: list[Any] = []
    sent: list[Any] = []

    def plain(
        self: Any,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: Any = None,
        **opts: Any,
    ) -> None:
        sent.append((name, args, kwargs, countdown, opts.get("task_type")))

    names = parameters(Celery.send_task)
    assert names[:5] == ["self", "name", "args", "kwargs", "countdown"]
    assert names[-1] == "options"
    assert {"task_id", "task_type", "retries", "headers"} - set(names) == {"headers"}
    monkeypatch.setattr(Celery, "send_task", plain)
    internals.on_send_task(
        lambda app, name, args, kwargs, options, send: calls.append(options) or send(options)
    )

    @app.task(name="t", shared=False)
    def t(value: int = 0) -> None: ...

    task = app.tasks["t"]
    task.delay(1)
    assert (calls, sent) == ([], [("t", (1,), {}, None, task)])
    app.send_task("other", [1], {}, 20, task_id="x")
    assert calls == [{"countdown": 20, "task_id": "x"}]
    assert sent[1] == ("other", [1], {}, 20, None)


def test_task_by_name_is_found_also_if_the_app_is_not_finalized(app: Celery) -> None:
    @app.task(name="lazy", shared=False)
    def lazy() -> None: ...

    app.autofinalize = False
    assert internals.find_task(app, "lazy") is None
    app.autofinalize = True
    assert internals.find_task(app, "lazy").name == "lazy"
    assert internals.find_task(app, "none") is None


def test_task_made_by_the_decorator_is_recognised(app: Celery) -> None:
    """Its attributes are options that somebody wrote; those of a class may be anything."""

    @app.task(name="t", lazy=False, shared=False)
    def t() -> None: ...

    class Plain(Task):
        pass

    assert internals.is_decorated(vars(type(t)))
    assert not internals.is_decorated(vars(Plain))


def test_tracer_is_an_attribute_that_may_be_reset(app: Celery) -> None:
    """Celery builds it when it is None, and only then."""
    assert vars(Task)["__trace__"] is None
    assert "__trace__ is None" in inspect.getsource(__import__("celery.app.trace", fromlist=["x"]))


def test_wrong_arguments_raise_the_error_of_celery(app: Celery) -> None:
    @app.task(name="t", lazy=False, shared=False)
    def t(a: int) -> None: ...

    internals.check_arguments(t, (1,), {})
    with pytest.raises(TypeError, match="argument"):
        internals.check_arguments(t, (), {})


def test_every_task_passes_bind() -> None:
    """It takes the app, and is a class method that can be wrapped."""
    assert parameters(Task.bind.__func__) == ["cls", "app"]
    assert isinstance(inspect.getattr_static(Task, "bind"), classmethod)


def test_lazy_and_shared_tasks_are_told_apart(app: Celery) -> None:
    """Only the first can be locked from above."""

    @app.task(name="lazy", shared=False)
    def lazy() -> None: ...

    assert internals.is_lazy_task(lazy)
    assert not internals.is_shared_task(lazy)
    found: list[str] = []
    internals.when_evaluated(lazy, lambda task: found.append(task.name))
    assert found == []
    app.finalize()
    assert found == ["lazy"]


def test_shared_task_is_a_plain_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    from celery._state import _on_app_finalizers

    before = set(_on_app_finalizers)

    @shared_task(name="internals-shared")
    def shared() -> None: ...

    assert internals.is_shared_task(shared)
    assert not internals.is_lazy_task(shared)
    _on_app_finalizers.difference_update(_on_app_finalizers - before)


def test_task_that_runs_is_found(app: Celery) -> None:
    seen = []

    @app.task(name="t", lazy=False, shared=False)
    def t() -> None:
        seen.extend([internals.get_current_task(), internals.running_task()])

    t.apply()
    assert [task.name for task in seen] == ["t", "t"]
    assert internals.running_task() is None
    assert internals.get_current_task() is None


def test_worker_request_has_the_parts_that_we_use() -> None:
    """The fields for the child, and a Context of them."""
    source = inspect.getsource(worker_request.Request)
    assert "self._request_dict = " in source
    assert "'headers'" in source or "headers" in source
    assert hasattr(worker_request.Request, "_context")
    request: Any = object.__new__(worker_request.Request)
    request._request_dict = {"id": "t"}
    assert internals.request_dict_of(request) == {"id": "t"}


def test_worker_request_announces_with_a_reason_that_it_is_revoked() -> None:
    """``LockRequest`` overrides this method to say what supersedes a terminated run."""
    announce = worker_request.Request._announce_revoked
    assert parameters(announce)[:2] == ["self", "reason"]
    assert "self._announce_revoked(" in inspect.getsource(worker_request.Request.on_failure) + (
        inspect.getsource(worker_request.Request.terminate)
    )


def test_worker_request_class_of_a_task_redefines_two_methods(app: Celery) -> None:
    """Celery makes a subclass for each task, whose own methods hide ours: they are wrapped."""
    assert parameters(worker_request.create_request_cls)[:2] == ["base", "task"]

    @app.task(name="t", lazy=False, shared=False)
    def t() -> None: ...

    pool = SimpleNamespace(apply_async=None)
    made = worker_request.create_request_cls(LockRequest, t, pool, "host", None)
    for name in ("execute_using_pool", "on_success"):
        assert name in vars(made), name
        assert hasattr(vars(made)[name], "__wrapped__"), f"{name} is not wrapped"
    assert "on_failure" not in vars(made)
    assert "on_accepted" not in vars(made)


def test_error_of_a_child_is_unwrapped() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        info = ExceptionInfo()
    assert isinstance(internals.error_of(info), KeyError)
    assert isinstance(internals.error_of(SimpleNamespace(exception=KeyError("x"))), KeyError)


def test_prefork_is_the_pool_with_children() -> None:
    assert internals.has_children(object.__new__(Prefork))
    assert not internals.has_children(object.__new__(Solo))


@pytest.mark.parametrize("name", ["revoke", "terminate"])
def test_remote_control_command_is_replaced_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery calls what is in this table, with the ids by name."""
    original = Panel.data[name]
    original = getattr(original, "__wrapped__", original)
    assert "task_id" in parameters(original)
    monkeypatch.setitem(Panel.data, name, original)
    for _ in range(2):
        internals.wrap_command(name, lambda command: lambda *args: ("wrapped", command))
    assert Panel.data[name]() == ("wrapped", original)


def test_rpc_results_go_to_the_caller(app: Celery) -> None:
    assert internals.sends_results_to_caller(object.__new__(RPCBackend))
    assert not internals.sends_results_to_caller(app.backend)


def test_redis_channel_has_the_parts_that_we_use() -> None:
    """Where kombu keeps messages is no part of its interface."""
    kind = kombu_redis.Channel
    assert parameters(kind._q_for_pri) == ["self", "queue", "pri"]
    assert parameters(kind._get_message_priority) == ["self", "message", "reverse"]
    assert parameters(kind.get_table) == ["self", "exchange"]
    assert hasattr(kind, "_create_client")
    names = (kind.unacked_key, kind.unacked_index_key, kind.keyprefix_queue, kind.ack_emulation)
    assert names == ("unacked", "unacked_index", "_kombu.binding.%s", True)
    assert kind.visibility_timeout == 3600
    assert kind.priority_steps
    assert internals.RedisChannel.is_redis(kind)
    assert not internals.RedisChannel.is_redis(SimpleNamespace())


def test_some_commands_have_their_prefix_added_by_kombu() -> None:
    """A prefix added twice would look into keys that nobody uses."""
    client = kombu_redis.GlobalKeyPrefixMixin
    channel: Any = object.__new__(internals.RedisChannel)
    channel.key_prefix = "p:"
    assert channel.key(client, "HGET", "x") in {"x", "p:x"}
    assert "LPUSH" in client.PREFIXED_SIMPLE_COMMANDS
    assert channel.key(client, "LPUSH", "x") == "x"
    assert channel.key(SimpleNamespace(), "LPUSH", "x") == "p:x"


def test_context_keeps_what_is_set_on_it() -> None:
    """The execution and the reservation of a run are found by their request."""
    context = Context(id="t")
    context.celery_locks_execution = "e"
    assert context.get("celery_locks_execution") == "e"
    assert Context(**vars(context)).celery_locks_execution == "e"
