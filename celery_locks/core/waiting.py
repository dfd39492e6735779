"""Waiting for a busy lock: join the queue, sleep until the hand-over, confirm it. No I/O.

A waiter also looks for deadlocks while it waits, and asks again from time to time in case nobody
wakes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from celery_locks.clock import now
from celery_locks.core.deadlocks import edges, find_own_cycle, read_waits
from celery_locks.core.lease import BaseLease, trusted_until, whole_token
from celery_locks.core.owners import blocked_owners, current_owner
from celery_locks.core.requests import AcquireRequest, L
from celery_locks.errors import LockDeadlock, LockUnavailable
from celery_locks.store.commands.locks import CLAIM, LockCommands, budget_of
from celery_locks.store.commands.replies import Completed, Ended, Limited, Rejection
from celery_locks.store.effects import Call, Operation, Subscribe, WaitForHandover
from celery_locks.types import Blocker, Conflict, Holder

# A waiter that nobody wakes asks again after this time, and counts as gone after three times that.
REPOLL = 0.8
ALIVE = 3 * REPOLL
# A parked message that was woken usually starts within this time, even if a worker had to poll.
STARTS_WITHIN = 3.0


def wait_in_queue(
    commands: LockCommands,
    request: AcquireRequest[L],
    on_first_reply: Callable[[AcquireRequest[L], int | Conflict | Rejection], None],
) -> Operation[tuple[int | Conflict | Rejection, float, float | None]]:
    """Return the reply, when its call was sent, and how long a grant is valid (None: the ttl)."""
    spec, token, holder = request.spec, request.token, request.holder
    assert spec.wait
    patience_ends = request.began + spec.wait
    root, budget = commands.root(spec.name), budget_of(spec.ttl)
    channel: str | None = yield Subscribe(root, token, connect=False, budget=budget)
    call = _make_call(commands, request, channel)
    is_first = True
    while True:
        sent_at = now()
        answer = yield call
        if is_first:
            on_first_reply(request, answer)
            is_first = False
        if isinstance(answer, int):
            return answer, sent_at, None
        left = patience_ends - now()
        is_rejected = isinstance(answer, Ended | Completed | Limited)
        is_final = is_rejected or left <= 0 or _is_pointless_wait(answer, holder)
        if is_final or (request.reentrant and own_lease(answer)):
            if channel:  # it may have been handed the lock, or be in the queue
                yield _leave_queue(commands, request)
            return answer, sent_at, None
        if channel:
            cycle = yield from _find_deadlock(commands, spec.name, token)
            if cycle:
                yield _leave_queue(commands, request)
                raise LockDeadlock(replace(answer, cycle=cycle))
            fence = yield WaitForHandover(root, token, min(left, REPOLL, answer.lapses_in + 0.005))
            extras = request.extras
            must_ask = extras and (extras.idempotency or extras.rates)
            may_skip_claim = not (holder.job_id or must_ask)
            if fence > answer.ticket and may_skip_claim and _leaves_time_to_renew(sent_at):
                # The hand-over came after the reply "busy", so not before we sent that call.
                # After a longer wait we confirm it: one more exchange costs little then.
                return fence, sent_at, CLAIM
            if fence:
                # A task confirms: another process may renew its lease, and a copy may run.
                # So does a request with rates, or one for work that may be completed by now.
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
        owners=_waiting_owners() or _owner_without_lock(request),
        also=request.also,
    )


def _leave_queue(commands: LockCommands, request: AcquireRequest[L]) -> Call:
    budget, names = budget_of(request.spec.ttl), [spec.name for spec, _ in request.parts]
    if request.also:
        return commands.release_several(names, request.token, budget=budget)
    return commands.release(request.spec.name, request.token, budget=budget)


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
    Nor behind a message in the queue, which may need the worker slot that the wait would take. A
    publisher (attempt 0), which waits for room in the queue, does. Behind a parked message that was
    just woken the holder keeps its place for a moment, as both are in one queue.
    """
    if not holder.job_id:
        return False
    if conflict.has_copy_of(holder.job_id, holder.attempt):
        return True
    return conflict.is_behind_messages and holder.attempt > 0 and not _is_about_to_start(conflict)


def _is_about_to_start(conflict: Conflict) -> bool:
    return any(
        it.was_parked and conflict.as_of < it.acquired_at + STARTS_WITHIN for it in conflict.holders
    )


def _leaves_time_to_renew(sent_at: float) -> bool:
    """Return True if enough of the claim is left to renew it, over a slow network too."""
    return trusted_until(sent_at, CLAIM) - now() > CLAIM * 3 / 4


def own_lease(conflict: Conflict) -> BaseLease | None:
    """Return the lease that blocks the caller and that the caller itself holds, or None."""
    tokens = {whole_token(holder.token) for holder in conflict.holders}
    leases = (lease for owner in blocked_owners() for lease in list(owner.leases.values()))
    return next((lease for lease in leases if lease.token in tokens), None)


def _waiting_owners() -> list[str]:
    """Return the owners that this wait blocks, the caller first; [] if none holds a lock."""
    blocked = blocked_owners()
    here = current_owner()
    return [here.id, *(owner.id for owner in blocked if owner is not here)] if blocked else []


def _owner_without_lock(request: AcquireRequest[L]) -> list[str]:
    """Return the owner of a wait for several locks, behind which others wait, and that holds none.

    It is recorded so that those who wait behind it find a deadlock.
    """
    return [request.owner.id] if request.also and request.owner else []
