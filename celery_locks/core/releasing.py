"""Release, written once for ``Locks`` and ``AsyncLocks``. No I/O.

A release that fails or is interrupted is handed to the renewer, which tries it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.lease import BaseLease, State
from celery_locks.core.owners import current_owner
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import L
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.locks import WOKE, LockCommands, Mark, budget_of
from celery_locks.store.effects import Operation, Store

# Seconds for which a mark that could not be written is tried again, so that completed work counts.
RETRY_MARKS_FOR = 600.0


class ReleaseOperations(Generic[L]):
    """The operations that release; what has to be tried again goes through ``background_store``."""

    def __init__(self, background_store: Store, commands: LockCommands) -> None:
        self.background_store = background_store
        self.commands = commands

    def release(
        self,
        lease: L,
        marks: Sequence[Mark] = (),
        keep_for: float = 0.0,
        next_token: str = "",
    ) -> Operation[bool]:
        """Release, also a lease that was entered again; return True if it was ours until now.

        Leave the ``marks`` behind. ``keep_for`` leaves the slot taken for that many seconds, under
        the token ``next_token`` or one that nobody knows, as it always is for several locks.
        """
        try:
            if not lease.begin_release():
                return False
            self._stop_renewing(lease)
            kept_seconds, history_note = lease.release_arguments(keep_for)
            details: dict[str, Any] = {
                "keep_for": kept_seconds,
                "marks": marks,
                "history_note": history_note,
                "budget": budget_of(lease.ttl),
            }
            is_event_wanted = events.is_wanted("released")
            was_ours: bool
            if lease.parts:
                was_ours = yield from self._release_several(lease, details)
            else:
                call = self.commands.release(
                    lease.name, lease.token, next_token=next_token, **details
                )
                reply = yield call
                was_ours, lease.woke_parked = bool(reply), reply == WOKE
            if is_event_wanted:
                lease.emit("released", held_for=lease.held_for, ours=was_ours)
            return was_ours
        except BaseException:
            self._defer_release(lease, marks, keep_for, next_token)
            raise

    def _retry_for(self, lease: BaseLease, marks: Sequence[Mark]) -> float:
        longest_mark = max(mark.ttl for mark in marks) if marks else 0.0
        return lease.ttl + min(RETRY_MARKS_FOR, longest_mark)

    def _stop_renewing(self, lease: BaseLease) -> None:
        renewer.discard(lease.token)
        for part in lease.parts:
            renewer.discard(part.token)

    def _release_several(self, lease: BaseLease, details: dict[str, Any]) -> Operation[bool]:
        """Release in one call, or in one for each lock if they are in several shards."""
        names = [part.name for part in (lease, *lease.parts)]
        if self.commands.are_together(names):
            return bool((yield self.commands.release_several(names, lease.token, **details)))
        were_ours = [(yield self.commands.release(lease.name, lease.token, **details))]
        for part in lease.parts:
            were_ours.append(
                (yield self.commands.release(part.name, part.token, **details | {"marks": ()}))
            )
        return all(were_ours)

    def release_entry(self, lease: L, entry: str = "") -> Operation[bool]:
        """End a reentrant acquire: ``entry``, or any one; if there is none, release the lease."""
        if lease.entries and not lease.is_foreign():
            lease.entries -= {entry} & lease.entries or {min(lease.entries)}
            return True
        return (yield from self.release(lease))

    def _defer_release(
        self,
        lease: BaseLease,
        marks: Sequence[Mark] = (),
        keep_for: float = 0.0,
        next_token: str = "",
    ) -> None:
        """Hand the release to the renewer: the call failed, or a time limit interrupted it."""
        if lease.is_foreign():
            return
        self._stop_renewing(lease)
        if lease.owner:
            lease.owner.leases.pop(lease.token, None)
            lease.owner.change_id()
        kept_seconds, history_note = lease.release_arguments(keep_for)
        kept_until = now() + kept_seconds
        # Tried for a whole ttl: another process may have renewed it since its deadline was set.
        for part in lease.parts:
            self.release_later(
                part.name, part.token, lease.ttl, kept_until=kept_until, history_note=history_note
            )
        self.release_later(
            lease.name,
            lease.token,
            self._retry_for(lease, marks),
            kept_until=kept_until,
            next_token=next_token,
            marks=marks,
            history_note=history_note,
        )

    def release_later(self, name: str, token: str, retry_for: float, **details: Any) -> None:
        """Have the background thread release this token; it tries for ``retry_for`` seconds.

        ``details`` are further fields of a ``PendingRelease``.
        """
        store, give_up_at = self.background_store, now() + retry_for
        release = PendingRelease(name, token, store, self.commands, give_up_at, **details)
        renewer.release_later(release)

    def exit_hold(self, lease: L | None, failed: bool, entry: str) -> Operation[None]:
        """End a ``hold`` block: raise ``LeaseLost`` if it was lost, unless the block raises."""
        if lease is None:
            return
        lost = lease.state is State.LOST
        # If the server cannot be reached, the renewer tries again and has logged it.
        with suppress(LockUnavailable):
            yield from self.release_entry(lease, entry)
        if lost and not failed:
            raise lease.loss("it ended before the block did; another may have run beside it")

    def release_if_acquired(self, token: str) -> None:
        """Have the renewer release what was acquired with this token, because its caller cannot."""
        for entered in list(current_owner().leases.values()):
            entered.entries -= {token}
        lease = renewer.lease_of(token)
        if lease and lease.begin_release():
            self._defer_release(lease)
