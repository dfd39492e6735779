"""Threads, locks and poll as the operating system has them, also under gevent and eventlet.

The keeper must run while a greenlet computes or a patched hub stands still, so it uses the
functions that monkey-patching replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def original(module: str, name: str) -> Any:
    """``module.name`` before any monkey-patching."""
    if "gevent.monkey" in sys.modules:
        return importlib.import_module("gevent.monkey").get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(importlib.import_module("eventlet.patcher").original(module), name)
    return getattr(importlib.import_module(module), name)


def start_thread(function: Callable[..., None], *args: Any) -> None:
    """Run a function beside everything; raises RuntimeError where no thread is to be had.

    Loads first what connecting needs: a process that is forked while this thread imports a module
    would wait for that import for ever.
    """
    "".encode("idna")
    original("_thread", "start_new_thread")(function, args)


@cache
def _allocate() -> Any:
    return original("_thread", "allocate_lock")


@cache
def _allocate_rlock() -> Any:
    return original("_thread", "RLock")


def native_lock() -> Any:
    """A lock that the keeper's thread and greenlets can share; not to be held over I/O."""
    return _allocate()()


def native_rlock() -> Any:
    """The same, but whoever has it may take it again, as a signal handler does."""
    return _allocate_rlock()()
