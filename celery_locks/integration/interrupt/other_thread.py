"""Interrupt a task in another thread (threads) by an asynchronous exception."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from celery_locks.core.lease import Lease
from celery_locks.errors import LockError
from celery_locks.integration.interrupt.base import Interrupter, Interruption
from celery_locks.unpatched import native_lock


class InjectedError(LockError):
    """An error raised from another thread; ``Execution`` raises the ``original`` instead."""

    original: Interruption


def _without_arguments(error: Interruption) -> type[InjectedError]:
    """Make a class that needs no arguments: the interpreter takes a class and instantiates it.

    It is a subclass of the error's own class, so that the task can catch it.
    """
    kind: Any = type(error)

    def __init__(self: Any) -> None:
        kind.__init__(self, *error.args)

    return type(kind.__name__, (InjectedError, kind), {"__init__": __init__, "original": error})


class OtherThreadInterrupter(Interrupter):
    """Sets an asynchronous exception in the thread of the task."""

    _is_delivered = False

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._lock = native_lock()

    def arm(self, lease: Lease, *, raise_loss: bool, raise_stop: bool = False) -> None:
        with self._lock:
            self._raises_loss, self._raises_stop = raise_loss, raise_stop

    def disarm(self) -> None:
        """Raise nothing from now on, also not what was delivered and not raised yet."""
        with self._lock:
            self._raises_loss = self._raises_stop = False
        if self._is_delivered:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), None)

    def _deliver(self, error: Interruption) -> None:
        with self._lock:
            if threading.get_ident() != self._thread_id and (
                self._raises_loss or self._raises_stop
            ):
                self._is_delivered = True
                kind = ctypes.py_object(_without_arguments(error))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), kind)
