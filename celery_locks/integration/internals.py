"""Every use of a private part of Celery, kombu and billiard.

Each entry names the versions on which it was verified: "5.3-5.7" means Celery 5.3.0, 5.4.0, 5.5.3,
5.6.3 and 5.7.0, with kombu 5.3.0, 5.5.4 and 5.7.0 and billiard 4.1.0 and 4.3.2.
``tests/unit/integration/test_internals.py`` fails if one of them changes. What Celery documents
(signals, ``Task.Request``, ``app.control``) is used elsewhere.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery, Task, _state, current_task
from celery.local import PromiseProxy, Proxy

# Tasks.

# Verified on 5.3-5.7. The public ``current_task`` is a proxy and takes several times as long.
get_current_task = _state.get_current_task


def registered_task(app: Any, name: str) -> Any:
    """Return a task without finalizing the app, as ``app.tasks`` would; None if there is none.

    Verified on 5.3-5.7.
    """
    return app._tasks.get(name)


def find_task(app: Any, name: str) -> Any:
    """Return a task of this process; None if there is none.

    ``@app.task`` creates its tasks when the app is finalized, which Celery's ``send_task`` does not
    do. Here it is done if there is no such task yet. Verified on 5.3-5.7.
    """
    task = registered_task(app, name)
    if task is None and app.autofinalize and not app.finalized:
        app.finalize(auto=True)
        task = registered_task(app, name)
    return task


def is_decorated(attributes: Mapping[str, Any]) -> bool:
    """Whether these attributes of a task class come from ``@app.task``. Verified on 5.3-5.7."""
    return "_decorated" in attributes


def rebuild_trace(task: Any) -> None:
    """Make Celery build the tracer of a task again, as its class has changed.

    Verified on 5.3-5.7.
    """
    task.__trace__ = None


def check_arguments(task: Any, args: Any, kwargs: Any) -> None:
    """Raise the TypeError of a wrong call, as ``apply_async`` does. Verified on 5.3-5.7."""
    if task.typing:
        task.__header__(*args, **kwargs)


def dump_models(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Convert pydantic models in the arguments to mappings, which the worker gets.

    Verified on 5.7; before it, Celery converts none at this point.
    """
    dump = getattr(task, "_dump_pydantic_arguments", None)
    return (args, kwargs) if dump is None else dump(args, kwargs)


def is_frozen(options: Mapping[str, Any]) -> bool:
    """Whether a canvas chose the task id of this call, or published it as its next step.

    ``Signature.freeze`` adds ``reply_to``; the worker adds ``root_id`` and ``parent_id`` to what
    follows a task. A task id that the caller chose comes with none of them. Verified on 5.3-5.7.
    """
    return bool(options.get("task_id")) and any(map(options.get, _WITH_FROZEN_IDS))


_WITH_FROZEN_IDS = ("reply_to", "root_id", "parent_id")


def running_task() -> Any:
    """Return the task object that runs here; None outside of tasks. Verified on 5.3-5.7."""
    return current_task._get_current_object() if current_task else None


def on_bind(callback: Callable[[Any, Any], None]) -> None:
    """Call ``callback(task_class, app)`` whenever Celery binds a task to an app.

    Every task passes ``Task.bind``, however and whenever it is made: below or above other
    decorators, by ``shared_task``, by ``register_task``, also after the app was finalized. Celery
    has no signal for that. Verified on 5.3-5.7.
    """
    plain_bind = Task.bind.__func__

    @functools.wraps(plain_bind)
    def bind(cls: Any, app: Any) -> Any:
        bound = plain_bind(cls, app)
        callback(cls, app)
        return bound

    Task.bind = classmethod(bind)


def on_send_task(publish: Callable[..., Any]) -> None:
    """Call ``publish(app, name, args, kwargs, options, send)`` for each ``app.send_task``.

    ``send(options)`` is Celery's own. Messages of ``Task.apply_async``, which passes the task as
    ``task_type``, go there directly. No signal of Celery can do it: ``before_task_publish`` can
    neither prevent the message nor raise. Verified on 5.3-5.7.
    """
    plain_send_task = Celery.send_task
    by_position = list(inspect.signature(plain_send_task).parameters)[4:-1]

    @functools.wraps(plain_send_task)
    def send_task(
        self: Any, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any
    ) -> Any:
        if options.get("task_type") is not None:
            return plain_send_task(self, name, args, kwargs, *more, **options)

        def send(final: dict[str, Any], call: Any = (args, kwargs)) -> Any:
            return plain_send_task(self, name, *call, **final)

        options = dict(zip(by_position, more, strict=False)) | options
        return publish(self, name, args, kwargs, options, send)

    Celery.send_task = send_task


