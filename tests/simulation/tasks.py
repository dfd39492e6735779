"""The tasks of a simulation: acquire, hold, renew, wait, release, at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_locks.core.lease import Lease
from celery_locks.errors import LeaseLost, LockUnavailable
from celery_locks.store.effects import Sleep
from celery_locks.types import Conflict, Holder
from tests.simulation.scheduler import perform

if TYPE_CHECKING:
    from tests.simulation.process import SimulatedProcess
    from tests.simulation.world import World

# Without owners: a task holds one lock at a time, so there is no deadlock to look for.
_HOLDER = Holder(host="simulated")


class Task:
    """One thread of a process that takes locks, one after the other."""

    def __init__(self, world: World, process: SimulatedProcess, rounds: int) -> None:
        self._world = world
        self._random = world.scheduler.random
        self.process = process
        self._rounds = rounds
        self.waits_for = ""
        """The lock for which the task waits as long as it takes."""
        self.activity = process.start(self.run)

    @property
    def is_over(self) -> bool:
        return self.activity.has_ended or not self.process.is_alive

    def run(self) -> None:
        for number in range(self._rounds):
            if number and self._world.is_ending:
                return
            perform(Sleep(self._random.uniform(0.0, 1.0)))
            self._take_a_lock()

    def _take_a_lock(self) -> None:
        name = self._random.choice(self._world.names)
        wait = self._random.choice((None, 0.5, 3.0, "forever", "forever"))
        try:
            answer = self._acquire(name, wait)
        except LockUnavailable:
            return
        if not isinstance(answer, Conflict):
            self._hold(answer)

    def _acquire(self, name: str, wait: Any) -> Lease | Conflict:
        options: Any = {"limit": self._world.limits[name], "holder": _HOLDER, "wait": wait}
        if self._random.random() < 0.1:
            options["at_least"] = 0.5
        token, ttl = self._world.new_token(), self._world.ttl
        self.waits_for = name if wait == "forever" else ""
        operations = self.process.operations
        try:
            answer: Lease | Conflict = self.process.run(
                operations.acquire_by_name(name, token, ttl, options)
            )
            return answer
        except BaseException:
            operations.release_if_acquired(token)  # as Locks.acquire
            raise
        finally:
            self.waits_for = ""

    def _hold(self, lease: Lease) -> None:
        self._world.checks.enter(self.process, lease)
        try:
            for _ in range(self._random.randrange(8)):
                perform(Sleep(self._random.uniform(0.0, self._world.ttl)))
                lease.check()
                if self._random.random() < 0.1:
                    lease.renew()
        except (LeaseLost, LockUnavailable):
            pass  # the task ends; its release does no harm
        self._world.checks.leave(lease)
        try:
            self.process.release(lease)
        except LockUnavailable:
            pass  # the renewer sends it
