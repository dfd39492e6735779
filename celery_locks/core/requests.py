"""Requests for a lock: the options of an acquire and what they become; for sync and async alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from celery_locks.clock import now
from celery_locks.core.lease import BaseLease, LostCallback, StopCallback, part_token
from celery_locks.core.owners import Owner, current_holder, current_owner
from celery_locks.errors import LockUsageError
from celery_locks.help_signatures import shows_options
from celery_locks.store.commands.locks import AcquireExtras, LockCommands
from celery_locks.types import DEFAULT_PREFIX, DEFAULT_TTL, Holder, LockSpec
from celery_locks.validation import (
    SHARED_WITH_LIMIT,
    Wait,
    check_not_reserved,
    check_several,
    limits_of,
)

L = TypeVar("L", bound=BaseLease)
CLUSTER_SHARDS = 16


class Layout(TypedDict, total=False):
    """Options of ``Locks``; ``prefix`` and ``shards`` are the same wherever the locks are shared.

    ``guard_after_loss``: if the lock server lost its data, wait for holders from before.
    """

    prefix: str
    shards: int
    ttl: float
    guard_after_loss: bool


class AcquireOptions(TypedDict, total=False):
    """The options of an acquire; they mean the same everywhere in this library."""

    ttl: float
    limit: int | Sequence[int]
    shared: bool
    wait: Wait | None
    at_least: float
    reentrant: bool
    on_lost: LostCallback | None
    on_stop: StopCallback | None
    holder: Holder | None


# The defaults; that of ``ttl`` is the ttl of the ``Locks``.
_DEFAULTS: dict[str, Any] = {
    "ttl": DEFAULT_TTL,
    "limit": 1,
    "shared": False,
    "wait": None,
    "at_least": 0.0,
    "reentrant": False,
    "on_lost": None,
    "on_stop": None,
    "holder": None,
}
shows_acquire_options = shows_options(_DEFAULTS, AcquireOptions.__annotations__)


def layout_of(store: Any, options: Layout) -> tuple[LockCommands, float]:
    """Return the commands and the default ttl of a layout.

    A Cluster spreads its locks over more shards than it has primaries; one server needs one.
    """
    _check_known(options, Layout.__annotations__, "Locks")
    shards = options.get("shards", CLUSTER_SHARDS if store.server.topology == "cluster" else 1)
    ttl = options.get("ttl", DEFAULT_TTL)
    LockSpec("ttl", ttl)
    guard = options.get("guard_after_loss", True)
    if not isinstance(guard, bool):
        raise LockUsageError(f"guard_after_loss is {guard!r}; write True or False")
    prefix = options.get("prefix", DEFAULT_PREFIX)
    return LockCommands(prefix, shards, guard_after_loss=guard), ttl


def new_token() -> str:
    """Return a random token; each acquire has its own."""
    return os.urandom(12).hex()


class AcquireRequest(NamedTuple, Generic[L]):
    """One request for a lock, which started at ``began``.

    ``owner`` is the context that holds the lock until it releases it itself; a lease that may be
    passed on has none. ``reentrant``: the owner may acquire a lock that it holds once more.

    The other fields are for tasks: their token comes from another process, which may also renew
    the lease. ``policy`` is for events only.
    """

    spec: LockSpec
    holder: Holder
    token: str
    began: float
    on_lost: LostCallback | None = None
    owner: Owner | None = None
    reentrant: bool = False
    lease_class: type[L] | None = None
    renewed_elsewhere: bool = False
    extras: AcquireExtras | None = None
    policy: str = "direct"
    also: tuple[LockSpec, ...] = ()
    """Further locks; all are acquired or none."""

    @property
    def parts(self) -> list[tuple[LockSpec, str]]:
        """Every lock with its token."""
        tokens = [part_token(self.token, n + 1) for n in range(len(self.also))]
        return [(self.spec, self.token), *zip(self.also, tokens, strict=True)]


def request_of(
    names: str | Sequence[str],
    token: str,
    default_ttl: float,
    options: AcquireOptions,
    for_hold: bool,
) -> AcquireRequest[Any]:
    """Return the caller's request, in the name of the task that runs here if there is one.

    A hold that ends with its block has an owner, and so has a reentrant one. Any other lease may be
    released anywhere, and a holder that the caller passes describes itself.
    """
    _check_known(options, _DEFAULTS, "an acquire")
    name, *more = (names,) if isinstance(names, str) else names
    check_not_reserved(name)
    shared, limit = options.get("shared", False), options.get("limit", 1)
    if shared and "limit" in options:
        raise LockUsageError(SHARED_WITH_LIMIT)
    spec = LockSpec(
        name,
        options.get("ttl", default_ttl),
        limit if isinstance(limit, int) else limits_of(limit, 1 + len(more))[0],
        options.get("wait"),
        options.get("at_least", 0.0),
        shared,
    )
    also = _further_specs(spec, more, options) if more else ()
    reentrant, given_holder = options.get("reentrant", False), options.get("holder")
    owner = current_owner() if reentrant or (for_hold and not given_holder) else None
    holder, on_lost = given_holder or current_holder(owner), options.get("on_lost")
    return AcquireRequest(spec, holder, token, now(), on_lost, owner, reentrant, also=also)


def _check_known(options: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse an option that would have no effect: Python lets any name into ``**options``."""
    for option in options:
        if option not in known:
            raise LockUsageError(f"{where} has no option {option!r}; there are {', '.join(known)}")


def _further_specs(
    first: LockSpec, names: Sequence[str], options: AcquireOptions
) -> tuple[LockSpec, ...]:
    """Return the specs of the locks to acquire together with the first."""
    check_several([first.name, *names])
    if options.get("reentrant"):
        raise LockUsageError("reentrant is for one lock; acquire several without it")
    for name in names:
        check_not_reserved(name)
    limits = limits_of(options.get("limit", 1), 1 + len(names))[1:]
    ttl, wait, at_least, shared = first.ttl, first.wait, first.at_least, first.shared
    return tuple(
        LockSpec(name, ttl, limit, wait, at_least, shared)
        for name, limit in zip(names, limits, strict=True)
    )
