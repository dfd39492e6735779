"""Interrupt a task in a greenlet of gevent: its hub throws the error."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

from celery_locks.integration.interrupt.base import Interrupter, Interruption


@cache
def is_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return bool(monkey and monkey.is_module_patched("threading"))


@cache
def is_green() -> bool:
    """Whether tasks are greenlets; this cannot change once tasks run."""
    patcher = sys.modules.get("eventlet.patcher")
    return is_gevent() or bool(patcher and patcher.is_monkey_patched("thread"))


class GreenletInterrupter(Interrupter):
    """Throws the error into the task's greenlet (gevent)."""

    def __init__(self) -> None:
        gevent: Any = sys.modules["gevent"]
        self._hub, self._task = gevent.get_hub(), gevent.getcurrent()
        self._thread_id = threading.get_ident()

    def _deliver(self, error: Interruption) -> None:
        if threading.get_ident() != self._thread_id:
            self._hub.loop.run_callback_threadsafe(self._throw, error)

    def _throw(self, error: Interruption) -> None:
        if self._raises_loss or self._raises_stop:
            self._task.throw(error)
