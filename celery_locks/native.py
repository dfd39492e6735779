"""Threads, locks and poll as the operating system has them, also under gevent and eventlet.

The keeper must run while a greenlet computes or a patched hub stands still, so it uses the
functions that monkey-patching replaced.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any


def original(module: str, name: str) -> Any:
    """``module.name`` before any monkey-patching."""
    if "gevent.monkey" in sys.modules:
        return importlib.import_module("gevent.monkey").get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        return getattr(importlib.import_module("eventlet.patcher").original(module), name)
    return getattr(importlib.import_module(module), name)


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
