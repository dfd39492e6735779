"""Perform each step of a trace with the real commands, and compare what the server holds.

An action of the model is a method ``do_<action>`` of a ``Replay``. That of Park.tla is in
``park_replay.py``.
"""

import json
from pathlib import Path
from typing import Any

from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import AcquireExtras, LockCommands, ended_mark
from celery_locks.store.commands.replies import Ended, Renewal
from celery_locks.types import Conflict, Holder, LockSpec
from tests.support.clocked_server import PREFIX, ROOT, ClockedServer

START = 1_800_000_000_000_000  # microseconds
TICK = 1_000_000  # a tick is the claim window of handover.lua
NAME = "lock"
JOB = "job"
# As JobOf, AttemptOf and Waits of Lock.tla.
ATTEMPTS = {"one": 1, "copy": 1, "retry": 2}
NOT_WAITING = {"z"}


def holder_of(token: str) -> Holder:
    """Return who acquires: an attempt of the job, or nobody in particular."""
    return Holder(task_id=JOB, retries=ATTEMPTS[token] - 1) if token in ATTEMPTS else Holder()


class Replay:
    """One trace of Lock.tla on one server."""

    def __init__(self, server: ClockedServer, constants: dict[str, int]) -> None:
        self.server = server
        # Lock.tla has no guard after a loss; Guard.tla has.
        self.commands = LockCommands(PREFIX, guard_after_loss=False)
        self.spec = LockSpec(NAME, constants["Ttl"], constants["Limit"])
        self.alive = constants["Alive"]
        self.micros = START
        self.highest = 0  # of the fences so far
        self.fences: dict[str, int] = {}
        self.published_by = 0  # the fence that the client of "one" got, and its retry carries
        self.replica: dict[bytes, bytes] = {}
        server.forget()
        server.set_clock(self.micros)

    def run(self, steps: list[dict[str, Any]]) -> None:
        for number, step in enumerate(steps, 1):
            action, token = step["action"], step["token"]
            self.micros += 1  # no script takes less: see Fence.tla
            self.server.set_clock(self.micros)
            reply = getattr(self, f"do_{action}")(token)
            if (action, token, step["reply"]) == ("acquire", "one", "granted"):
                self.published_by = self._fence(token)
            # A late request has no reply: nobody waits for it.
            assert not step["reply"] or reply == step["reply"], f"step {number}: {step}"
            assert self.seen() == self.expected(step), f"step {number}: {step}"
            self.check_fences(list(step["holders"]))

    def do_tick(self, token: str) -> None:
        self.micros += TICK
        self.server.set_clock(self.micros)

    def do_acquire(self, token: str) -> str:
        alive = 0 if token in NOT_WAITING else self.alive
        extras = AcquireExtras(reject_if_ended=True) if token in ATTEMPTS else None
        if token == "retry" and extras:
            extras = extras._replace(published_by=(self.published_by,))
        call = self.commands.acquire(self.spec, token, holder_of(token), extras, alive=alive)
        answer = self.server.perform(call)
        if isinstance(answer, Ended):
            return "ended"
        if isinstance(answer, Conflict):
            holder = holder_of(token)
            is_copy = holder.job_id and answer.has_copy_of(holder.job_id, holder.attempt)
            return "copy" if is_copy else "busy"
        assert answer == self._fence(token)
        return "granted"

    def do_renew(self, token: str) -> str:
        renewal = Renewal(NAME, token, self.spec.ttl)
        reply = self.server.perform(self.commands.renew([renewal], 1))
        return "lost" if reply.lost else "renewed"

    def do_release(self, token: str) -> str:
        marks = [ended_mark(holder_of(token), 600)] if token in ATTEMPTS else []
        self.server.perform(self.commands.release(NAME, token, marks=marks))
        return "released"

    def do_leave(self, token: str) -> str:
        self.server.perform(self.commands.release(NAME, token))
        return "released"

    def do_force(self, token: str) -> None:
        call = AdminCommands(self.commands).force_release(
            NAME, token, request_id=f"request-{self.micros}-{token}"
        )
        self.server.perform(call)

    def do_replicate(self, token: str) -> None:
        self.replica = self.server.dump()

    def do_failover(self, token: str) -> None:
        """The writes since the last ``replicate`` are lost."""
        self.server.restore(self.replica)

    def seen(self) -> dict[str, Any]:
        """Return what the server holds, in the form of the trace."""
        now = self.micros // 1000
        held = self.server.raw.zrange(f"{ROOT}h:{NAME}", 0, -1, withscores=True)
        holders = {token.decode(): self._ticks(int(expiry) - now) for token, expiry in held}
        queued = [token.decode() for token in self.server.raw.zrange(f"{ROOT}q:{NAME}", 0, -1)]
        queue = {token: self._ticks(int(self._record(token)[1]) - now) for token in queued}
        ended = self.server.raw.get(f"{ROOT}e:j{JOB}")
        return {
            "holders": [(token, holders[token]) for token in sorted(holders, key=self._fence)],
            "queue": list(queue.items()),
            "ended": int(ended or 0),
        }

    @staticmethod
    def expected(step: dict[str, Any]) -> dict[str, Any]:
        holders, queue = list(step["holders"].items()), list(step["queue"].items())
        return {"holders": holders, "queue": queue, "ended": step["ended"]}

    def check_fences(self, tokens: list[str]) -> None:
        """A new grant has a higher fence than all before it, over a failover too."""
        for token in tokens:
            fence = self._fence(token)
            if self.fences.get(token) != fence:
                assert fence > self.highest
                self.highest = self.fences[token] = fence

    def _fence(self, token: str) -> int:
        return int(self._record(token)[0])

    def _record(self, token: str) -> list[str]:
        record = self.server.raw.hget(f"{ROOT}records", token)
        assert record, f"{token} has no record"
        return str(record.decode()).split(" ")

    @staticmethod
    def _ticks(ms: int) -> int:
        """Return the ticks that are left; 0: it has lapsed."""
        assert ms <= 0 or ms % 1000 == 0
        return max(ms // 1000, 0)


def replay(server: ClockedServer, path: Path) -> None:
    trace = json.loads(path.read_text())
    Replay(server, trace["constants"]).run(trace["steps"])
