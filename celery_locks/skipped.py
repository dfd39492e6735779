"""Recognize the result of a task that was skipped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

# The reason why work is not done again, by the first letter of its mark (marks.lua).
REASONS = {"r": "already_done", "n": "already_done", "f": "already_failed", "b": "already_begun"}

RATE_LIMITED = "rate_limited"

Result = TypeVar("Result")


def is_skipped(result: Any) -> bool:
    """Return True for the result of a task that did not run: busy lock, completed work, or rate.

    Such a task has the state SUCCESS and returns ``{"skipped": True, "lock": …, "holder": …}``
    (with ``pause`` if an operator paused the lock), or ``{"skipped": True, "reason":
    "already_done"}`` with ``once``, or ``{"skipped": True, "reason": "rate_limited", "rate": …,
    "retry_after": …}`` with ``on_limit="skip"``, with ``pause`` if an operator paused the rate.
    """
    if not isinstance(result, dict) or result.get("skipped") is not True:
        return False
    return _has_holder(result) or result.get("reason") in (*REASONS.values(), RATE_LIMITED)


def _has_holder(result: dict[str, Any]) -> bool:
    if not isinstance(result.get("lock"), str) or "holder" not in result:
        return False
    holder = result["holder"]
    return holder is None or (
        isinstance(holder, dict) and {"fence", "acquired_at"} <= holder.keys()
    )


def without_skipped(results: Iterable[Result]) -> list[Result]:
    """Return the results of the tasks that ran; for the first line of a chord's body."""
    return [result for result in results if not is_skipped(result)]
