"""Releases that could not be sent: a release that failed, a grant whose reply never came.

The background thread of their server tries them again until the lock would have lapsed anyway.

A release that is sent twice has the same effect.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.printable_text import printable
from celery_locks.store.commands.locks import WOKE, LockCommands, Mark
from celery_locks.store.effects import Call, Store

logger = logging.getLogger("celery_locks")


@dataclass(slots=True)
class PendingRelease:
    """A release to send; it is dropped if it is still unsent at ``give_up_at``.

    A request without a reply may still be on its way, in a buffer of the network or of a stopped
    server, and be granted after the release. With ``repeat_until_expired`` the release is sent
    again, with growing pauses and for the last time at ``give_up_at``.
    """

    name: str
    token: str
    store: Store
    commands: LockCommands
    give_up_at: float
    repeat_until_expired: bool = False
    kept_until: float = 0.0  # the slot stays taken until then
    next_token: str = ""
    marks: Sequence[Mark] = ()
    history_note: str | None = None
    due: float = field(default_factory=now)
    pause: float = 0.25
    trouble: str = "no time was left"  # why it is not sent; empty once it was
    has_failed: bool = False  # unexpectedly, which is logged once

    def schedule_retry(self) -> None:
        self.due = min(now() + self.pause, self.give_up_at)
        self.pause *= 2

    def make_call(self, budget: float) -> Call:
        """Return the command to send now."""
        return self.commands.release(
            self.name,
            self.token,
            keep_for=max(0.0, self.kept_until - now()),
            next_token=self.next_token,
            marks=self.marks,
            history_note=self.history_note,
            budget=budget,
        )

    def log_if_unreleased(self) -> None:
        if self.trouble:
            logger.warning(
                "lock %r could not be released and lapses: %s",
                self.name,
                printable(self.trouble),
                extra={"event": "lapses", "lock": self.name},
            )


class PendingReleases(dict[str, PendingRelease]):
    """The pending releases by token.

    Any thread may add one; only the thread of its server sends and removes it. ``on_woke`` is
    called there, and must return at once, when a release has woken a parked message.
    """

    on_woke: Callable[[], object] | None = None

    def of_server(self, server: Hashable) -> list[PendingRelease]:
        return [it for it in list(self.values()) if it.store.server.addresses == server]

    @property
    def has_unsent(self) -> bool:
        return any(pending.trouble for pending in list(self.values()))

    def log_unreleased(self) -> None:
        for pending in list(self.values()):
            pending.log_if_unreleased()

    def flush(self, server: Hashable, patience: Callable[[int], float]) -> None:
        """Send the releases of a server that are due, in ``patience(calls)`` for each call."""
        self._drop_expired(server)
        moment = now()
        shards = group_by_shard(
            [pending for pending in self.of_server(server) if pending.due <= moment], self._drop
        )
        # As if it were twice as many calls: the renewals of this server wait meanwhile.
        budget = patience(2 * len(shards))
        for releases in shards:
            self._flush_shard(releases, now() + budget)

    def _flush_shard(self, releases: list[PendingRelease], until: float) -> None:
        """Send the releases of one shard, until it does not answer or the time is over."""
        for number, pending in enumerate(releases):
            if now() >= until:
                return
            is_sent = self._send_release(pending, until - now())
            current = self.pop(pending.token, pending)
            if current is not pending:
                self.setdefault(pending.token, current)  # it was replaced while we sent it
                continue
            if not is_sent:
                self[pending.token] = pending  # last in line: perhaps only this one fails
                if pending.has_failed:
                    pending.schedule_retry()
                    continue
                for unsent in releases[number:]:
                    unsent.due = now() + 0.25
                return
            if pending.repeat_until_expired and now() < pending.give_up_at:
                pending.schedule_retry()
                self[pending.token] = pending

    def _send_release(self, pending: PendingRelease, budget: float) -> bool:
        """Send one release; return False if it is to be tried again."""
        try:
            call = pending.make_call(budget)
        except Exception:  # noqa: BLE001
            self._drop(pending)
            return True
        try:
            if pending.store.perform(call) == WOKE and self.on_woke:
                self.on_woke()
        except LockUnavailable as error:
            pending.trouble = str(error)
            return False
        except Exception as error:
            if not pending.has_failed:
                logger.exception("releasing lock %r failed unexpectedly", pending.name)
            pending.has_failed, pending.trouble = True, repr(error)
            return False
        pending.has_failed, pending.trouble = False, ""
        return True

    def _drop(self, pending: PendingRelease) -> None:
        """Drop a release that can never be sent, while the error that says so is handled."""
        logger.exception("lock %r cannot be released: no call can be made of it", pending.name)
        pending.trouble, pending.repeat_until_expired = "", False
        if self.get(pending.token) is pending:
            self.pop(pending.token)

    def _drop_expired(self, server: Hashable) -> None:
        for pending in self.of_server(server):
            is_last_repeat = pending.repeat_until_expired and not pending.trouble
            if pending.give_up_at <= now() and not is_last_repeat:
                self.pop(pending.token, None)
                pending.log_if_unreleased()


class ServerReleases:
    """The background job that sends the pending releases of one server."""

    def __init__(
        self, server: Hashable, releases: PendingReleases, patience: Callable[[int], float]
    ) -> None:
        self._server = server
        self._releases = releases
        self._patience = patience

    @property
    def due(self) -> float:
        return min((it.due for it in self._releases.of_server(self._server)), default=math.inf)

    def run(self) -> None:
        self._releases.flush(self._server, self._patience)


class _Sharded(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def commands(self) -> LockCommands: ...


P = TypeVar("P", bound=_Sharded)


def group_by_shard(things: Iterable[P], drop: Callable[[P], None]) -> list[list[P]]:
    """Group things by store and shard: one call reaches the whole group or none of it.

    Call ``drop`` for a thing whose name has no shard, while that error is handled.
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
