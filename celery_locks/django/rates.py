"""The rates, as text for the template."""

from __future__ import annotations

from dataclasses import dataclass

from celery_locks import admin
from celery_locks.admin.connect import Locks
from celery_locks.printable_text import printable
from celery_locks.types import RateInfo

MAX_RATES = 200


@dataclass(frozen=True, slots=True)
class RateRow:
    """A row of the table; ``name`` is as stored, for the links."""

    name: str
    label: str
    limits: str
    delayed: int
    sentence: str
    is_paused: bool
    is_set: bool


def read_rates(locks: Locks, name: str) -> tuple[list[RateRow], int]:
    """Return the rates that delay callers or that operators set, or the named one; their number."""
    if name:
        return [_row(admin.rate_info(locks, name) or RateInfo(name, (), 0.0))], 1
    found = admin.list_rates(locks)
    return [_row(rate) for rate in found[:MAX_RATES]], len(found)


def _row(rate: RateInfo) -> RateRow:
    return RateRow(
        name=rate.name,
        label=printable(rate.name),
        limits=printable(" and ".join(rate.limits) or "none seen"),
        delayed=rate.delayed,
        sentence=printable(admin.describe_rate(rate)),
        is_paused=rate.pause is not None,
        is_set=rate.rate_override is not None,
    )
