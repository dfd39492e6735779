"""The rates that limit one call of a task, with their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from celery_locks import name_from_arguments
from celery_locks.errors import LockUsageError
from celery_locks.integration.internals import dump_models
from celery_locks.integration.lock_name import name_from_key
from celery_locks.options import BY_ARGUMENTS, LockOptions
from celery_locks.rates import Rate, RateRule, text_of
from celery_locks.store.commands.locks import RateCheck
from celery_locks.validation import MAX_SECONDS, check_name

_PERIOD = re.compile("/([a-z]):")


def rate_checks(
    task: Any,
    options: LockOptions,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    can_delay: bool,
) -> tuple[RateCheck, ...]:
    """Return the rates that limit this call, each name once.

    Those that do not depend on its arguments are made once, and kept with the rules.
    """
    known = vars(task).get("_lock_rate_checks")
    if known is None or known[0] is not options.rates or known[1] != can_delay:
        found = _find_checks(task, options.rates, args, kwargs, can_delay=can_delay)
        if not all(map(_is_constant, options.rates)):
            return found
        known = task._lock_rate_checks = (options.rates, can_delay, found)
    checks: tuple[RateCheck, ...] = known[2]
    return checks


def _is_constant(rule: RateRule) -> bool:
    """Return True if the rule gives the same check for every call of the task."""
    if callable(rule.rate) or callable(rule.cost) or callable(rule.key):
        return False
    return rule.key is None or ("{" not in rule.key and rule.key != BY_ARGUMENTS)


def _find_checks(
    task: Any,
    rules: tuple[RateRule, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    can_delay: bool,
) -> tuple[RateCheck, ...]:
    found: dict[str, RateCheck] = {}
    for rule in rules:
        rate = _rate_of(task, rule, args, kwargs)
        if rate is None:
            continue
        name: str | None = name_from_arguments.shortened(task.name)
        if rule.key is not None:
            name = name_from_key(task, rule.key, args, kwargs)
        if name is None:
            continue
        check_name(name)
        patience = MAX_SECONDS if rule.on_limit == "delay" and can_delay else 0.0
        check = RateCheck(name, text_of(rate), patience, rule.on_limit == "skip")
        found[name] = _merged(found[name], check) if name in found else check
    return tuple(found.values())


def _rate_of(
    task: Any, rule: RateRule, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Rate | None:
    if callable(rule.rate) or callable(rule.cost):
        args, kwargs = dump_models(task, args, kwargs)
    try:
        return rule.rate_of(args, kwargs)
    except LockUsageError as error:
        raise LockUsageError(f"task {task.name}: {error}") from error.__cause__


def _merged(first: RateCheck, other: RateCheck) -> RateCheck:
    """Return both limits of one name, if they are of different periods."""
    limits = f"{first.limits} {other.limits}"
    if len(set(_PERIOD.findall(limits))) < len(_PERIOD.findall(limits)):
        raise LockUsageError(
            f"two rates of this call have the name {first.name!r} and the same period; write "
            "different keys"
        )
    patience, skips = min(first.patience, other.patience), first.skips or other.skips
    return RateCheck(first.name, limits, patience, skips)
