"""The lease of a task in a pool child, which the worker's main process renews."""

from __future__ import annotations

from celery_locks.clock import now
from celery_locks.core.lease import Lease, State
from celery_locks.errors import LeaseLost, LockUnavailable


class RemotelyRenewedLease(Lease):
    """A lease that the worker's main process renews; past its deadline it asks the store itself."""

    _longest = 0.0

    def change_ttl(self, ttl: float, sent_at: float) -> None:
        """Use at most the first ttl: the main process renews with that one."""
        self._longest = self._longest or self.ttl
        super().change_ttl(min(ttl, self._longest), sent_at)

    def check(self) -> None:
        if self._final_state is None and now() >= self.deadline:
            self.refresh()
        super().check()

    def check_renewable(self) -> None:
        """Allow a renewal also past the deadline: it tells whether the lease is lost."""
        if self._final_state:
            super().check()

    @property
    def state(self) -> State:
        """The state known in this process; the main process may have renewed the lease since."""
        return self._final_state or State.HELD

    def refresh(self) -> None:
        """Renew, to learn whether the lease is still held. Sets LOST if it is not."""
        try:
            self.backend.renew(self)
        except LeaseLost:
            pass
        except LockUnavailable as error:
            if now() >= self.deadline:
                self.lose(f"it could not be renewed in time: {error}")
