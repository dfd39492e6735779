"""Owners: the thread, greenlet or asyncio task that a hold belongs to, and the task it runs.

An owner does one thing at a time: while it waits for one lock it cannot release another, so it can
be part of a deadlock (``deadlocks.py``). Therefore a hold that ends with its block, or with its
task, is stored with the id of its owner. A lease from ``acquire()`` has no owner: any thread may
release it.
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
    """A thread, greenlet or asyncio task, and the leases that it has until its blocks end."""

    __slots__ = ("context", "id", "leases", "outer", "process", "process_holder")

    def __init__(self, context: Any, outer: Owner | None = None) -> None:
        """Make an owner; ``outer`` is the thread that runs the event loop of an asyncio task."""
        self.context = ref(context)
        self.outer = outer
        self.process = _process
        self.leases: dict[str, BaseLease] = {}
        self.change_id()

    def change_id(self) -> None:
        """Take a new id, so that holds in the store under the former one no longer count as ours.

        Called when a release is pending: until it is sent, the store shows a hold that nobody has.
        """
        self.id = f"{_process}.{next(_numbers)}"
        self.process_holder = this_process()._replace(owner=self.id)  # outside of any task


def _forget_parent() -> None:
    global _process
    _process = os.urandom(8).hex()


run_after_fork(_forget_parent, "core")


# A context variable, not a thread-local: a pool thread may enter a block in one job and go on with
# others, while the block ends elsewhere.
_thread_owner: ContextVar[Owner | None] = ContextVar("celery_locks_owner", default=None)
_asyncio_owners: WeakKeyDictionary[Any, Owner] = WeakKeyDictionary()


def current_owner() -> Owner:
    """Return the owner of the calling thread, greenlet or asyncio task."""
    # Not its ident: a new thread may get the ident of one that ended.
    thread = threading.current_thread()
    task = _current_asyncio_task()
    if task is not None:
        return _owner_of_asyncio_task(task, thread)
    owner = _thread_owner.get()
    if not _belongs_to(owner, thread):
        owner = Owner(thread)
        _thread_owner.set(owner)
    assert owner is not None
    return owner


def _owner_of_asyncio_task(task: Any, thread: Any) -> Owner:
    owner = _asyncio_owners.get(task)
    if owner is None or not _belongs_to(owner, task):
        outer = _thread_owner.get()
        owner = Owner(task, outer=outer if _belongs_to(outer, thread) else None)
        _asyncio_owners[task] = owner
    return owner


def _belongs_to(owner: Owner | None, context: Any) -> bool:
    """Return False for an owner that was copied to another thread or to a forked child."""
    return owner is not None and owner.context() is context and owner.process is _process


def blocked_owners() -> list[Owner]:
    """Return the owners that are blocked while the caller waits, if they hold a lock.

    An asyncio task that runs inside a Celery task blocks that task too: its body cannot end before
    its event loop does.
    """
    owner = current_owner()
    is_in_celery_task = owner.outer is not None and _task_lookup() is not None
    return [it for it in (owner, owner.outer if is_in_celery_task else None) if it and it.leases]


def _current_asyncio_task() -> Any:
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
    """Set the function that returns the running task as a nested ``Holder``, or None."""
    global _task_lookup
    _task_lookup = lookup


def current_holder(owner: Owner | None) -> Holder:
    """Return the holder of a request from here: the running task, else this process."""
    task = _task_lookup()
    if task is not None:
        return task._replace(owner=owner.id) if owner else task
    return owner.process_holder if owner else this_process()
