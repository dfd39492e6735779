"""The words a task is locked with, the same everywhere, checked where they are written.

``@single_instance(ttl=…)``, ``@app.task(lock_ttl=…)``, ``apply_async(lock={"ttl": …})`` and
``app.conf.locks_ttl`` all end up here. A word nobody said is absent, so that the settings, the
task and the call can each add theirs, the later the stronger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from celery_locks.errors import LockUsageError
from celery_locks.model import DEFAULT_TTL, LockSpec, check_seconds
from celery_locks.once import Reuse

OnConflict = Literal["skip", "raise", "requeue", "wait"]
OnPublish = Literal["return_existing", "raise", "replace", "allow"]
OnRetry = Literal["release", "keep"]
OnLost = Literal["raise", "warn"]
OnUnavailable = Literal["requeue", "run", "fail"]
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
    """How a task is locked. ``key`` None means: by the task's id."""

    key: Key | None = None
    ttl: float = DEFAULT_TTL
    limit: int = 1
    on_conflict: OnConflict = "skip"
    wait: float | None = None
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

    def __post_init__(self) -> None:
        """``spec`` is of no lock yet: it wants ``named``.

        Waiting is a policy of tasks: only ``on_conflict="wait"`` makes the lock itself wait.
        """
        patience = None
        if self.on_conflict == "wait":
            patience = FOREVER if self.wait is None else self.wait
        spec = LockSpec("unnamed", self.ttl, self.limit, patience, self.at_least)
        object.__setattr__(self, "spec", spec)


FOREVER = 10 * 365 * 86400.0
# on_publish is said as a part of on_conflict.
WORDS = tuple(one.name for one in fields(LockOptions) if one.init and one.name != "on_publish")


def checked(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The words as they were said, or a sentence about the first that is wrong."""
    for word, value in said.items():
        if word not in WORDS:
            raise LockUsageError(f"{where}: no lock option {word!r}; there are {', '.join(WORDS)}")
        allowed = _CHOICES.get(word)
        if allowed and value not in allowed:
            raise LockUsageError(f"{where}: {word} is {value!r}; write {_either(allowed)}")
    words = {word: value for word, value in said.items() if word != "on_conflict"}
    words |= _both_sides(said, where)
    _check_key(said.get("key"), where)
    _check_enabled(said.get("enabled", True), where)
    numbers = {word: said[word] for word in ("ttl", "limit", "wait", "at_least") if word in said}
    try:
        LockSpec("checked", **numbers)
        LockSpec("checked", said.get("pending_ttl", 3600.0), wait=said.get("debounce", 0.0))
        check_seconds("once", said.get("once", 0.0))
    except LockUsageError as error:
        raise LockUsageError(f"{where}: {error}") from None
    return words


def _both_sides(said: Mapping[str, Any], where: str) -> dict[str, str]:
    """``on_conflict`` is one word, or ``{"publish": …, "run": …}``; "raise" alone means both."""
    if "on_conflict" not in said:
        return {}
    value, at_run, at_publish = said["on_conflict"], get_args(OnConflict), get_args(OnPublish)
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
            f"{where}: on_conflict is {said['on_conflict']!r}; write {_either(at_run)} for the "
            f"run, {_either(at_publish)} for the publish, or {{'publish': …, 'run': …}}"
        )
    names = {"run": "on_conflict", "publish": "on_publish"}
    return {names[side]: word for side, word in value.items()}


# With a skip the last arguments would be lost where they come due during a run.
_DEBOUNCED = {"scope": "queued", "on_conflict": "requeue"}


def _merged(*said: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for more in said for word, value in more.items()}


def combined(*said: Mapping[str, Any]) -> LockOptions:
    """What was said, the later the stronger; what ``debounce`` means, as strong as who says it."""
    words = _merged(*said)
    if words.get("debounce"):
        words = _merged(*({**_DEBOUNCED, **more} if "debounce" in more else more for more in said))
    if words.get("once") and words.get("limit", 1) > 1:
        raise LockUsageError(
            f"once with limit {words['limit']}: so many could do the work before it is done once"
        )
    return LockOptions(**words)


def _check_key(key: object, where: str) -> None:
    if key is not None and not callable(key) and not (isinstance(key, str) and key):
        raise LockUsageError(
            f"{where}: key is {key!r}; write a template such as 'invoice:{{id}}' or a function"
        )


def _check_enabled(enabled: object, where: str) -> None:
    if not isinstance(enabled, bool):
        raise LockUsageError(f"{where}: enabled is {enabled!r}; write True or False")


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(repr(word) for word in words)
