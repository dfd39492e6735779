"""One simulation: processes that come and die, the server, and its end, all from one seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

from celery_locks.store.effects import Call
from tests.simulation.checks import Checks, Violation
from tests.simulation.parking import Broker, Worker
from tests.simulation.patches import Current
from tests.simulation.process import SimulatedProcess
from tests.simulation.scheduler import Scheduler
from tests.simulation.server import ChangeText, SimulatedServer
from tests.simulation.tasks import Task
from tests.simulation.wire import Faults, Wire

# Virtual seconds: with faults; then until the last task must have ended; then until the processes
# that live have deleted what the dead ones left.
_FAULTS_FOR = 20.0
_TASKS_END_WITHIN = 1200.0  # a dozen of the longest holds, one after the other, are half of it
_CLEANUP_WITHIN = 90.0
_PROCESSES = 4
# The lock that only jobs take; the others are for all.
FOR_JOBS = "jobs"
# Clocks run at different speeds, by less than the margin of a lease allows for, which is 1 %.
_DRIFT = 0.004


class World:
    """Everything that one seed decides."""

    def __init__(
        self,
        seed: int,
        server: SimulatedServer,
        current: Current,
        change: ChangeText | None = None,
    ) -> None:
        self.scheduler = Scheduler(seed)
        self._random = self.scheduler.random
        self.server = server
        self._current = current
        self._failure = ""
        self._tokens = 0
        self._server_rate = self.draw_clock_rate()
        self.ttl = self._random.choice((1.0, 1.5, 3.0, 6.0))
        self.names = ["a", "b"][: self._random.choice((1, 1, 2))]
        self.limits = {name: self._random.choice((1, 1, 2, 3)) for name in self.names}
        self.limits[FOR_JOBS] = self._random.choice((1, 2, 3))
        server.reset([*self.limits], change)
        self.checks = Checks(server, self.limits)
        self.wire = Wire(self.scheduler, Faults.draw(self._random), self._execute)
        self.broker = Broker(self)
        self._has_workers = self._random.random() < 0.5
        if self._has_workers:
            # Parked messages are data of the server: with it they are lost.
            self.wire.faults.data_loss = 0.0
            self.wire.faults.delivered_twice = 0.25
            self.broker.add_jobs(self._random.randrange(1, 10), _FAULTS_FOR)
        self.processes: dict[str, SimulatedProcess] = {}
        self._tasks: list[Task] = []
        for _ in range(_PROCESSES):
            self._start_process()
        self.scheduler.after(0.0, self._cause_faults)

    def run(self) -> None:
        """Run to the end; raise a ``Violation`` at the step that breaks a promise."""
        try:
            self._run_until(_FAULTS_FOR)
            for fault in fields(Faults):
                setattr(self.wire.faults, fault.name, 0.0)
            self._end_tasks()
            self._expect_empty_store()
        finally:
            for process in self.processes.values():
                process.discard()

    @property
    def is_ending(self) -> bool:
        """True if the faults are over and nobody begins anything new."""
        return self.scheduler.time >= _FAULTS_FOR

    def draw_clock_rate(self) -> float:
        return 1 + self._random.choice((-_DRIFT, _DRIFT))

    def new_token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"

    def fail(self, sentence: str) -> None:
        """Fail after this step; an activity must not raise through the package's code."""
        self._failure = self._failure or sentence

    @contextmanager
    def running(self, process: SimulatedProcess) -> Iterator[None]:
        """Let the package's code run as this process."""
        before, self._current.process = self._current.process, process
        try:
            yield
        finally:
            self._current.process = before

    def _step(self) -> None:
        self.scheduler.step()
        self.checks.after_step()
        if self._failure:
            raise Violation(self._failure)

    def _run_until(self, time: float) -> None:
        while self.scheduler.time < time:
            self._step()

    def _end_tasks(self) -> None:
        """Let everything end: whoever waits gets its lock, because all others release theirs."""
        until = self.scheduler.time + _TASKS_END_WITHIN
        while self.broker.missing or not all(task.is_over for task in self._tasks):
            self._step()
            if self.scheduler.time > until:
                waiting = [it.waits_for for it in self._tasks if not it.is_over]
                lost = self.broker.missing
                raise Violation(f"tasks never end: they wait for {waiting}; lost jobs: {lost}")

    def _expect_empty_store(self) -> None:
        """Let one more process take each lock, then clean up: nothing may be left."""
        self._start_process()
        self._end_tasks()
        until = self.scheduler.time + _CLEANUP_WITHIN
        while self.server.remaining():
            self._run_until(self.scheduler.time + 5.0)
            if self.scheduler.time > until:
                raise Violation(f"the store still has {self.server.remaining()}")

    def _start_process(self) -> None:
        number = len(self.processes)
        process = SimulatedProcess(self, number)
        self.processes[process.channel] = process
        for _ in range(self._random.randrange(1, 4)):
            self._tasks.append(Task(self, process, rounds=6))
        if self._has_workers:
            Worker(self, process)

    def _execute(self, call: Call) -> object:
        micros = int(self.scheduler.time * self._server_rate * 1e6)
        executed = self.server.execute(call, micros)
        self.scheduler.record(call.script.name, call.args, executed)
        for channel, text in executed.messages:
            if self._random.random() >= self.wire.faults.message_lost:
                receive = partial(self.processes[channel].receive, text)
                self.scheduler.after(self.wire.latency(), receive)
        self.checks.on_executed(call, executed)
        return executed.reply

    def _cause_faults(self) -> None:
        """Once in a while a process stops, is cut off or dies, or the server loses its data."""
        faults, random, time = self.wire.faults, self._random, self.scheduler.time
        process = random.choice([*self.processes.values()])  # perhaps a dead one
        if random.random() < faults.stall:
            process.stalled_until = time + random.uniform(0.0, 2 * self.ttl)
        if random.random() < faults.partition:
            process.cut_until = time + random.uniform(0.0, 2 * self.ttl)
        if random.random() < faults.death and process.is_alive:
            self._kill(process)
        if random.random() < faults.data_loss / 4:
            self.server.forget()
            self.checks.on_data_loss()
        if time < _FAULTS_FOR:
            self.scheduler.after(0.25, self._cause_faults)

    def _kill(self, process: SimulatedProcess) -> None:
        process.kill()
        redeliver = partial(self.broker.redeliver, process)
        self.scheduler.after(self._random.uniform(0.0, 5.0), redeliver)
        if self._random.random() < 0.7:  # else its whole machine is gone, and no socket is closed
            self.server.unsubscribe(process.channel)
        self.scheduler.after(self._random.uniform(0.0, 2.0), self._start_process)
