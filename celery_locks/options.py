"""The lock options of a task, the same everywhere and checked where they are written.

``@single_instance(ttl=…)``, ``@app.task(lock_ttl=…)``, ``apply_async(lock={"ttl": …})`` and
``app.conf.locks_ttl`` all use this module. An option that is not set is absent, so that settings,
task and call can each set some; a call overrides its task, a task the settings.

More than 300 lines: the checks of an option, and of two together, are beside the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, TypeGuard, get_args

from celery_locks.errors import LockUsageError
from celery_locks.rates import RateRule, rules_of
from celery_locks.types import DEFAULT_TTL, LockSpec
from celery_locks.validation import (
    FOREVER,
    SHARED_WITH_LIMIT,
    Wait,
    check_flag,
    check_limit,
    check_seconds,
    check_several,
    check_ttl,
    limits_of,
    patience_of,
)

OnConflict = Literal[
    "skip", "raise", "requeue", "wait", "park", "keep_latest", "join", "cancel_running"
]
OnPublish = Literal[
    "return_existing",
    "raise",
    "replace",
    "allow",
    "skip",
    "wait",
    "park",
    "keep_latest",
    "join",
    "cancel_running",
]
# What follows a wait that ended without the lock.
Then = Literal["raise", "requeue", "skip", "park", "keep_latest", "join", "cancel_running"]
OnRetry = Literal["release", "keep"]
OnLost = Literal["raise", "warn"]
OnUnavailable = Literal["requeue", "run", "fail"]
Reuse = Literal["failed_only", "never", "always"]
OnStop = Literal["check", "raise"]
OnJoinFailure = Literal["run", "propagate"]
Scope = Literal["running", "queued", "queued+running"]
# A function may return None: then there is no lock for this key and call.
Key = str | Callable[..., str | None] | Sequence[str | Callable[..., str | None]]
Limit = int | Callable[..., int] | Sequence[int]
Arguments = dict[str, Any]
"""The arguments of a call, by the names of the task's parameters."""
MergeArguments = Callable[[Arguments, Arguments], Arguments]

# The words that leave a message on the lock server until it has its lock.
PARKING = frozenset({"park", "keep_latest", "join", "cancel_running"})
# Those with which the newest message takes the place of the one that waits.
LATEST = frozenset({"keep_latest", "cancel_running"})
BY_ARGUMENTS = "*"  # the key of ``@single_instance`` without ``key=``

