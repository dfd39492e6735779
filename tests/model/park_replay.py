"""Perform each step of a trace of Park.tla with the real commands, and compare the server with it.

The clock moves by a millisecond with each step, so that messages are due in the order of the model.
The model has no times: a lease lapses and a poller's turn ends whenever a step says so. Then the
clock jumps, and a lease that must not lapse by it is renewed before.
"""

import math
from typing import Any

from celery_locks.store import scripts
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import (
    CALL_LIMIT,
    AcquireExtras,
    LockCommands,
    ParkRequest,
    ended_mark,
    reservation_token,
)
from celery_locks.store.commands.parking import ParkCommands, ParkedMessage
from celery_locks.store.commands.replies import Ended, Parked, Renewal
from celery_locks.store.effects import Call
from celery_locks.types import Conflict, Holder, LockSpec
from tests.support.clocked_server import PREFIX, ROOT, ClockedServer

START = 1_800_000_000_000  # milliseconds
NAME = "lock"
TTL = 60.0
LIFETIME = 86_400.0  # of the slot of a woken message; longer than a trace
NOBODY = 1  # a fence that no run has


def parked_token(job: str) -> str:
    return reservation_token(job, parked=True)


class ParkReplay:
    """One trace of Park.tla on one server."""

    def __init__(self, server: ClockedServer) -> None:
        self.server = server
        self.locks = LockCommands(PREFIX)
        self.parking = ParkCommands(self.locks)
        self.ms = START
        self.calls = 0
        self.runs: dict[str, str] = {}  # worker -> the token of its latest run
        self.holder: list[Any] = ["free"]  # kind, job, attempt and worker before the step
        self.taken: dict[str, ParkedMessage] = {}  # poller -> the message that it publishes
        server.forget()
        self._move_clock(0)

    def run(self, steps: list[dict[str, Any]]) -> None:
        for number, step in enumerate(steps, 1):
            self._move_clock(1)
            reply = getattr(self, f"do_{step['action']}")(step)
            assert not step["reply"] or reply == step["reply"], f"step {number}: {reply} in {step}"
            assert self.seen() == self.expected(step), f"step {number}: {step}"
            self.holder = step["holder"]

    def do_acquire(self, step: dict[str, Any]) -> str:
        worker, job, attempt = step["who"], step["job"], step["attempt"]
        self.calls += 1
        token, holder = f"run{self.calls}", Holder(task_id=job, retries=attempt - 1)
        message = f"{attempt}"
        park = ParkRequest(holder._replace(retries=-1), attempt, LIFETIME, message, 100)
        extras = AcquireExtras(reject_if_ended=True, park=park)
        if attempt > 1:
            extras = extras._replace(published_by=(self._publisher(step),))
        before = self._stored(job), self._due(job)
        spec = LockSpec(NAME, TTL)
        answer = self.server.perform(self.locks.acquire(spec, token, holder, extras))
        if isinstance(answer, Ended):
            return "ended"
        if isinstance(answer, Conflict):
            assert answer.has_copy_of(job, attempt)
            return "copy"
        if isinstance(answer, Parked):
            return self._kind_of_park(attempt, *before)
        self.runs[worker] = token
        return "taken_over" if self.holder[0] == "run" else "granted"

    @staticmethod
    def _kind_of_park(attempt: int, stored: int, due: str) -> str:
        if stored > attempt:
            return "parked_later" if due == "no" else "woken_later"
        return "parked" if due == "no" else "parked_again"

    def _publisher(self, step: dict[str, Any]) -> int:
        """Return the fence of the run that published a retry.

        The model has no fences: there it is any run of the job that has stopped.
        """
        if self.holder[0] != "run" or not step["stopped"]:
            return NOBODY
        record = self.server.raw.hget(f"{ROOT}records", self.runs[self.holder[3]])
        return int(record.split(b" ")[0])

    def do_release(self, step: dict[str, Any]) -> None:
        mark = ended_mark(Holder(task_id=step["job"], retries=step["attempt"] - 1), 600)
        token = self.runs[step["who"]]
        self.server.perform(self.locks.release(NAME, token, marks=[mark]))

    def do_poll_due(self, step: dict[str, Any]) -> None:
        """Poll one entry, as the model does; an entry that tells to look at the lock is skipped."""
        found: list[ParkedMessage] = []
        while not found:
            poll = self.parking.poll(ROOT)
            due = self.server.perform(
                Call(scripts.POLL_DUE, ROOT, (), (1,), poll.parse, CALL_LIMIT)
            )
            assert due.messages or due.names, "nothing is due"
            found = due.messages
        [message] = found
        assert message.token == parked_token(step["job"])
        assert message.message == f"{step['attempt']}"
        self.taken[step["who"]] = message

    def do_confirm_wake(self, step: dict[str, Any]) -> str:
        message = self.taken.pop(step["who"])
        confirmed = self.server.perform(self.parking.confirm(ROOT, [message]))
        return "confirmed" if confirmed else "stale"

    def do_turn_ends(self, step: dict[str, Any]) -> None:
        """Let the turn end by the clock; beside other turns the poller gives the message back."""
        token = parked_token(step["job"])
        if any(at > self.ms for it, at in self._scores() if it != token):
            message = ParkedMessage(token, 0, "")
            assert self.server.perform(self.parking.give_back(ROOT, [message])) == 1
        self._jump(math.ceil(dict(self._scores())[token]) - self.ms)

    def do_lapse_of_run(self, step: dict[str, Any]) -> None:
        """Let the lease end right now, so that the clock need not jump, and a worker looks."""
        self._renew(0.001)
        self._move_clock(1)
        self.server.perform(self.parking.wake_waiters(ROOT, [NAME]))

    def do_lapse_of_kept(self, step: dict[str, Any]) -> None:
        call = AdminCommands(self.locks).force_release(
            NAME, parked_token(step["job"]), request_id=f"request-{self.ms}"
        )
        self.server.perform(call)

    def _jump(self, ms: int) -> None:
        self._renew(ms / 1000 + TTL)
        self._move_clock(ms)

    def _renew(self, ttl: float) -> None:
        if self.holder[0] == "run":
            lease = Renewal(NAME, self.runs[self.holder[3]], ttl)
            assert not self.server.perform(self.locks.renew([lease], 1)).lost

    def _move_clock(self, ms: int) -> None:
        self.ms += ms
        self.server.set_clock(self.ms * 1000)

    def seen(self) -> dict[str, Any]:
        """Return what the server holds, in the form of the trace."""
        raw, root = self.server.raw, ROOT
        held = raw.zrangebyscore(f"{root}h:{NAME}", self.ms + 1, "(+inf")
        jobs = ("a", "b", "c")
        return {
            "holders": [token.decode() for token in held],
            "queue": [token.decode() for token in raw.zrange(f"{root}q:{NAME}", 0, -1)],
            "parked": {job: self._stored(job) for job in jobs},
            "due": {job: self._due(job) for job in jobs},
            "ended": {job: int(raw.get(f"{root}e:j{job}") or 0) for job in jobs},
        }

    def expected(self, step: dict[str, Any]) -> dict[str, Any]:
        kind, job, _, worker = step["holder"]
        tokens = {"free": [], "kept": [parked_token(job)], "run": [self.runs.get(worker)]}
        nothing = {"parked": 0, "due": "no", "ended": 0}
        return {
            "holders": tokens[kind],
            "queue": [parked_token(job) for job in step["queue"]],
            **{
                name: {job: step[name].get(job, value) for job in ("a", "b", "c")}
                for name, value in nothing.items()
            },
        }

    def _stored(self, job: str) -> int:
        """Return the attempt of the stored message; 0: there is none."""
        stored = self.server.raw.hget(f"{ROOT}parked", parked_token(job)) or b"0 0 0"
        attempt, _, message = stored.split(b" ")
        assert attempt == message, "the message is that of another attempt"
        return int(attempt)

    def _scores(self) -> list[tuple[str, float]]:
        due = self.server.raw.zrange(f"{ROOT}due", 0, -1, withscores=True)
        return [(it.decode(), at) for it, at in due if not it.startswith(b"n")]

    def _due(self, job: str) -> str:
        at = dict(self._scores()).get(parked_token(job))
        return "no" if at is None else "now" if at <= self.ms else "taken"
