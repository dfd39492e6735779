"""The lock options of a task, the same everywhere and checked where they are written.

``@single_instance(ttl=…)``, ``@app.task(lock_ttl=…)``, ``apply_async(lock={"ttl": …})`` and
``app.conf.locks_ttl`` all use this module. An option that is not set is absent, so that settings,
task and call can each set some; a call overrides its task, a task the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, get_args

from celery_locks.errors import LockUsageError
from celery_locks.types import DEFAULT_TTL, LockSpec
from celery_locks.validation import (
    FOREVER,
    Wait,
    check_limit,
    check_seconds,
    check_ttl,
    patience_of,
)

OnConflict = Literal["skip", "raise", "requeue", "wait"]
OnPublish = Literal["return_existing", "raise", "replace", "allow"]
OnRetry = Literal["release", "keep"]
OnLost = Literal["raise", "warn"]
OnUnavailable = Literal["requeue", "run", "fail"]
Reuse = Literal["failed_only", "never", "always"]
OnStop = Literal["check", "raise"]
Scope = Literal["running", "queued", "queued+running"]
Key = str | Callable[..., str]

_CHOICES: dict[str, tuple[str, ...]] = {
    "on_retry": get_args(OnRetry),
    "on_lost": get_args(OnLost),
    "on_unavailable": get_args(OnUnavailable),
    "on_stop": get_args(OnStop),
    "reuse": get_args(Reuse),
    "scope": get_args(Scope),
}


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The lock options of a task. ``key`` None means: lock by the task's id."""

    key: Key | None = None
    ttl: float = DEFAULT_TTL
    limit: int = 1
    on_conflict: OnConflict = "skip"
    wait: Wait = "forever"
    on_retry: OnRetry = "release"
    on_lost: OnLost = "raise"
    on_unavailable: OnUnavailable = "requeue"
    scope: Scope = "running"
    at_least: float = 0.0
    enabled: bool = True
    pending_ttl: float = 3600.0
    debounce: float = 0.0
    on_publish: OnPublish = "return_existing"
    on_stop: OnStop = "check"
    once: float = 0.0
    reuse: Reuse = "failed_only"

    spec: LockSpec = field(init=False, repr=False, compare=False)
    patience: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Set ``spec``, which has no lock's name yet (``named``), and ``patience``.

        Only ``on_conflict="wait"`` makes the acquire wait. With "requeue" the patience is that of
        the message, however often it is requeued.
        """
        check_limit(self.limit)
        patience = patience_of(self.wait)
        object.__setattr__(self, "patience", FOREVER if patience is None else patience)
        waits = self.patience if self.on_conflict == "wait" else None
        spec = LockSpec("unnamed", self.ttl, self.limit, waits, self.at_least)
        object.__setattr__(self, "spec", spec)


# on_publish is written as a part of on_conflict.
DEFAULTS: dict[str, Any] = {
    option.name: option.default
    for option in fields(LockOptions)
    if option.init and option.name != "on_publish"
}
WORDS = tuple(DEFAULTS)


def checked(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the options, with both sides of ``on_conflict``; refuse the first wrong one."""
    for option, value in values.items():
        if option not in WORDS:
            raise LockUsageError(
                f"{where}: no lock option {option!r}; there are {', '.join(WORDS)}"
            )
        allowed = _CHOICES.get(option)
        if allowed and value not in allowed:
            raise LockUsageError(f"{where}: {option} is {value!r}; write {_either(allowed)}")
    words = {option: value for option, value in values.items() if option != "on_conflict"}
    words |= _both_sides(values, where)
    _check_key(values.get("key"), where)
    _check_enabled(values.get("enabled", True), where)
    try:
        for option, check in _CHECKS.items():
            if option in values:
                check(values[option])
    except LockUsageError as error:
        raise LockUsageError(f"{where}: {error}") from None
    return words


def _check_wait(wait: object) -> None:
    """Check the wait of a task, which may not be None."""
    if wait is None:
        raise LockUsageError("wait is None; write a number of seconds, or 'forever'")
    patience_of(wait)


_CHECKS: dict[str, Callable[[Any], object]] = {
    "ttl": check_ttl,
    "limit": check_limit,
    "wait": _check_wait,
    "at_least": partial(check_seconds, "at_least"),
    "pending_ttl": partial(check_ttl, option="pending_ttl"),
    "debounce": partial(check_seconds, "debounce"),
    "once": partial(check_seconds, "once"),
}


