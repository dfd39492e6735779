"""Rates: how many starts are allowed in a period. Parsing and checks; the server decides (GCRA).

With ``burst=1`` starts are evenly spaced and never exceed the rate in any window of one period.
With ``burst=b`` up to ``b`` may start at once after a pause: a window may contain ``b - 1`` more.
A start with ``cost=c`` counts as ``c`` starts, of which a window may contain ``c - 1`` more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, get_args

from celery_locks.errors import LockUsageError
from celery_locks.validation import MAX_LIMIT, MAX_SECONDS

PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Added to the period: the time from the server's decision to the first line of the work varies by
# about this much. Without it the work would see more starts in a window than the server counted.
JITTER = 0.025

_parse = re.compile(r"([0-9]{1,7})/([smhd])").fullmatch


class Limit(NamedTuple):
    """At most this many starts in a period (a key of ``PERIODS``)."""

    starts: int
    period: str

    @classmethod
    def parse(cls, text: object) -> Self:
        found = _parse(text) if isinstance(text, str) else None
        if not found or not 1 <= int(found[1]) <= MAX_LIMIT:
            raise LockUsageError(
                f"the rate {text!r} must be a number from 1 to {MAX_LIMIT} and a period, s, m, h "
                "or d: '30/m' allows 30 starts per minute"
            )
        return cls(int(found[1]), found[2])

    @property
    def interval(self) -> float:
        """The seconds between two starts."""
        return (PERIODS[self.period] + JITTER) / self.starts

    def __str__(self) -> str:
        return f"{self.starts}/{self.period}"


class Rate(NamedTuple):
    """One or several limits for the same starts, with at most one for each period."""

    limits: tuple[Limit, ...]
    burst: int = 1
    cost: float = 1

    @classmethod
    def parse(cls, rate: object, burst: object = 1, cost: object = 1) -> Self:
        """Read "30/m", or a tuple of several such texts; refuse wrong values with a sentence."""
        texts = tuple(rate) if isinstance(rate, Iterable) and not isinstance(rate, str) else (rate,)
        limits = tuple(map(Limit.parse, texts))
        if not limits or len({limit.period for limit in limits}) < len(limits):
            raise LockUsageError(
                f"the rate {rate!r} must have at least one limit, and one for each period"
            )
        if isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= MAX_LIMIT:
            raise LockUsageError(f"burst is {burst!r}; it must be a whole number from 1")
        if not is_cost(cost):
            raise LockUsageError(f"cost is {cost!r}; it must be a number above 0")
        made = cls(limits, burst, cost)  # type: ignore[arg-type]
        if any(limit.interval * max(burst, made.cost) > MAX_SECONDS for limit in limits):
            raise LockUsageError(f"the rate {made} with its burst and cost is above ten years")
        return made

    @property
    def text(self) -> str:
        """The limits in the form that ``lib/rates.lua`` reads."""
        cost = "" if self.cost == 1 else f":{self.cost:.9g}"
        return " ".join(
            f"{limit}:{_micros(limit.interval * self.cost)}"
            f":{_micros(limit.interval * (self.burst - 1))}{cost}"
            for limit in self.limits
        )

    def __str__(self) -> str:
        return " and ".join(map(str, self.limits))


def _micros(seconds: float) -> int:
    return math.ceil(seconds * 1e6)


def is_cost(value: object) -> bool:
    """Return True for a number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_LIMIT  # type: ignore[operator]


# The same few rates are read at each start.
_parsed = lru_cache(maxsize=1024)(Rate.parse)


@lru_cache(maxsize=1024)
def text_of(rate: Rate) -> str:
    """Return ``rate.text``, which each start sends."""
    return rate.text


OnLimit = Literal["delay", "skip", "raise"]
Key = str | Callable[..., str]
RateText = str | Sequence[str]


class RateRule(NamedTuple):
    """A rate of a task, as it is written: ``@rate_limited(…)`` or an entry of ``lock_rates``.

    ``rate`` may be a function of the call's arguments, which returns None for a call that is not
    limited; ``cost`` may be one too. Calls with the same ``key`` share the rate; without one, all
    calls of the task.
    """

    rate: RateText | Callable[..., RateText | None]
    key: Key | None = None
    burst: int = 1
    cost: float | Callable[..., float] = 1
    on_limit: OnLimit = "delay"

    def checked(self) -> Self:
        cost = 1 if callable(self.cost) else self.cost
        Rate.parse("1/s" if callable(self.rate) else self.rate, self.burst, cost)
        if self.on_limit not in get_args(OnLimit):
            allowed = " or ".join(map(repr, get_args(OnLimit)))
            raise LockUsageError(f"on_limit is {self.on_limit!r}; write {allowed}")
        if self.key is not None and not callable(self.key) and not _is_text(self.key):
            raise LockUsageError(
                f"the key of a rate is {self.key!r}; write a template such as 'api:{{tenant}}' or "
                "a function"
            )
        return self

    def rate_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rate | None:
        """Return the rate of one call; None if it is not limited."""
        rate = self.rate(*args, **kwargs) if callable(self.rate) else self.rate
        if rate is None:
            return None
        parse = _parsed if isinstance(rate, str) else Rate.parse  # a list cannot be cached
        return parse(rate, self.burst, self._cost_of(args, kwargs))

    def _cost_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
        if not callable(self.cost):
            return self.cost
        cost = self.cost(*args, **kwargs)
        if not is_cost(cost):
            name = getattr(self.cost, "__qualname__", repr(self.cost))
            raise LockUsageError(
                f"the cost function {name} returned {cost!r}; it must return a number above 0"
            )
        return cost

    def as_dict(self) -> dict[str, Any]:
        """Return what differs from the default, in the form in which it can be written again."""
        defaults = self._field_defaults
        fields = self._asdict().items()
        return {name: it for name, it in fields if name not in defaults or it != defaults[name]}


def rules_of(rates: object) -> tuple[RateRule, ...]:
    """Read the option ``rates``: a rate such as "30/m", or a list of rates and mappings.

    A mapping has the parameters of ``@rate_limited``: ``{"rate": "30/m", "key": "api:{tenant}"}``.
    """
    entries = rates if isinstance(rates, list | tuple) and not _is_rule(rates) else (rates,)
    if len(entries) > _MOST_RULES:
        raise LockUsageError(f"there are {len(entries)} rates; {_MOST_RULES} is the most")
    return tuple(_rule_of(entry) for entry in entries)


_MOST_RULES = 8


def _is_rule(value: object) -> bool:
    return isinstance(value, RateRule)


def _rule_of(entry: object) -> RateRule:
    if isinstance(entry, RateRule):
        return entry.checked()
    if not isinstance(entry, Mapping):
        return RateRule(entry).checked()  # type: ignore[arg-type]
    unknown = [name for name in entry if name not in RateRule._fields]
    if unknown or "rate" not in entry:
        raise LockUsageError(
            f"the rate {entry!r} must have 'rate', and may have {', '.join(RateRule._fields[1:])}"
        )
    return RateRule(**entry).checked()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
