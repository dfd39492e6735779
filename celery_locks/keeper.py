"""The thread that keeps leases alive.

One native thread per process, started with the first lease. It sleeps until a lease is due (a
third of its ttl after the last renewal) and renews everything that is due in one call per shard.
What fails is tried again until the lease's own deadline, then the lease is told that it is lost.
What could not be given back, it goes on trying to (``debts.py``).

Everything it does is isolated: a lease, debt, chore or descriptor that fails in an unforeseen way
costs itself only, and the log has it once a minute.

It holds the leases themselves, so a lease that its user forgot about lives until it is released.
A renewal can never make a lock anew (``renew.lua`` changes only what is there). A forked child
starts with an empty keeper: the parent goes on renewing its own.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from celery_locks.clock import now
from celery_locks.debts import Debt, Debts, by_place
from celery_locks.errors import LockUnavailable
from celery_locks.lease import NO_LONGER_THERE, BaseLease
from celery_locks.logs import Reports
from celery_locks.native import native_lock, original, start_thread
from celery_locks.store.base import Store
from celery_locks.store.verbs import CALL_LIMIT, RENEW_BATCH, Lost, Mark, Renewal, Verbs, budget_of

logger = logging.getLogger("celery_locks")

# A lease that would be due within this part of its interval is renewed along with the others.
_ALONG = 0.25
# The longest sleep while anything is held: poll's clock stands still while the machine sleeps.
_NAP = 1.0
# After something failed in an unforeseen way: the thread itself, and a chore.
_PAUSE = 0.02
_REST = 0.25


@dataclass(slots=True)
class Charge:
    """A lease in the keeper's care, the store it lives in, and when it is due."""

    lease: BaseLease
    store: Store
    verbs: Verbs
    due: float
    failed: bool = False

    @property
    def name(self) -> str:
        return self.lease.name

    def plan(self, again: bool = False) -> None:
        """A third of the ttl from now; at once if the ttl was changed while we renewed."""
        self.failed = False
        self.due = now() + (0.0 if again else self.lease.ttl / 3)

    def plan_again(self) -> None:
        """After a failure: soon, and at the deadline at the latest."""
        self.failed = True
        gap = max(0.05, self.lease.ttl / 20)
        self.due = min(now() + gap, max(self.lease.deadline, now() + 0.01))


class Chore(Protocol):
    """Something else to do in this thread when it is due: the worker's side has one."""

    @property
    def due(self) -> float: ...
    def run(self) -> None: ...