def is_lazy_task(target: Any) -> bool:
    """Whether this is what ``@app.task`` returns before the app is finalized."""
    return type(target) is PromiseProxy


def is_shared_task(target: Any) -> bool:
    """Whether this is what ``@shared_task`` returns."""
    return type(target) is Proxy


def when_evaluated(lazy_task: Any, callback: Callable[[Any], None]) -> None:
    """Call ``callback(task)`` once a lazy task has been created. Verified on 5.3-5.7."""
    lazy_task.__then__(lambda: callback(lazy_task._get_current_object()))


# The worker's main process.


def request_dict_of(request: Any) -> dict[str, Any]:
    """Return the fields that a worker's request sends to a child. Verified on 5.3-5.7."""
    fields: dict[str, Any] = request._request_dict
    return fields


def context_of(request: Any) -> Any:
    """Return a worker's request as the ``Context`` that the task would have.

    Verified on 5.3-5.7.
    """
    return request._context


def error_of(exc_info: Any) -> BaseException:
    """Return the error itself, which billiard wraps if a child sent it. Verified on 4.1-4.3."""
    from billiard.einfo import ExceptionWithTraceback

    error: BaseException = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def has_children(pool: Any) -> bool:
    """Whether the tasks of this pool run in child processes. Verified on 5.3-5.7."""
    return _is_prefork(type(pool).__module__)


@functools.cache
def _is_prefork(module: str) -> bool:
    return module.endswith("prefork")


def wrap_command(name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace a remote control command of this worker by ``wrapper(command)``, once.

    Verified on 5.3-5.7.
    """
    from celery.worker.control import Panel  # here: a process that only publishes needs no worker

    original = Panel.data[name]
    if not hasattr(original, "celery_locks"):
        wrapped: Any = functools.wraps(original)(wrapper(original))
        wrapped.celery_locks = True
        Panel.data[name] = wrapped


def sends_results_to_caller(backend: Any) -> bool:
    """Whether only the caller can read the results (``rpc``). Verified on 5.3-5.7."""
    return type(backend).__module__ == "celery.backends.rpc"


# kombu's Redis transport.


class RedisChannel:
    """A channel of kombu's Redis transport: where it keeps messages. Verified on 5.3-5.7."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.key_prefix: str = getattr(channel, "global_keyprefix", "") or ""
        self.binding_prefix: str = self.key_prefix + channel.keyprefix_queue % ""
        self.unacked_key: str = channel.unacked_key
        self.unacked_index_key: str = channel.unacked_index_key
        self.visibility_timeout = float(channel.visibility_timeout)

    @staticmethod
    def is_redis(channel: Any) -> bool:
        return hasattr(channel, "unacked_index_key")

    @property
    def client(self) -> Any:
        """The client of the channel itself."""
        return self._channel.client

    def make_client(self) -> Any:
        """Make a client with connections of its own."""
        return self._channel._create_client()

    @property
    def acknowledges(self) -> bool:
        """Whether messages stay in the broker until they are acknowledged."""
        return bool(self._channel.ack_emulation)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        transport = self._channel.connection
        return (*transport.connection_errors, *transport.channel_errors)

    def list_names(self, queue: str) -> list[str]:
        """Return the lists of a queue, one for each priority."""
        return [self._channel._q_for_pri(queue, step) for step in self._channel.priority_steps]

    def list_name(self, queue: str, payload: Any) -> str:
        """Return the list of a queue that this message belongs to."""
        priority = self._channel._get_message_priority(payload, reverse=False)
        name: str = self._channel._q_for_pri(queue, priority)
        return name

    def bindings(self, exchange: str) -> Any:
        """Rows of (routing key, pattern, queue)."""
        return self._channel.get_table(exchange)

    def key(self, client: Any, command: str, name: str) -> str:
        """Add the key prefix, unless kombu's client adds it for this command itself."""
        if command in getattr(client, "PREFIXED_SIMPLE_COMMANDS", ()):
            return name
        return f"{self.key_prefix}{name}"