_CHOICES: dict[str, tuple[str, ...]] = {
    "on_retry": get_args(OnRetry),
    "on_lost": get_args(OnLost),
    "on_unavailable": get_args(OnUnavailable),
    "on_stop": get_args(OnStop),
    "on_join_failure": get_args(OnJoinFailure),
    "reuse": get_args(Reuse),
    "scope": get_args(Scope),
}


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The lock options of a task. ``key`` None means: lock by the task's id."""

    key: Key | None = None
    ttl: float = DEFAULT_TTL
    limit: Limit = 1
    shared: bool = False
    on_conflict: OnConflict = "skip"
    wait: Wait = "forever"
    on_retry: OnRetry = "release"
    on_lost: OnLost = "raise"
    on_unavailable: OnUnavailable = "requeue"
    scope: Scope = "running"
    at_least: float = 0.0
    enabled: bool = True
    max_queued: int | None = None
    max_parked: int = 100_000
    fair_by: Key | None = None
    by_priority: bool = False
    wake_queue: str | None = None
    on_join_failure: OnJoinFailure = "run"
    cancel_grace: float = 10.0
    max_displacements: int = 5
    displace_after: float = 0.0
    pending_ttl: float = 3600.0
    keep_message: bool = False
    debounce: float = 0.0
    settle: float = 0.0
    max_wait: float = 0.0
    arguments: Literal["last", "first"] | MergeArguments = "last"
    on_publish: OnPublish = "return_existing"
    then: Then = "raise"
    on_stop: OnStop = "check"
    once: float = 0.0
    once_failed: float = 0.0
    reuse: Reuse = "failed_only"
    rates: tuple[RateRule, ...] = ()

    spec: LockSpec = field(init=False, repr=False, compare=False)
    patience: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Set ``spec``, which has no lock's name yet (``named``), and ``patience``.

        The spec has limit 1 if the limit is a function of the arguments (``limit_of``), or a list.

        Only ``on_conflict="wait"`` makes the acquire wait, again each time that ``then="requeue"``
        brings the message back. With "requeue" alone the patience is that of the message, however
        often it is requeued.
        """
        _check_limit(self.limit)
        patience = patience_of(self.wait)
        object.__setattr__(self, "patience", FOREVER if patience is None else patience)
        waits = self.patience if self.on_conflict == "wait" else None
        limit = self.limit if isinstance(self.limit, int) else 1
        spec = LockSpec("unnamed", self.ttl, limit, waits, self.at_least, self.shared)
        object.__setattr__(self, "spec", spec)

    @property
    def queue_limit(self) -> Limit:
        """The number of messages that may hold a reservation of one name at the same time."""
        return self.max_queued if self.max_queued and self.scope == "queued" else self.limit

    @property
    def parks(self) -> bool:
        """Whether a message waits on the lock server if the lock is busy."""
        return not PARKING.isdisjoint((self.on_conflict, self.then, self.on_publish))

    @property
    def joins(self) -> bool:
        """Whether a call that finds the lock busy takes over the result of the run."""
        return "join" in (self.on_conflict, self.then, self.on_publish)

    @property
    def cancels(self) -> bool:
        """Whether a call that finds the lock busy stops the run that holds it."""
        return "cancel_running" in (self.on_conflict, self.then, self.on_publish)

    @property
    def has_window(self) -> bool:
        """Whether calls within a window become one (``debounce``, ``settle``)."""
        return bool(self.debounce or self.settle)

    @property
    def longest_window(self) -> float:
        return max(self.debounce, self.settle, self.max_wait)

    def due_in(self, elapsed: float = 0.0) -> float:
        """Seconds until the run is due, in a window that began ``elapsed`` seconds ago."""
        if self.debounce:
            return max(0.0, self.debounce - elapsed)
        longest = max(0.0, self.max_wait - elapsed) if self.max_wait else self.settle
        return min(self.settle, longest)


# The parts of on_conflict as they are written, and the options that they become.
PARTS = {"run": "on_conflict", "publish": "on_publish", "then": "then"}
DEFAULTS: dict[str, Any] = {
    option.name: option.default
    for option in fields(LockOptions)
    if option.init and option.name not in ("on_publish", "then")
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
    if values.get("shared") and "limit" in values:
        raise LockUsageError(f"{where}: {SHARED_WITH_LIMIT}")
    if "rates" in values:
        words["rates"] = _checked_rates(values["rates"], where)
    _check_key(values.get("key"), where)
    if is_several(values.get("fair_by")):
        raise LockUsageError(f"{where}: fair_by is one template such as '{{tenant}}' or a function")
    _check_key(values.get("fair_by"), where)
    for option in ("enabled", "keep_message"):
        _check_bool(option, values.get(option, True), where)
    _check_arguments(values.get("arguments", "last"), where)
    try:
        for option, check in _CHECKS.items():
            if option in values:
                check(values[option])
    except LockUsageError as error:
        raise LockUsageError(f"{where}: {error}") from None
    return words


def _check_limit(limit: object) -> None:
    """Check the limit of a task: a number, one for each key, or a function of the arguments."""
    for number in limit if is_several(limit) else [limit]:
        if not callable(number) or number is not limit:
            check_limit(number)


def _checked_rates(rates: object, where: str) -> tuple[RateRule, ...]:
    try:
        return rules_of(rates)
    except LockUsageError as error:
        raise LockUsageError(f"{where}: {error}") from None


def _check_wait(wait: object) -> None:
    """Check the wait of a task, which may not be None."""
    if wait is None:
        raise LockUsageError("wait is None; write a number of seconds, or 'forever'")
    patience_of(wait)


def _check_wake_queue(queue: object) -> None:
    if not (isinstance(queue, str) and queue):
        raise LockUsageError(f"wake_queue is {queue!r}; write the name of a queue")


_CHECKS: dict[str, Callable[[Any], object]] = {
    "ttl": check_ttl,
    "limit": _check_limit,
    "shared": partial(check_flag, "shared"),
    "wait": _check_wait,
    "at_least": partial(check_seconds, "at_least"),
    "max_queued": partial(check_limit, option="max_queued"),
    "max_parked": partial(check_limit, option="max_parked"),
    "by_priority": partial(check_flag, "by_priority"),
    "wake_queue": _check_wake_queue,
    "cancel_grace": partial(check_seconds, "cancel_grace"),
    "max_displacements": partial(check_limit, option="max_displacements"),
    "displace_after": partial(check_seconds, "displace_after"),
    "pending_ttl": partial(check_ttl, option="pending_ttl"),
    "debounce": partial(check_seconds, "debounce"),
    "settle": partial(check_seconds, "settle"),
    "max_wait": partial(check_seconds, "max_wait"),
    "once": partial(check_seconds, "once"),
    "once_failed": partial(check_seconds, "once_failed"),
}


def _both_sides(values: Mapping[str, Any], where: str) -> dict[str, str]:
    """Split ``on_conflict``: one value, or ``{"publish": …, "run": …}``; "raise" means both.

    The other words that both sides know, such as "skip" and "wait", mean the run; those of
    ``PARKING`` mean both with ``scope="queued+running"`` (``combined``).
    ``{"run": "wait", "then": …}`` says what follows a wait that ends without the lock.
    """
    if "on_conflict" not in values:
        return {}
    value, at_run, at_publish = values["on_conflict"], get_args(OnConflict), get_args(OnPublish)
    if isinstance(value, str):
        value = {
            side: value
            for side, words in (("run", at_run), ("publish", at_publish))
            if value in words and (side == "run" or value not in ("skip", "wait", *PARKING))
        }
    good = isinstance(value, Mapping) and value and value.keys() <= PARTS.keys()
    if (
        not good
        or value.get("run", "skip") not in at_run
        or (value.get("publish", "allow") not in at_publish)
    ):
        raise LockUsageError(
            f"{where}: on_conflict is {values['on_conflict']!r}; write {_either(at_run)} for the "
            f"run, {_either(at_publish)} for the publish, or {{'publish': …, 'run': …}}"
        )
    if "then" in value and (value.get("run") != "wait" or value["then"] not in get_args(Then)):
        raise LockUsageError(
            f"{where}: on_conflict is {values['on_conflict']!r}; 'then' is what follows a wait: "
            f"write {{'run': 'wait', 'then': …}} with {_either(get_args(Then))}"
        )
    return {PARTS[side]: option for side, option in value.items()}


# With a skip the last arguments would be lost if they come due during a run.
_DEBOUNCED = {"scope": "queued", "on_conflict": "requeue"}
_WINDOWS = frozenset({"debounce", "settle"})


def merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge checked options; later ones override.

    An ``on_conflict`` without ``then`` also overrides an earlier ``then``. The later of ``limit``
    and ``shared`` excludes the other.
    """
    words: dict[str, Any] = {}
    for more in values:
        if "on_conflict" in more:
            words.pop("then", None)
        if more.get("shared"):
            words.pop("limit", None)
        elif "limit" in more:
            words.pop("shared", None)
        words |= more
    return words