class Keeper:
    """Renews what it is given; see the module's docstring."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self._charges: dict[str, Charge] = {}
        self._debts = Debts()
        self._chores: list[Chore] = []
        self._rests: dict[int, float] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self.reports = Reports()
        self._starting = native_lock()
        self._bell: tuple[int, int] | None = None
        self._wakes_at = -math.inf

    @property
    def tokens(self) -> frozenset[str]:
        """The leases in its care at this moment."""
        return frozenset(self._charges)

    def keep(self, lease: BaseLease, store: Store, verbs: Verbs, due: float | None = None) -> None:
        """Renew ``lease`` from now on, for the first time at ``due``."""
        charge = Charge(lease, store, verbs, due or now() + lease.ttl / 3)
        self._charges[lease.token] = charge
        self.wake_by(charge.due)

    def lease_of(self, token: str) -> BaseLease | None:
        charge = self._charges.get(token)
        return charge.lease if charge else None

    def discard(self, token: str) -> None:
        """Renew it no more; a renewal on its way does no harm."""
        self._charges.pop(token, None)

    def reschedule(self, token: str) -> None:
        """The lease was renewed by hand, perhaps with another ttl."""
        charge = self._charges.get(token)
        if charge:
            charge.plan()
            self.wake_by(charge.due)

    def give_back(
        self,
        name: str,
        token: str,
        store: Store,
        verbs: Verbs,
        until: float,
        doubtful: bool = False,
        keep: float = 0.0,
        keep_as: str = "",
        marks: Sequence[Mark] = (),
        past: str | None = None,
    ) -> None:
        """Release this token as soon as the store can be reached, if that is before ``until``.

        The rest as in the verb; with ``keep`` the slot stays taken for so long from now.
        """
        self._debts[token] = Debt(
            name, token, store, verbs, until, doubtful, now() + keep, keep_as, marks, past
        )
        self.wake_by(now())

    def settle(self, seconds: float) -> None:
        """Wait until nothing is due and every debt is paid, for so long; at a process's end."""
        until = now() + seconds
        while self._bell and self._is_busy() and now() < until:
            original("time", "sleep")(0.005)
        self._debts.tell_of_unpaid()

    def _is_busy(self) -> bool:
        return self._debts.unpaid or any(self._due_of(chore) <= now() for chore in self._chores)

    def take_on(self, chore: Chore) -> None:
        """Run ``chore`` in the keeper's thread whenever it is due, until the process ends."""
        self._chores.append(chore)
        self.wake_by(chore.due)

    def watch(self, descriptor: int, then: Callable[[], None]) -> None:
        """Call ``then`` once in the keeper's thread when ``descriptor`` becomes readable."""
        self._watched[descriptor] = then
        self.wake_by(-math.inf)

    def wake_by(self, due: float) -> None:
        """Ring only if the thread would sleep too long; acquire and release usually never ring."""
        if self._bell is None:
            with self._starting:
                if self._bell is None:
                    self._start()
        elif due < self._wakes_at or due == -math.inf:
            with suppress(BlockingIOError):  # a full pipe rings too
                self._ring(self._bell[1], b"!")

    def _start(self) -> None:
        # eventlet's own write would switch to its hub, and refuses two that ring at once.
        self._ring = original("os", "write")
        self._bell = os.pipe()
        os.set_blocking(self._bell[0], False)
        os.set_blocking(self._bell[1], False)
        try:
            start_thread(self._run, self._bell[0])
        except BaseException:
            # No thread, no bell: else everybody after us would believe that it runs.
            for end in self._bell:
                os.close(end)
            self._bell = None
            raise

    def _run(self, bell: int) -> None:
        while True:
            went_well = [
                self._try("its sleep", partial(self._sleep, bell)),
                self._try("what is to be given back", partial(self._debts.pay, self.patience)),
                self._try("its chores", self._do_chores),
                self._try("the renewals", self._renew_due),
            ]
            if not all(went_well):
                original("time", "sleep")(_PAUSE)

    def _try(self, what: str, step: Callable[[], None]) -> bool:
        """Nothing may end this thread: who would notice that nothing is renewed?"""
        try:
            step()
        except BaseException:  # noqa: BLE001
            self.reports.failure(f"the lock keeper failed at {what} and goes on")
            return False
        return True

    def _sleep(self, bell: int) -> None:
        poll = original("select", "poll")()
        watched = dict(self._watched)
        for descriptor in (bell, *watched):
            poll.register(descriptor, original("select", "POLLIN"))
        self._wakes_at = self._first_due()
        # Looked at twice: a lease that came in between saw the thread awake and did not ring.
        seconds = min(self._wakes_at, self._first_due()) - now()
        ready = poll.poll(None if seconds == math.inf else max(0.0, min(seconds, _NAP)) * 1000)
        self._wakes_at = -math.inf
        for descriptor, _ in ready:
            if descriptor == bell:
                original("os", "read")(bell, 4096)
            elif self._watched.pop(descriptor, None):
                self._try("a watched descriptor", watched[descriptor])

    def _do_chores(self) -> None:
        for chore in self._chores:
            if self._due_of(chore) > now():
                continue
            # Not at the price of the renewals, which come next, nor of the processor.
            if not self._try("a chore", chore.run):
                self._rests[id(chore)] = now() + _REST

    def _due_of(self, chore: Chore) -> float:
        """One that failed rests a little first."""
        return max(chore.due, self._rests.get(id(chore), -math.inf))

    def _first_due(self) -> float:
        dues = [charge.due for charge in list(self._charges.values())]
        dues += [self._due_of(chore) for chore in self._chores]
        return min(*dues, self._debts.due, math.inf)

    def patience(self, calls: int = 1) -> float:
        """So short that even if every call of this round times out, no lease misses its renewal."""
        shortest = min((c.lease.ttl for c in list(self._charges.values())), default=CALL_LIMIT)
        return max(0.05, budget_of(shortest) / max(1, calls))

    def _renew_due(self) -> None:
        self._drop_ended()
        charges = list(self._charges.values())
        moment = now()
        if not any(charge.due <= moment for charge in charges):
            return
        due = [c for c in charges if c.due - c.lease.ttl / 3 * _ALONG <= moment]
        rounds = _batches(due, self._drop)
        # What failed last time comes last. What answers leaves its time to the rest, so a slow but
        # living server has more of it than an equal share.
        rounds.sort(key=lambda batch: any(charge.failed for charge in batch))
        ends = moment + self.patience()
        for still, batch in zip(reversed(range(len(rounds))), rounds, strict=True):
            left = ends - now()
            self._renew(batch, max(0.05, left / 2 if still else left))

    def _drop_ended(self) -> None:
        """``check`` found it past its deadline: renewed, it would stay taken with nobody in it."""
        for token, charge in list(self._charges.items()):
            if charge.lease.has_ended:
                self.discard(token)

    def _renew(self, batch: list[Charge], budget: float) -> None:
        first = batch[0]
        sent_at = now()
        # At the deadline the holder must hear of it, so the call may not outlast it.
        in_time = max(0.05, min(budget, min(c.lease.deadline for c in batch) - sent_at))
        renewals = [Renewal(c.lease.name, c.lease.token, c.lease.ttl) for c in batch]
        try:
            lost = first.store.perform(first.verbs.renew(renewals, in_time))
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, LockUnavailable):
                self.reports.failure("renewing %d locks failed in an unforeseen way", len(batch))
                if len(batch) > 1:  # perhaps because of one of them
                    for charge in batch:
                        self._renew([charge], budget / len(batch))
                    return
            for charge in batch:
                self._try("a lease", partial(self._failed, charge, error))
            return
        for charge, renewal in zip(batch, renewals, strict=True):
            self._try("a lease", partial(self._answered, charge, renewal, lost, sent_at))

    def _answered(self, charge: Charge, renewal: Renewal, lost: Lost, sent_at: float) -> None:
        if renewal.token in lost:
            self.discard(renewal.token)
            charge.lease.lose(NO_LONGER_THERE, lost.revoked.get(renewal.token))
            return
        charge.plan(again=renewal.ttl != charge.lease.ttl)
        charge.lease.renewed(sent_at, renewal.ttl)
        if renewal.token in lost.stops:
            charge.lease.request_stop()

    def _drop(self, charge: Charge) -> None:
        self.reports.failure("lock %r cannot be renewed: no call can be made of it", charge.name)
        self.discard(charge.lease.token)
        charge.lease.lose("it cannot be renewed")

    def _failed(self, charge: Charge, error: Exception) -> None:
        if now() >= charge.lease.deadline:
            self.discard(charge.lease.token)
            charge.lease.lose(f"it could not be renewed in time: {error}")
        else:
            charge.lease.suspend(error)
            charge.plan_again()


def _batches(charges: list[Charge], drop: Callable[[Charge], None]) -> list[list[Charge]]:
    """What goes into one call each: one place, not too many."""
    return [
        group[start : start + RENEW_BATCH]
        for group in by_place(charges, drop)
        for start in range(0, len(group), RENEW_BATCH)
    ]


keeper = Keeper()
os.register_at_fork(after_in_child=keeper.after_fork)
