"""Native threads, locks and poll, also under gevent and eventlet.

The background threads must run while a greenlet computes or a patched hub is blocked, so they use
the functions that monkey-patching replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def original(module: str, name: str) -> Any:
    """Return ``module.name`` as it was before any monkey-patching."""
    if "gevent.monkey" in sys.modules:
        return importlib.import_module("gevent.monkey").get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(importlib.import_module("eventlet.patcher").original(module), name)
    return getattr(importlib.import_module(module), name)


def start_thread(function: Callable[..., None], *args: Any) -> None:
    """Run a function in a native thread; RuntimeError if the system has no thread left.

    Load first what connecting needs: a child that is forked while this thread imports a module
    would wait for that import forever.
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
    """Return a lock that native threads and greenlets can share; do not hold it during I/O."""
    return _allocate()()


def native_rlock() -> Any:
    """Return a reentrant native lock, for code that a signal handler may interrupt and call."""
    return _allocate_rlock()()
