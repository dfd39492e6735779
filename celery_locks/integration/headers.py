"""The data about the lock that travels with a message. No other module reads or writes it.

- The message header ``celery_locks`` holds a ``LockHeader``. Retries and requeued messages inherit
  it.
- The ``properties`` of a request that goes to a pool child hold the token of this execution.
  Nothing inherits it.

A header may come from anybody who can publish, and from an older or newer release:

- A header that is not a mapping, has a newer version, or has a lock option with a wrong value
  raises ``LockUsageError``. The task fails with it: it must not run under another lock than it was
  sent with.
- Unknown fields and options, and wrong values in the other fields, are ignored with a warning. The
  task runs under its lock. A release that adds a field which others must not ignore increases
  ``VERSION``.
- A header gives no rights over other tasks. The reservation's token is computed from the task's
  own id, and the message that this one replaced is read from the lock server.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from celery_locks import logs
from celery_locks import options as lock_options
from celery_locks.errors import LockUsageError
from celery_locks.store.commands.locks import reservation_token
from celery_locks.validation import MAX_NAMES, check_name

HEADER = "celery_locks"
VERSION = 1

_KEY_LENGTH = 1000
_MOST_TIMES = 1_000_000
_MOST_FENCES = 4 * MAX_NAMES  # a run may call locked tasks directly, and holds their locks too
_LATEST = 1e11  # seconds since 1970
_WHERE = f"the header {HEADER!r} of this message"
_reports = logs.Reports()


@dataclass(frozen=True, slots=True)
class LockHeader:
    """The lock data of a message; most messages have the defaults and so no header."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The lock options of this call."""
    queued: str = ""
    """The name of the lock that the message holds while it is queued."""
    of_retry: bool = False
    """That lock was kept for this attempt by the one before."""
    of_requeue: bool = False
    """That lock was kept for this message by its run, which requeued it."""
    parked: bool = False
    """That lock was reserved for the message when it was woken."""
    joins: int = 0
    """It waits for the result of the run with this fence, or a later one."""
    displacements: int = 0
    """How many runs in a row were stopped for the next one, up to the one for this message."""
    replaced: bool = False
    """The message was published to replace another one."""
    since: float | None = None
    """The wall-clock time at which it was requeued for the first time."""
    times: int = 0
    """The number of times it was requeued."""
    unseen: float | None = None
    """The time since when it waits for the result of a copy that has ended."""
    refused: float | None = None
    """The time since when the lock server rejects the worker (password, permission, TLS)."""
    published_by: tuple[int, ...] = ()
    """The fences of the run that published this message: the attempt before, if it is a retry."""

    @classmethod
    def read(cls, headers: object) -> LockHeader:
        """Read the custom headers of a message, as Celery has them; raises LockUsageError."""
        raw = headers.get(HEADER) if isinstance(headers, Mapping) else None
        return NO_HEADER if raw is None else cls._parse(raw)

    @classmethod
    def read_request(cls, request_dict: Mapping[str, Any]) -> LockHeader:
        """Read a request as the worker received it, by the rule of Celery's ``Context``."""
        headers = request_dict.get("headers")
        return cls.read(request_dict if headers is None else headers)

    @classmethod
    def _parse(cls, raw: object) -> Self:
        if not isinstance(raw, Mapping):
            raise LockUsageError(f"{_WHERE} is {_short(raw)}; it must be a mapping")
        _check_version(raw.get("version", 0))
        if "version" not in raw:
            raw = _from_unversioned(raw)
        known = {name: value for name, value in raw.items() if name in _READERS}
        _warn_ignored("fields", [name for name in raw if name not in {*_READERS, "version"}])
        values: dict[str, Any] = {"options": _read_options(known.pop("options", {}))}
        for name, value in known.items():
            try:
                values[name] = _READERS[name](value)
            except LockUsageError:
                _reports.warning("%s: %s is %s and is ignored", _WHERE, name, _short(value))
        return cls(**values)

    def reservation(self, task_id: str | None) -> tuple[str, str]:
        """Return name and token of the lock that the message of this task holds; empty if none."""
        if not self.queued or not task_id:
            return "", ""
        try:
            token = reservation_token(
                task_id, again=self.of_retry, requeued=self.of_requeue, parked=self.parked
            )
            return self.queued, token
        except (TypeError, UnicodeError):  # no publisher of this package makes such an id
            return "", ""

    def of_call(self) -> LockHeader:
        """Return the part that stays for as long as it is the same attempt of the same call."""
        return LockHeader(self.options, published_by=self.published_by)

    def requeued(self, moment: float) -> LockHeader:
        """Return the header of the message that is requeued now."""
        since = moment if self.since is None else self.since
        return replace(self, since=since, times=self.times + 1)

    def write(self, headers: object) -> dict[str, Any]:
        """Return a copy of ``headers`` that contains this header."""
        others = dict(headers) if isinstance(headers, Mapping) else {}
        others.pop(HEADER, None)
        changed = {
            name: value
            for name, default in _DEFAULTS.items()
            if (value := getattr(self, name)) != default
        }
        if self.published_by:
            changed["published_by"] = list(self.published_by)
        if "rates" in changed.get("options", {}):
            rates = [rule.as_dict() for rule in changed["options"]["rates"]]
            changed["options"] = {**changed["options"], "rates": rates}
        return {**others, HEADER: {"version": VERSION, **changed}} if changed else others


