"""What could not be given back: a release that failed, a grant whose answer never came.

The keeper's thread goes on trying until the lock would have lapsed anyway.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.locks import LockCommands, Mark
from celery_locks.store.effects import Call, Store
from celery_locks.text import printable

logger = logging.getLogger("celery_locks")


@dataclass(slots=True)
class PendingRelease:
    """Something to be given back, as long as that makes a difference.

    A request that was never answered may still be on its way, in a buffer of the network or of a
    stopped server, and be granted after the release. With ``repeat_until_expired`` the release is
    sent again, with growing pauses, for as long as such a grant could last.
    """

    name: str
    token: str
    store: Store
    commands: LockCommands
    until: float
    repeat_until_expired: bool = False
    kept_until: float = 0.0
    keep_as: str = ""
    marks: Sequence[Mark] = ()
    past: str | None = None
    due: float = field(default_factory=now)
    pause: float = 0.25
    trouble: str = "no time was left"  # empty once it was paid
    has_failed: bool = False  # in a way that nobody foresaw, which is logged once

    def schedule_retry(self) -> None:
        self.due = now() + self.pause
        self.pause *= 2

    def call(self, budget: float) -> Call:
        """The release, as it is to be sent now."""
        return self.commands.release(
            self.name,
            self.token,
            keep=max(0.0, self.kept_until - now()),
            keep_as=self.keep_as,
            marks=self.marks,
            past=self.past,
            budget=budget,
        )

    def log_if_unreleased(self) -> None:
        if self.trouble:
            logger.warning(
                "lock %r could not be given back and lapses: %s",
                self.name,
                printable(self.trouble),
                extra={"event": "lapses", "lock": self.name},
            )


class PendingReleases(dict[str, PendingRelease]):
    """By token. Others add to them at any time; only the keeper's thread pays and forgets them."""

    @property
    def due(self) -> float:
        """When the first one is."""
        return min((pending.due for pending in list(self.values())), default=math.inf)

    @property
    def unpaid(self) -> bool:
        return any(pending.trouble for pending in list(self.values()))

    def log_unreleased(self) -> None:
        for pending in list(self.values()):
            pending.log_if_unreleased()

    def flush(self, patience: Callable[[int], float]) -> None:
        """What is due, within the time that the keeper has for so many calls."""
        self._drop_expired()
        moment = now()
        shards = group_by_shard(
            [pending for pending in list(self.values()) if pending.due <= moment], self._drop
        )
        # Half of what a call may take: the renewals wait meanwhile.
        budget = patience(2 * len(shards))
        for releases in shards:
            self._flush_shard(releases, now() + budget)

    def _flush_shard(self, releases: list[PendingRelease], until: float) -> None:
        """What one shard is owed. Once it does not answer, the rest would only cost time too."""
        for pending in releases:
            if now() >= until:
                return
            is_paid = self._send_release(pending, until - now())
            there = self.pop(pending.token, pending)
            if there is not pending:
                self.setdefault(pending.token, there)  # more is owed for it by now
                continue
            if not is_paid:
                self[pending.token] = pending  # last in line: it may be alone in its trouble
                if pending.has_failed:
                    pending.schedule_retry()
                    continue
                for unpaid in releases:
                    unpaid.due = now() + 0.25
                return
            if pending.repeat_until_expired:
                pending.schedule_retry()
                self[pending.token] = pending

    def _send_release(self, pending: PendingRelease, budget: float) -> bool:
        """False if it is to be tried again."""
        try:
            call = pending.call(budget)
        except Exception:  # noqa: BLE001
            self._drop(pending)
            return True
        try:
            pending.store.perform(call)
        except LockUnavailable as error:
            pending.trouble = str(error)
            return False
        except Exception as error:
            if not pending.has_failed:
                logger.exception("giving lock %r back failed in an unforeseen way", pending.name)
            pending.has_failed, pending.trouble = True, repr(error)
            return False
        pending.has_failed, pending.trouble = False, ""
        return True

    def _drop(self, pending: PendingRelease) -> None:
        """No release can be made of it, now or later: nobody can hold a lock of such a name."""
        logger.exception("lock %r cannot be given back: no call can be made of it", pending.name)
        pending.trouble, pending.repeat_until_expired = "", False
        if self.get(pending.token) is pending:
            self.pop(pending.token)

    def _drop_expired(self) -> None:
        for pending in [pending for pending in list(self.values()) if pending.until <= now()]:
            self.pop(pending.token, None)
            pending.log_if_unreleased()


class _Sharded(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def commands(self) -> LockCommands: ...


P = TypeVar("P", bound=_Sharded)


def group_by_shard(things: Iterable[P], drop: Callable[[P], None]) -> list[list[P]]:
    """Those of one store and shard together: they are reached or not reached together.

    ``drop`` is called, while its error is handled, for a thing whose name has no shard.
    """
    groups: dict[tuple[int, str], list[P]] = {}
    for thing in things:
        try:
            shard = (id(thing.store), thing.commands.root(thing.name))
        except Exception:  # noqa: BLE001 (one wrong name must not cost the others their turn)
            drop(thing)
        else:
            groups.setdefault(shard, []).append(thing)
    return list(groups.values())