def combined(settings: Mapping[str, Any] | None = None, *values: Mapping[str, Any]) -> LockOptions:
    """Merge the options; later ones override earlier ones, and so does what a window implies.

    A window (``debounce``, ``settle``) implies ``scope`` and ``on_conflict`` (``_DEBOUNCED``).

    A ``wait`` of a task or a call implies ``on_conflict="wait"`` unless ``on_conflict`` is set, or
    the publisher waits. The ``wait`` of the settings is only the patience of those that wait.
    """
    everything = (settings or {}, *values)
    words = merged(*everything)
    if words.get("debounce") or words.get("settle"):
        words = merged(
            *(more if _WINDOWS.isdisjoint(more) else {**_DEBOUNCED, **more} for more in everything)
        )
    limit = words.get("limit", 1)
    _check_several(words.get("key"), limit, words)
    _check_window(words)
    if words.get("once") and (callable(limit) or limit > 1):
        given = "a function" if callable(limit) else limit
        raise LockUsageError(
            f"once with limit {given}: several could do the work at the same time before "
            "it is done once; leave limit out"
        )
    if words.get("shared") and (words.get("once") or words.get("scope") == "queued+running"):
        option = "once" if words.get("once") else "scope='queued+running'"
        raise LockUsageError(
            f"{option} with shared: several runs share the lock at the same time, but {option} "
            "allows only one; leave one of them out"
        )
    if words.get("by_priority") and words.get("fair_by"):
        raise LockUsageError(
            "by_priority with fair_by: parked tasks come by their priority or take turns, not "
            "both; leave one of them out"
        )
    if (words.get("max_queued") or 1) > 1 and words.get("scope") == "queued":
        words.setdefault("on_publish", "raise")  # no single message would be the existing one
    if words.get("on_conflict") in PARKING and words.get("scope") == "queued+running":
        words.setdefault("on_publish", words["on_conflict"])  # in the order of the calls
    if "cancel_running" in map(words.get, ("on_conflict", "then", "on_publish")):
        words.setdefault("on_stop", "raise")  # a run that is asked to stop shall stop
    if any("wait" in more for more in values) and words.get("on_publish") != "wait":
        words.setdefault("on_conflict", "wait")
    return LockOptions(**words)


