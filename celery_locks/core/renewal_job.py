"""The renewals of one server: a background job that renews every lease that is due.

A renewal that fails is tried again until the lease's deadline, then the lease is told that it is
lost. An unexpected failure of one lease affects no other lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from celery_locks.clock import now
from celery_locks.core.lease import NOT_ON_SERVER, BaseLease
from celery_locks.core.pending_releases import group_by_shard
from celery_locks.core.reassertion import reassertion_of
from celery_locks.errors import LockUnavailable
from celery_locks.logs import Reports
from celery_locks.store.commands.locks import CALL_LIMIT, RENEW_BATCH, LockCommands, budget_of
from celery_locks.store.commands.replies import Renewal, RenewReply
from celery_locks.store.effects import Store

# A lease that would be due within this part of its interval is renewed along with the others.
_COALESCE = 0.25


@dataclass(slots=True)
class RenewalEntry:
    """A lease to renew, the store it lives in, and when it is due."""

    lease: BaseLease
    store: Store
    commands: LockCommands
    due: float
    failure: str = ""  # why the last renewal failed

    @property
    def name(self) -> str:
        return self.lease.name

    def schedule(self, at_once: bool = False) -> None:
        """Set the next renewal: in a third of the ttl, or at once if the ttl changed meanwhile."""
        self.failure = ""
        self.due = now() + (0.0 if at_once else self.lease.ttl / 3)

    def schedule_retry(self, failure: str) -> None:
        """Set the next try after a failure: soon, and at the deadline at the latest."""
        self.failure = failure
        gap = max(0.05, self.lease.ttl / 20)
        self.due = min(now() + gap, max(self.lease.deadline, now() + 0.01))


def shortest_budget(entries: list[RenewalEntry]) -> float:
    return max(0.05, budget_of(min((entry.lease.ttl for entry in entries), default=CALL_LIMIT)))


class ServerRenewals:
    """The job that renews the leases of one server."""

    def __init__(
        self, server: Hashable, entries: dict[str, RenewalEntry], reports: Reports
    ) -> None:
        self._server = server
        self._all_entries = entries
        self._reports = reports

    @property
    def due(self) -> float:
        return min((entry.due for entry in self._own_entries()), default=math.inf)

    def _own_entries(self) -> list[RenewalEntry]:
        server = self._server
        return [
            entry
            for entry in list(self._all_entries.values())
            if entry.store.server.addresses == server
        ]

    def patience(self, calls: int = 1) -> float:
        """So short that even if every call of this round times out, no lease misses its renewal."""
        return max(0.05, shortest_budget(self._own_entries()) / max(1, calls))

    def run(self) -> None:
        """Renew what is due, and what soon will be."""
        self._discard_ended()
        entries = self._own_entries()
        moment = now()
        if not any(entry.due <= moment for entry in entries):
            return
        due = [it for it in entries if it.due - it.lease.ttl / 3 * _COALESCE <= moment]
        batches = _batches(due, self._drop)
        # Shards that failed last time come last. A shard that answers leaves its time to the rest,
        # so a slow but living server has more of it than an equal share.
        batches.sort(key=lambda batch: any(entry.failure for entry in batch))
        ends = moment + self.patience()
        for batches_left, batch in zip(reversed(range(len(batches))), batches, strict=True):
            left = ends - now()
            self._renew(batch, max(0.05, left / 2 if batches_left else left))
            self._lose_overdue(entries)

    def _lose_overdue(self, entries: list[RenewalEntry]) -> None:
        """Tell the holders whose deadline has passed during the call of another shard."""
        for entry in entries:
            if entry.failure and now() >= entry.lease.deadline:
                self._run_guarded(partial(self._lose, entry))

    def _discard_ended(self) -> None:
        """Stop renewing leases that ``check`` found past their deadline: nobody uses them."""
        for entry in self._own_entries():
            if entry.lease.has_ended:
                self._discard(entry)

    def _discard(self, entry: RenewalEntry) -> None:
        self._all_entries.pop(entry.lease.token, None)

    def _renew(self, batch: list[RenewalEntry], budget: float) -> None:
        first = batch[0]
        sent_at = now()
        # The call may not outlast a deadline: the holder must hear of it then.
        in_time = max(0.05, min(budget, min(it.lease.deadline for it in batch) - sent_at))
        renewals = [Renewal(it.lease.name, it.lease.token, it.lease.ttl) for it in batch]
        try:
            reply = first.store.perform(first.commands.renew(renewals, in_time))
            if reply.lost:
                reply = self._reassert(batch, reply, max(0.05, in_time - (now() - sent_at)))
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, LockUnavailable):
                self._reports.failure("renewing %d locks failed unexpectedly", len(batch))
                if len(batch) > 1:  # perhaps because of one of them
                    for entry in batch:
                        self._renew([entry], budget / len(batch))
                    return
            for entry in batch:
                self._run_guarded(partial(self._on_failure, entry, error))
            return
        for entry, renewal in zip(batch, renewals, strict=True):
            self._run_guarded(partial(self._on_reply, entry, renewal, reply, sent_at))

    def _reassert(self, batch: list[RenewalEntry], reply: RenewReply, budget: float) -> RenewReply:
        """Assert leases again that the server may have lost; return the reply without them."""
        store, commands = batch[0].store, batch[0].commands
        renewed = [it.lease for it in batch if it.lease.token in self._all_entries]
        found = (reassertion_of(lease, commands, reply) for lease in renewed)
        missing = [it for it in found if it]
        if not missing:
            return reply
        lost = store.perform(commands.reassert(missing, budget))
        held = {it.token for it in missing} - lost
        for entry in batch:
            if entry.lease.token in held:
                self._run_guarded(partial(self._on_reasserted, entry))
        return reply._replace(lost=reply.lost - held)

    def _on_reasserted(self, entry: RenewalEntry) -> None:
        lease = entry.lease
        if lease.has_ended or lease.token not in self._all_entries:
            # It was released meanwhile, perhaps before the server had it again.
            entry.store.perform(entry.commands.release(lease.name, lease.token))
            return
        lease.emit("reasserted")

    def _run_guarded(self, step: Callable[[], None]) -> None:
        """Run the step of one lease; its failure must not affect the others."""
        try:
            step()
        except BaseException:  # noqa: BLE001
            self._reports.failure("the lock renewer failed at a lease and continues")

    def _on_reply(
        self, entry: RenewalEntry, renewal: Renewal, reply: RenewReply, sent_at: float
    ) -> None:
        if renewal.token in reply.lost:
            self._discard(entry)
            entry.lease.lose(NOT_ON_SERVER, reply.revoked.get(renewal.token))
            return
        entry.schedule(at_once=renewal.ttl != entry.lease.ttl)
        entry.lease.mark_renewed(sent_at, renewal.ttl)
        if renewal.token in reply.stops:
            entry.lease.request_stop()

    def _on_failure(self, entry: RenewalEntry, error: Exception) -> None:
        entry.schedule_retry(str(error))
        if now() >= entry.lease.deadline:
            self._lose(entry)
        else:
            entry.lease.suspend(error)

    def _lose(self, entry: RenewalEntry) -> None:
        self._discard(entry)
        entry.lease.lose(f"it could not be renewed in time: {entry.failure}")

    def _drop(self, entry: RenewalEntry) -> None:
        self._reports.failure("lock %r cannot be renewed: no call can be made of it", entry.name)
        self._discard(entry)
        entry.lease.lose("it cannot be renewed")


def _batches(
    entries: list[RenewalEntry], drop: Callable[[RenewalEntry], None]
) -> list[list[RenewalEntry]]:
    """Return the entries of each call: those of one shard, up to ``RENEW_BATCH``."""
    return [
        group[start : start + RENEW_BATCH]
        for group in group_by_shard(entries, drop)
        for start in range(0, len(group), RENEW_BATCH)
    ]
