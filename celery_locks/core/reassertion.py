"""Which leases may be asserted again after the lock server lost its data (``guard.lua``). No I/O.

A renewal that finds its lease missing does not know why: another holder took it, an operator freed
it, or the server lost it. The server decides, by the lease's fence. The holder asks only while it
is inside its own deadline: then nobody else can have been granted the lock meanwhile.
"""

from __future__ import annotations

from celery_locks.clock import now
from celery_locks.core.lease import BaseLease
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.commands.replies import Reassertion, RenewReply
from celery_locks.types import LockSpec


def reassertion_of(
    lease: BaseLease, commands: LockCommands, reply: RenewReply
) -> Reassertion | None:
    """Return how to assert a lease again that a renewal found missing; None if it is lost."""
    is_missing = lease.token in reply.lost and lease.token not in reply.revoked
    if not (is_missing and lease.holder and commands.guard_after_loss):
        return None
    if lease.has_ended or now() >= lease.deadline:
        return None
    spec = LockSpec(lease.name, lease.ttl, lease.limit or 1, shared=lease.shared)
    holder = lease.holder
    if lease.parts:
        holder = holder._replace(also=tuple(part.name for part in lease.parts))
    return Reassertion(spec, lease.token, lease.fence, holder)
