"""Rates: those that delay callers, the delay of one task, and what an operator sets for a rate.

Nothing starts at a paused rate; a rate that an operator sets takes the place of every caller's. The
server records each action (``history.py``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from celery_locks.admin.actions import current_operator
from celery_locks.admin.humanize import format_duration
from celery_locks.admin.overrides import Overridden, check_duration
from celery_locks.core.locks import Locks
from celery_locks.core.requests import new_token
from celery_locks.rates import Rate, RateText
from celery_locks.store.commands.rates import RateAction, RateCommands
from celery_locks.types import Override, RateInfo
from celery_locks.validation import check_name


def list_rates(locks: Locks) -> list[RateInfo]:
    """List the rates that delay callers, are pushed back, or that operators paused or set."""
    return sorted(locks.run(locks.rates.list_rates()), key=lambda rate: rate.name)


def rate_info(locks: Locks, name: str) -> RateInfo | None:
    """Return the state of one rate; None if nobody has started at it in its last period."""
    check_name(name)
    info: RateInfo | None = locks.perform(RateCommands(locks.commands).info(name))
    return info


def pause_rate(
    locks: Locks, name: str, *, seconds: float | None = None, reason: str = "", by: str = ""
) -> Overridden:
    """Let nothing start at a rate, for ``seconds`` or until ``resume_rate``.

    What a caller does is its ``on_limit``: a task that is delayed comes back after 30 s or more
    and asks again. ``name`` is one rate; there are no patterns. A second pause replaces the first.
    """
    new = Override(0, by or current_operator(), reason, 0.0)
    return _override(locks, name, "rate_pause", new, seconds)


def resume_rate(locks: Locks, name: str, *, reason: str = "", by: str = "") -> Overridden:
    """End the pause of a rate; tasks that were delayed meanwhile start when they come back."""
    return _override(locks, name, "rate_resume", Override(0, by or current_operator(), reason, 0.0))


def set_rate(
    locks: Locks,
    name: str,
    rate: RateText,
    *,
    seconds: float | None = None,
    reason: str = "",
    by: str = "",
) -> Overridden:
    """Set a rate, whatever its callers say, for ``seconds`` or until it is reset.

    ``rate`` is "10/m", or several such texts with spaces between them. It allows no burst; the
    ``cost`` of a caller still applies. Tasks that have a start already come at that time, and get
    a new one if this rate does not allow it then.
    """
    parsed = Rate.parse(tuple(rate.split()) if isinstance(rate, str) and rate.split() else rate)
    text = " ".join(map(str, parsed.limits))
    new = Override(0, by or current_operator(), reason, 0.0, rate=text)
    return _override(locks, name, "rate", new, seconds, parsed.text)


def reset_rate(locks: Locks, name: str, *, reason: str = "", by: str = "") -> Overridden:
    """End what ``set_rate`` set: the rates of the callers apply again."""
    return _override(locks, name, "rate_reset", Override(0, by or current_operator(), reason, 0.0))


def _override(
    locks: Locks,
    name: str,
    action: RateAction,
    new: Override,
    seconds: float | None = None,
    limits: str = "0",
) -> Overridden:
    check_name(name)
    check_duration(seconds)
    call = RateCommands(locks.commands).override(
        name, action, new, limits, seconds or 0.0, request_id=new_token()
    )
    was_set: bool = locks.perform(call)
    return Overridden(name, was_set, rate=rate_info(locks, name))


def describe_rate(rate: RateInfo) -> str:
    """Describe a rate in one line."""
    limits = " and ".join(rate.limits) or "no limit seen"
    parts = [str(override) for override in (rate.pause, rate.rate_override) if override]
    if rate.delayed and rate.pause:
        parts.append(f"{rate.delayed} delayed")
    elif rate.delayed:
        promised = [caller.starts_in for caller in rate.callers if caller.is_promised]
        first = f", the next starts in {format_duration(promised[0])}" if promised else ""
        free_in = format_duration(rate.free_in)
        parts.append(f"{rate.delayed} delayed{first}, a new caller in {free_in}")
    if rate.pushed_back:
        parts.append(f"pushed back for {format_duration(rate.pushed_back)}")
    return f"Rate {rate.name!r} ({limits}): {'; '.join(parts) or 'nobody is delayed'}."


def about_rate(locks: Locks, name: str) -> Iterator[str]:
    """Say what operators set for a rate, and whether it delays callers."""
    rate = rate_info(locks, name)
    if not rate:
        return
    if rate.delayed or rate.pushed_back or rate.pause or rate.rate_override:
        yield describe_rate(rate)
    if rate.pause:
        yield f"`locks rate {shlex.quote(name)} --resume` ends the pause."
    if rate.rate_override:
        yield f"`locks rate {shlex.quote(name)} --reset` lets the callers' rates apply again."


def about_delay(locks: Locks, task_id: str) -> Iterator[str]:
    """Say when a task starts that a rate delays."""
    for rate in locks.run(locks.rates.list_rates(task_id)):
        caller = rate.callers[0]
        limits = rate.rate_override.rate.split() if rate.rate_override else rate.limits
        begin = f"Task {task_id} is delayed by rate {rate.name!r} ({' and '.join(limits)})"
        when = format_duration(abs(caller.starts_in))
        if rate.pause:
            yield f"{begin}, which is {rate.pause}."
        elif not caller.is_promised:
            yield f"{begin}, which was paused when it came; it asks again in {when}."
        elif caller.starts_in > 0:
            yield f"{begin}: it starts in {when}, {rate.delayed} ahead of it."
        else:
            yield (
                f"{begin}: it could start {when} ago and has not come yet, {rate.delayed} ahead "
                "of it."
            )