NO_HEADER = LockHeader()
_DEFAULTS = {each.name: getattr(NO_HEADER, each.name) for each in fields(LockHeader)}


def give_token(request_dict: dict[str, Any], token: str) -> None:
    """Pass a child the token of its execution, which also tells it who renews the lock."""
    request_dict["properties"] = {**(request_dict.get("properties") or {}), HEADER: token}


def remove_token(request_dict: dict[str, Any]) -> None:
    """Remove a token that came with the message: only this process may give one."""
    properties = request_dict.get("properties")
    if isinstance(properties, Mapping) and HEADER in properties:
        request_dict["properties"] = {k: v for k, v in properties.items() if k != HEADER}


def given_token(properties: object) -> str:
    """Return the token that the main process gave this execution; empty if there is none."""
    token = properties.get(HEADER) if isinstance(properties, Mapping) else None
    return token if isinstance(token, str) and _is_token(token) else ""


_is_token = re.compile(r"[0-9a-f]{24}").fullmatch


def _check_version(version: object) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise LockUsageError(f"{_WHERE} has version {_short(version)}; it must be a whole number")
    if version > VERSION:
        raise LockUsageError(
            f"{_WHERE} has version {_short(version)}, and this release of celery-locks understands "
            f"{VERSION} at most: update the workers before the publishers"
        )


def _from_unversioned(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the first format: ``queued`` was name and token, ``replaced`` id and seconds."""
    changed: dict[str, Any] = {}
    queued = raw.get("queued")
    if isinstance(queued, list | tuple) and len(queued) == 2:
        name, token = queued
        changed = {"queued": name, "of_retry": isinstance(token, str) and token.startswith("q+")}
    if "replaced" in raw:
        changed["replaced"] = bool(raw["replaced"])
    return {**raw, **changed}


def _read_options(raw: object) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise LockUsageError(f"{_WHERE} has options {_short(raw)}; they must be a mapping")
    known = {name: value for name, value in raw.items() if name in _OPTIONS}
    _warn_ignored("lock options", [name for name in raw if name not in _OPTIONS])
    _check_key(known.get("key"))
    if "on_publish" in known or "then" in known:
        # The parts of on_conflict travel separately and are checked as they were written.
        parts = {part: known.pop(name, None) for part, name in lock_options.PARTS.items()}
        known["on_conflict"] = {part: value for part, value in parts.items() if value is not None}
    options = lock_options.checked(known, _WHERE)
    for rule in options.get("rates", ()):
        _check_key(rule.key)
    return options


_OPTIONS = {*lock_options.WORDS, *lock_options.PARTS.values()}


def _check_key(key: object) -> None:
    """Refuse a key that could render a name of any length whatever the arguments are."""
    if key is None:
        return
    if lock_options.is_several(key) and len(key) <= MAX_NAMES:
        for part in key:
            _check_key(part if isinstance(part, str) else False)
        return
    if not isinstance(key, str) or len(key) > _KEY_LENGTH:
        raise LockUsageError(
            f"{_WHERE}: key is {_short(key)}; it must be a text of at most {_KEY_LENGTH} characters"
        )
    try:
        specs = [spec or "" for _, _, spec, _ in string.Formatter().parse(key)]
    except ValueError as error:
        raise LockUsageError(f"{_WHERE}: key {_short(key)} is no template: {error}") from None
    if any(re.search(r"\d{4}", spec) for spec in specs):
        raise LockUsageError(f"{_WHERE}: key {_short(key)} asks for 1000 characters or more")


def _read_name(value: object) -> str:
    check_name(value)
    return str(value)


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise LockUsageError("no boolean")
    return value


def _read_moment(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= _LATEST:  # type: ignore[operator]
        raise LockUsageError("no moment")
    return float(value)  # type: ignore[arg-type]


def _read_times(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LockUsageError("no count")
    return min(value, _MOST_TIMES)


def _read_fence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise LockUsageError("no fence")
    return value


def _read_fences(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > _MOST_FENCES:
        raise LockUsageError("no fences")
    return tuple(map(_read_fence, value))


_READERS: dict[str, Callable[[object], Any]] = {
    "options": _read_options,
    "queued": _read_name,
    "of_retry": _read_flag,
    "of_requeue": _read_flag,
    "parked": _read_flag,
    "joins": _read_fence,
    "displacements": _read_times,
    "replaced": _read_flag,
    "since": _read_moment,
    "times": _read_times,
    "unseen": _read_moment,
    "refused": _read_moment,
    "published_by": _read_fences,
}


def _warn_ignored(what: str, names: list[Any]) -> None:
    if names:
        _reports.warning(
            f"%s has {what} that this release of celery-locks does not know and ignores: %s",
            _WHERE,
            ", ".join(map(_short, names[:5])),
        )


def _short(value: object) -> str:
    """Quote a value for an error or the log, shortened."""
    try:
        text = ascii(value)
    except ValueError:  # a number with too many digits
        text = type(value).__name__
    return text if len(text) <= 80 else f"{text[:80]}…"
