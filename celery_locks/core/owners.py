"""Who acquires a lock: the context of control that a hold belongs to, and the task that runs in it.

A context of control is a thread, a greenlet or an asyncio task. It does one thing at a time: while
it waits for one lock it cannot release another, which is what deadlocks are made of
(``deadlocks.py``). So a hold that ends with its block, or with its task, is stored with the id of
its owner. A lease from ``acquire()`` has no owner: any thread may release it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from celery_locks.forking import run_after_fork
from celery_locks.types import Holder, this_process

if TYPE_CHECKING:
    from celery_locks.core.lease import BaseLease

_process = os.urandom(8).hex()
_numbers = itertools.count()


class Owner:
    """One context of control, and the leases that it has until its blocks end, by token."""

    __slots__ = ("_holder", "context", "id", "leases", "outer", "process")

    def __init__(self, context: Any, outer: Owner | None = None) -> None:
        """``outer`` is the thread's, whose code runs the event loop of an asyncio task."""
        self.context = ref(context)
        self.outer = outer
        self.process = _process
        self.leases: dict[str, BaseLease] = {}
        self.change_id()

    def change_id(self) -> None:
        """What is in the store under the former id no longer counts as held by this context.

        Called when a release is left to the keeper: until that is done, the store shows a hold
        that nobody has.
        """
        self.id = f"{_process}.{next(_numbers)}"
        self._holder = this_process()._replace(owner=self.id)

    def as_process(self) -> Holder:
        """The holder that this context is outside of any task."""
        return self._holder


def _forget_parent() -> None:
    global _process
    _process = os.urandom(8).hex()


run_after_fork(_forget_parent, "core")


# By context, not by thread alone: a thread of a pool may enter a block in one job and go on with
# others, while the block is ended elsewhere.
_of_thread: ContextVar[Owner | None] = ContextVar("celery_locks_owner", default=None)
_of_asyncio_task: WeakKeyDictionary[Any, Owner] = WeakKeyDictionary()


def owner_here() -> Owner:
    """The context of control that calls this."""
    # Not its ident: that of a thread that ended is given to the next one.
    thread = threading.current_thread()
    task = _asyncio_task()
    if task is not None:
        return _owner_of_asyncio_task(task, thread)
    owner = _of_thread.get()
    if not _is_of(owner, thread):
        owner = Owner(thread)
        _of_thread.set(owner)
    assert owner is not None
    return owner


def _owner_of_asyncio_task(task: Any, thread: Any) -> Owner:
    owner = _of_asyncio_task.get(task)
    if owner is None or not _is_of(owner, task):
        around = _of_thread.get()
        owner = Owner(task, outer=around if _is_of(around, thread) else None)
        _of_asyncio_task[task] = owner
    return owner


def _is_of(owner: Owner | None, context: Any) -> bool:
    """A context is copied to other threads, and a forked child has its parent's."""
    return owner is not None and owner.context() is context and owner.process is _process


def blocked_here() -> list[Owner]:
    """The owners that cannot go on while this context waits; those that hold nothing are left out.

    An asyncio task that runs inside a Celery task blocks that one too: its body cannot end before
    its event loop does.
    """
    owner = owner_here()
    is_within_task = owner.outer is not None and _task_lookup() is not None
    return [it for it in (owner, owner.outer if is_within_task else None) if it and it.leases]


def _asyncio_task() -> Any:
    loop = asyncio._get_running_loop()
    if loop is None:
        return None
    # Under gevent every greenlet of the thread sees the loop that one of them runs.
    is_here = getattr(loop, "_thread_id", None) in (None, threading.get_ident())
    return asyncio.current_task(loop) if is_here else None


def _no_task() -> Holder | None:
    return None


# Set by the Celery integration, which this layer does not know.
_task_lookup: Callable[[], Holder | None] = _no_task


def set_task_lookup(lookup: Callable[[], Holder | None]) -> None:
    """``lookup()`` says which task runs here, as a nested ``Holder``, or None."""
    global _task_lookup
    _task_lookup = lookup


def caller(owner: Owner | None) -> Holder:
    """Who asks for a lock here: the task that runs, else this process; ``owner`` if it has one."""
    task = _task_lookup()
    if task is not None:
        return task._replace(owner=owner.id) if owner else task
    return owner.as_process() if owner else this_process()
