"""Helpers for the tests of code with locked tasks: locks in memory, no server, no worker.

::

    def test_a_second_bill_is_skipped(in_memory_locks, hold_lock, assert_skipped):
        with hold_lock("invoice:42"):
            assert_skipped(bill.apply(args=(42,)))

These are fixtures of our pytest plugin (``plugin.py``); without pytest, import the functions of the
same names (``in_memory.py``) from here. Locks in memory need ``pip install celery-locks[testing]``.

The functions are loaded on first use: pytest imports this package to find the plugin, also where
nobody uses locks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_locks.testing.in_memory import (
        assert_skipped,
        hold_lock,
        in_memory_locks,
        lock_name_of,
        locks_disabled,
    )

__all__ = ["assert_skipped", "hold_lock", "in_memory_locks", "lock_name_of", "locks_disabled"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.in_memory"), name)