def is_several(value: object) -> TypeGuard[Sequence[Any]]:
    """Return True for the key or the limit of a task with several locks."""
    return isinstance(value, list | tuple)


def _check_several(key: object, limit: object, words: Mapping[str, Any]) -> None:
    if not is_several(key):
        if is_several(limit):
            raise LockUsageError(f"limit is {limit!r}, but there is one key; write one number")
        return
    limits_of(limit, len(key))
    parking = PARKING.intersection(map(words.get, ("on_conflict", "then", "on_publish")))
    if parking:
        raise LockUsageError(
            f"on_conflict={min(parking)!r} with several keys is not possible: a message waits in "
            "the queue of one lock. Write one key, or on_conflict='requeue'"
        )
    for option in ("scope", "debounce", "once"):
        if words.get(option, DEFAULTS[option]) != DEFAULTS[option]:
            raise LockUsageError(
                f"{option} with several keys is not possible: it is about one key. Write one key, "
                "and acquire the other locks in the task with Locks.hold"
            )


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
    publisher_waits = is_queued and options.on_publish == "wait"
    if (
        "wait" in values
        and options.on_conflict in ("skip", "raise", *PARKING)
        and not publisher_waits
    ):
        yield (
            f"wait has no effect with on_conflict={options.on_conflict!r}; "
            "write on_conflict='wait' or on_conflict='requeue', or leave wait out"
        )
    if "then" in values and options.on_conflict == "wait" and options.patience == FOREVER:
        yield "a wait without an end has no 'then'; write for example wait=5"
    window = next((option for option in ("debounce", "settle") if values.get(option)), "")
    if options.key is None and (values.get("scope", "running") != "running" or window):
        option = window or f"scope={values['scope']!r}"
        yield f"{option} has no effect on a lock by task id; write a key such as 'invoice:{{id}}'"
    if not is_queued and to_publish != "raise":
        yield (
            f"on_conflict={to_publish!r} is for calls that find another in the queue and has no "
            "effect with scope='running'; write scope='queued' or scope='queued+running'"
        )
    if to_publish in PARKING and options.scope == "queued":
        yield (
            f"on_conflict={{'publish': {to_publish!r}}} needs the lock of the run; write "
            f"scope='queued+running', or on_conflict={to_publish!r} for the run"
        )
    yield from _idle_max_queued(values, options)
    if not is_queued and not options.parks and "pending_ttl" in values:
        yield "pending_ttl has no effect with scope='running'; write scope='queued' too"
    yield from _idle_keep_message(values, options)
    for option in ("cancel_grace", "max_displacements", "displace_after"):
        if option in values and not options.cancels:
            yield f"{option} has no effect without on_conflict='cancel_running'"
    if "on_join_failure" in values and not options.joins:
        yield "on_join_failure has no effect without on_conflict='join'"
    if options.joins and options.once and {"on_conflict", "then", "once"} & values.keys():
        yield "on_conflict='join' with once: repeats get the saved result anyway; leave one out"
    for option in ("max_parked", "fair_by", "by_priority", "wake_queue"):
        if option in values and not options.parks:
            yield f"{option} has no effect without on_conflict='park'"
    if not is_queued and window:
        yield f"{window} has no effect with scope='running'; leave scope out"
    yield from _idle_in_window(values, options)
    if "reuse" in values and not options.once:
        yield "reuse has no effect without once; write for example once=86400"
    if values.get("once_failed") and not options.once:
        yield "once_failed has no effect without once; write for example once=86400"
    if values.get("once_failed") and options.once and options.reuse != "failed_only":
        yield (
            f"once_failed has no effect with reuse={options.reuse!r}, which says itself whether "
            "failed work runs again; leave reuse out"
        )
    if window and to_publish not in ("raise", "replace"):
        yield (
            f"on_conflict={to_publish!r} has no effect with {window}, which always replaces the "
            "call in the queue"
        )
    if window and "on_conflict" in values and options.on_conflict == "skip":
        yield (
            f"{window} with on_conflict='skip' would lose the last call if it comes due during a "
            "run; write on_conflict='requeue' or leave it out"
        )


