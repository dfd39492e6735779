"""Waiting for a busy lock: join the queue, sleep until the hand-over, confirm it. No I/O.

A waiter also looks for deadlocks while it waits, and asks again from time to time in case nobody
wakes it.
"""

from __future__ import annotations

from dataclasses import replace

from celery_locks.clock import now
from celery_locks.core.deadlocks import edges, find_own_cycle, read_waits
from celery_locks.core.lease import BaseLease, trusted_until
from celery_locks.core.owners import blocked_owners, current_owner
from celery_locks.core.requests import AcquireRequest, L
from celery_locks.errors import LockDeadlock, LockUnavailable
from celery_locks.store.calls import Call, Operation, Subscribe, WaitForHandover
from celery_locks.store.commands.locks import CLAIM, LockCommands, budget_of
from celery_locks.store.commands.replies import Completed, Ended, Rejection
from celery_locks.types import Blocker, Conflict, Holder

# A waiter that nobody wakes asks again after this time, and counts as gone after three times that.
REPOLL = 0.8
ALIVE = 3 * REPOLL


def wait_in_queue(
    commands: LockCommands, request: AcquireRequest[L]
) -> Operation[tuple[int | Conflict | Rejection, float, float | None]]:
    """Return the reply, when its call was sent, and how long a grant is valid (None: the ttl)."""
    spec, token, holder = request.spec, request.token, request.holder
    assert spec.wait
    patience_ends = request.began + spec.wait
    root, budget = commands.root(spec.name), budget_of(spec.ttl)
    channel: str | None = yield Subscribe(root, token, connect=False, budget=budget)
    call = _make_call(commands, request, channel)
    while True:
        sent_at = now()
        answer = yield call
        if isinstance(answer, int):
            return answer, sent_at, None
        left = patience_ends - now()
        is_rejected = isinstance(answer, Ended | Completed)
        is_final = is_rejected or left <= 0 or _is_pointless_wait(answer, holder)
        if is_final or (request.reentrant and own_lease(answer)):
            if channel:  # it may have been handed the lock, or be in the queue
                yield commands.release(spec.name, token, budget=budget)
            return answer, sent_at, None
        if channel:
            cycle = yield from _find_deadlock(commands, spec.name, token)
            if cycle:
                yield commands.release(spec.name, token, budget=budget)
                raise LockDeadlock(replace(answer, cycle=cycle))
            fence = yield WaitForHandover(root, token, min(left, REPOLL, answer.lapses_in + 0.005))
            may_skip_claim = not (holder.job_id or (request.extras and request.extras.idempotency))
            if fence > answer.ticket and may_skip_claim and _leaves_time_to_renew(sent_at):
                # The hand-over came after the reply "busy", so not before we sent that call.
                # After a longer wait we confirm it: one more exchange costs little then.
                return fence, sent_at, CLAIM
            if fence:
                # A task confirms: another process may renew its lease, and a copy may run.
                # So does a request that checks for completed work: it may be by now.
                continue
        channel = yield Subscribe(root, token, connect=True, budget=budget)
        call = _make_call(commands, request, channel)


def _make_call(commands: LockCommands, request: AcquireRequest[L], channel: str | None) -> Call:
    """Return the acquire; without a channel it does not join the queue."""
    return commands.acquire(
        request.spec,
        request.token,
        request.holder,
        request.extras,
        alive=ALIVE if channel else 0.0,
        channel=channel or "-",
        owners=_waiting_owners(),
    )


def _find_deadlock(commands: LockCommands, name: str, token: str) -> Operation[tuple[Blocker, ...]]:
    """Return the cycle that this wait closes; () if there is none, or if it cannot be read.

    It is a deadlock if two reads show the same cycle: see ``deadlocks.py``.
    """
    owners = _waiting_owners()
    if not owners:
        return ()
    leases = frozenset(token for owner in blocked_owners() for token in list(owner.leases))
    try:
        first = yield from read_waits(commands, owners[0], name, owners)
        if not find_own_cycle(token, first, leases):
            return ()
        second = yield from read_waits(commands, owners[0], name, owners)
    except LockUnavailable:
        return ()  # the next poll reads again
    same = edges(first) == edges(second)
    return find_own_cycle(token, second, leases) if same else ()


def _is_pointless_wait(conflict: Conflict, holder: Holder) -> bool:
    """Return True if waiting makes no sense for this holder.

    Do not wait behind another copy of the same message: when it ends there is nothing left to do.
    Nor behind a message in the queue, which may need the worker slot that the wait would take.
    """
    if not holder.job_id:
        return False
    return conflict.has_copy_of(holder.job_id, holder.attempt) or conflict.is_behind_messages


def _leaves_time_to_renew(sent_at: float) -> bool:
    """Return True if enough of the claim is left to renew it, over a slow network too."""
    return trusted_until(sent_at, CLAIM) - now() > CLAIM * 3 / 4


def own_lease(conflict: Conflict) -> BaseLease | None:
    """Return the lease that blocks the caller and that the caller itself holds, or None."""
    tokens = {holder.token for holder in conflict.holders}
    leases = (lease for owner in blocked_owners() for lease in list(owner.leases.values()))
    return next((lease for lease in leases if lease.token in tokens), None)


def _waiting_owners() -> list[str]:
    """Return the owners that this wait blocks, the caller first; [] if none holds a lock."""
    blocked = blocked_owners()
    here = current_owner()
    return [here.id, *(owner.id for owner in blocked if owner is not here)] if blocked else []