def _both_sides(values: Mapping[str, Any], where: str) -> dict[str, str]:
    """Split ``on_conflict``: one value, or ``{"publish": …, "run": …}``; "raise" means both."""
    if "on_conflict" not in values:
        return {}
    value, at_run, at_publish = values["on_conflict"], get_args(OnConflict), get_args(OnPublish)
    if isinstance(value, str):
        value = {
            side: value
            for side, words in (("run", at_run), ("publish", at_publish))
            if value in words
        }
    good = isinstance(value, Mapping) and value and value.keys() <= {"run", "publish"}
    if (
        not good
        or value.get("run", "skip") not in at_run
        or (value.get("publish", "allow") not in at_publish)
    ):
        raise LockUsageError(
            f"{where}: on_conflict is {values['on_conflict']!r}; write {_either(at_run)} for the "
            f"run, {_either(at_publish)} for the publish, or {{'publish': …, 'run': …}}"
        )
    names = {"run": "on_conflict", "publish": "on_publish"}
    return {names[side]: option for side, option in value.items()}


# With a skip the last arguments would be lost if they come due during a run.
_DEBOUNCED = {"scope": "queued", "on_conflict": "requeue"}


def _merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    return {option: value for more in values for option, value in more.items()}


def combined(settings: Mapping[str, Any] | None = None, *values: Mapping[str, Any]) -> LockOptions:
    """Merge the options; later ones override earlier ones, and so does what ``debounce`` implies.

    A ``wait`` of a task or a call implies ``on_conflict="wait"`` unless ``on_conflict`` is set. The
    ``wait`` of the settings is only the patience of those tasks that wait.
    """
    everything = (settings or {}, *values)
    words = _merged(*everything)
    if words.get("debounce"):
        words = _merged(
            *({**_DEBOUNCED, **more} if "debounce" in more else more for more in everything)
        )
    if words.get("once") and words.get("limit", 1) > 1:
        raise LockUsageError(
            f"once with limit {words['limit']}: several could do the work at the same time before "
            "it is done once; leave limit out"
        )
    if any("wait" in more for more in values):
        words.setdefault("on_conflict", "wait")
    return LockOptions(**words)


def refuse_idle(values: Mapping[str, Any], options: LockOptions, where: str) -> None:
    """Refuse ``values``, set in one place, if they have no effect in the merged ``options``.

    ``values`` are as ``checked`` returns them.
    """
    why = next(_idle(values, options), None) if options.enabled else None
    if why:
        raise LockUsageError(f"{where}: {why}")


def _idle(values: Mapping[str, Any], options: LockOptions) -> Iterator[str]:
    to_publish = values.get("on_publish", "raise")  # "raise" alone is also for the run
    is_queued = options.scope != "running"
    if "wait" in values and options.on_conflict in ("skip", "raise"):
        yield (
            f"wait has no effect with on_conflict={options.on_conflict!r}; "
            "write on_conflict='wait' or on_conflict='requeue', or leave wait out"
        )
    if options.key is None and (
        values.get("scope", "running") != "running" or values.get("debounce")
    ):
        option = "debounce" if values.get("debounce") else f"scope={values['scope']!r}"
        yield f"{option} has no effect on a lock by task id; write a key such as 'invoice:{{id}}'"
    if not is_queued and to_publish != "raise":
        yield (
            f"on_conflict={to_publish!r} is for calls that find another in the queue and has no "
            "effect with scope='running'; write scope='queued' or scope='queued+running'"
        )
    if not is_queued and "pending_ttl" in values:
        yield "pending_ttl has no effect with scope='running'; write scope='queued' too"
    if not is_queued and values.get("debounce"):
        yield "debounce has no effect with scope='running'; leave scope out"
    if "reuse" in values and not options.once:
        yield "reuse has no effect without once; write for example once=86400"
    if "debounce" in values and options.debounce and to_publish not in ("raise", "replace"):
        yield (
            f"on_conflict={to_publish!r} has no effect with debounce, which always replaces the "
            "call in the queue"
        )
    if values.keys() >= {"debounce", "on_conflict"} and options.on_conflict == "skip":
        yield (
            "debounce with on_conflict='skip' would lose the last call if it comes due during a "
            "run; write on_conflict='requeue' or leave it out"
        )


def _check_key(key: object, where: str) -> None:
    if key is not None and not callable(key) and not (isinstance(key, str) and key):
        raise LockUsageError(
            f"{where}: key is {key!r}; write a template such as 'invoice:{{id}}' or a function"
        )


def _check_enabled(enabled: object, where: str) -> None:
    if not isinstance(enabled, bool):
        raise LockUsageError(f"{where}: enabled is {enabled!r}; write True or False")


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(repr(option) for option in words)