def _idle_max_queued(values: Mapping[str, Any], options: LockOptions) -> Iterator[str]:
    number = options.max_queued
    if number is None or not {"max_queued", "on_publish"} & values.keys():
        return
    if options.scope != "queued" and "max_queued" in values:
        yield (
            f"max_queued has no effect with scope={options.scope!r}; write scope='queued', or "
            "limit with scope='queued+running', which counts queued and running ones together"
        )
    elif options.has_window:
        yield (
            "max_queued has no effect with debounce or settle, which keep one message in the queue"
        )
    elif options.on_publish == "allow":
        yield "max_queued has no effect if on_conflict for the publish is 'allow'"
    elif number > 1 and options.on_publish in ("return_existing", "replace"):
        yield (
            f"on_conflict={options.on_publish!r} is for the one message in the queue, and "
            f"max_queued={number} allows more; write {{'publish': 'raise'}}, 'skip' or 'wait'"
        )


def _idle_keep_message(values: Mapping[str, Any], options: LockOptions) -> Iterator[str]:
    if not values.get("keep_message"):
        return
    if options.scope == "running" and not options.parks:
        yield (
            "keep_message has no effect with scope='running': such a message holds nothing before "
            "it starts; write scope='queued' or scope='queued+running', or on_conflict='park'"
        )
    if options.has_window and options.arguments != "last":
        yield "keep_message is not possible with merged arguments; leave one of them out"


def _idle_in_window(values: Mapping[str, Any], options: LockOptions) -> Iterator[str]:
    if values.get("max_wait") and not options.settle:
        yield "max_wait has no effect without settle; write for example settle=1"
    if values.get("arguments", "last") == "last":
        return
    if not options.has_window:
        yield "arguments has no effect without debounce or settle; write for example debounce=5"
    elif options.key == BY_ARGUMENTS:
        yield (
            "arguments has no effect without a key: only calls with the same arguments share a "
            "lock; write a key such as 'invoice:{id}'"
        )


def _check_window(words: Mapping[str, Any]) -> None:
    """Refuse options that contradict each other, wherever each of them is set."""
    debounce, settle, max_wait = (words.get(it) or 0 for it in ("debounce", "settle", "max_wait"))
    if debounce and settle:
        raise LockUsageError(
            "debounce and settle together: the run is due debounce seconds after the first call, "
            "or settle seconds after the last one; write one of them"
        )
    if settle and max_wait and max_wait < settle:
        raise LockUsageError(
            f"max_wait is {max_wait:g} s and settle {settle:g} s: no call could ever move the "
            "run; write a max_wait above settle"
        )
    if words.get("arguments", "last") == "last" or not (debounce or settle):
        return
    if words.get("limit", 1) > 1 or words.get("scope") != "queued":
        raise LockUsageError(
            "arguments needs one queued call whose arguments are merged: write scope='queued', or "
            "leave it out, and leave limit out"
        )


def _check_key(key: object, where: str) -> None:
    if is_several(key):
        try:
            check_several(key, "key")
        except LockUsageError as error:
            raise LockUsageError(f"{where}: {error}") from None
        for part in key:
            _check_key("" if part is None or is_several(part) else part, where)
        return
    if key is not None and not callable(key) and not (isinstance(key, str) and key):
        raise LockUsageError(
            f"{where}: key is {key!r}; write a template such as 'invoice:{{id}}' or a function"
        )


def _check_arguments(arguments: object, where: str) -> None:
    if not callable(arguments) and arguments not in ("last", "first"):
        raise LockUsageError(
            f"{where}: arguments is {arguments!r}; write 'last', 'first' or a function "
            "merge(earlier, later)"
        )


def _check_bool(option: str, value: object, where: str) -> None:
    if not isinstance(value, bool):
        raise LockUsageError(f"{where}: {option} is {value!r}; write True or False")


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(repr(option) for option in words)
