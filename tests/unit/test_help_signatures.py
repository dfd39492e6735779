"""``help()`` names every option: that is where users look for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import AsyncLocks, LockedTask, Locks, single_instance
from celery_locks.core.requests import AcquireOptions
from celery_locks.options import WORDS

TAKING = [Locks.acquire, Locks.try_acquire, Locks.hold]
TAKING_ASYNC = [AsyncLocks.acquire, AsyncLocks.try_acquire, AsyncLocks.hold]


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    assert not any(p.kind is p.VAR_KEYWORD for p in found)
    return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}


def test_single_instance_shows_its_options() -> None:
    options = options_of(single_instance)
    assert tuple(options) == WORDS
    assert (options["ttl"], options["scope"]) == (30.0, "running")


@pytest.mark.parametrize("function", [*TAKING, *TAKING_ASYNC])
def test_locks_show_how_a_lock_can_be_taken(function: Callable[..., Any]) -> None:
    """A new option that is not shown would fail here."""
    assert set(options_of(function)) - {"required"} == set(AcquireOptions.__annotations__)
    assert "ForwardRef" not in str(inspect.signature(function))


@pytest.mark.parametrize("function", [Locks.hold, AsyncLocks.hold])
def test_hold_explains_its_options_and_exceptions(function: Callable[..., Any]) -> None:
    words = function.__doc__ or ""
    for option in options_of(function):
        assert f"``{option}``" in words
    for error in ("LockConflict", "LeaseLost", "LockUnavailable", "LockUsageError"):
        assert f"``{error}``" in words


def test_single_instance_explains_its_options() -> None:
    words = single_instance.__doc__ or ""
    for option in WORDS:
        assert f"``{option}``" in words
    assert "LockUsageError" in words
    assert "lock_key=" in (LockedTask.__doc__ or "")
