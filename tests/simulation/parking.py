"""Jobs whose messages are parked while their lock is busy: a broker, workers that run them, wakers.

The steps are those of ``integration/execution.py`` and ``integration/waking.py``, without Celery.
The broker loses nothing and delivers a message again if its worker dies, and sometimes if not. What
is checked: no job is lost, and no two runs of one job trust their lease at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from celery_locks.core.lease import BaseLease, Lease
from celery_locks.core.requests import AcquireRequest
from celery_locks.errors import LeaseLost, LockUnavailable
from celery_locks.store.commands.locks import (
    AcquireExtras,
    ParkRequest,
    ended_mark,
    reservation_token,
)
from celery_locks.store.commands.parking import ParkCommands, ParkedMessage
from celery_locks.store.commands.replies import Ended, Parked
from celery_locks.store.effects import Sleep
from celery_locks.types import Conflict, Holder, LockSpec
from tests.simulation.scheduler import perform

if TYPE_CHECKING:
    from tests.simulation.process import SimulatedProcess
    from tests.simulation.world import World

# Seconds for which a woken message has its slot, and for which a copy is recognised.
_PENDING_TTL = 6.0
_ENDED_TTL = 600.0


class Job(NamedTuple):
    """A message: its task id and the lock that its run needs."""

    id: str
    name: str


class Broker:
    """The queue of messages; one that is not acknowledged comes again after its worker's death."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, Job] = {}
        self._ready: list[Job] = []
        self._unacknowledged: dict[SimulatedProcess, Job] = {}
        self._completed: set[str] = set()

    def add_jobs(self, count: int, within: float) -> None:
        """Publish new jobs at random times."""
        random = self._world.scheduler.random
        for number in range(count):
            job = Job(f"job{number}", random.choice([*self._world.limits]))
            self._jobs[job.id] = job
            self._world.scheduler.after(random.uniform(0.0, within), partial(self.put, job))

    def put(self, job: Job) -> None:
        self._ready.append(job)

    def put_by_id(self, job_id: str) -> None:
        self.put(self._jobs[job_id])

    def take(self, process: SimulatedProcess) -> Job | None:
        if not self._ready:
            return None
        position = self._world.scheduler.random.randrange(len(self._ready))
        self._unacknowledged[process] = job = self._ready.pop(position)
        if self._world.scheduler.random.random() < self._world.wire.faults.delivered_twice:
            self._world.scheduler.after(0.1, partial(self.put, job))
        return job

    def acknowledge(self, process: SimulatedProcess) -> None:
        del self._unacknowledged[process]

    def redeliver(self, process: SimulatedProcess) -> None:
        """Take back what a dead process has not acknowledged."""
        if process in self._unacknowledged:
            self.put(self._unacknowledged.pop(process))

    def note_completed(self, job: Job) -> None:
        self._completed.add(job.id)

    @property
    def missing(self) -> list[str]:
        """The jobs that no run has completed yet."""
        return [job_id for job_id in self._jobs if job_id not in self._completed]


class Worker:
    """Two threads of a process: one runs jobs, the other wakes parked messages."""

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        self._world = world
        self._random = world.scheduler.random
        self._process = process
        self._broker = world.broker
        self._commands = ParkCommands(process.commands)
        process.start(self._run_jobs)
        process.start(self._wake_messages)

    def _run_jobs(self) -> None:
        while True:
            perform(Sleep(self._random.uniform(0.1, 0.8)))
            job = self._broker.take(self._process)
            if job:
                self._run(job)
                self._broker.acknowledge(self._process)

    def _run(self, job: Job) -> None:
        holder = Holder(task_id=job.id, task="simulated", retries=0)
        try:
            answer = self._process.run(self._process.operations.acquire(self._request(job, holder)))
        except LockUnavailable:
            self._broker.put(job)
            return
        if isinstance(answer, BaseLease):
            self._hold(job, answer, holder)
        elif isinstance(answer, Conflict):
            self._broker.put(job)  # a copy runs: this one must come back
        else:
            assert isinstance(answer, Parked | Ended), answer

    def _request(self, job: Job, holder: Holder) -> AcquireRequest[Lease]:
        world, token = self._world, self._world.new_token()
        world.checks.related[token] = reservation_token(job.id, parked=True)
        message = holder._replace(retries=-1)
        park = ParkRequest(message, holder.attempt, _PENDING_TTL, job.id, 1000)
        spec = LockSpec(job.name, world.ttl, world.limits[job.name])
        extras = AcquireExtras(reject_if_ended=True, park=park)
        return AcquireRequest(spec, holder, token, self._process.now(), extras=extras)

    def _hold(self, job: Job, lease: Lease, holder: Holder) -> None:
        checks, is_completed = self._world.checks, True
        checks.enter(self._process, lease)
        try:
            perform(Sleep(self._random.uniform(0.0, self._world.ttl)))
            lease.check()
        except LeaseLost:
            is_completed = False
        checks.leave(lease)
        if is_completed:
            self._broker.note_completed(job)
        else:
            self._broker.put(job)
        marks = [ended_mark(holder, _ENDED_TTL)] if is_completed else []
        try:
            self._process.run(self._process.operations.release(lease, marks))
        except LockUnavailable:
            pass  # the renewer sends it

    def _wake_messages(self) -> None:
        while True:
            perform(Sleep(self._random.uniform(0.5, 3.0)))
            try:
                self._wake_due()
            except LockUnavailable:
                pass  # the next poll, or another worker, goes on

    def _wake_due(self) -> None:
        root = self._process.commands.roots[0]
        due = perform(self._commands.poll(root))
        self._publish(due.messages, root)
        if due.names:
            perform(self._commands.wake_waiters(root, due.names))

    def _publish(self, messages: list[ParkedMessage], root: str) -> None:
        """Publish first, confirm then: a process that dies in between leaves a copy, no loss."""
        for message in messages:
            perform(Sleep(self._random.uniform(0.001, 0.5)))
            self._broker.put_by_id(message.message)
        if messages:
            perform(self._commands.confirm(root, messages))
