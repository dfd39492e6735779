"""What must be true after every step, for those who hold a lock and for the server.

- Never more holders than the limit trust their lease, each by its own clock, and never two runs of
  one job.
- The server never has more live holders of a lock than its limit.
- No call removes a holder whose time has not passed, but its own; a reservation gives way to a
  lease that is asserted again.
- Every grant of a lock has a higher fence than all grants before it, over a loss of all data too.

Mutual exclusion is not promised over a loss of data, so those who held a lock then do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_locks.core.lease import BaseLease
from celery_locks.store.effects import Call
from tests.simulation.server import Executed, SimulatedServer

if TYPE_CHECKING:
    from tests.simulation.process import SimulatedProcess


class Violation(AssertionError):
    """A promise is broken."""


class Checks:
    """Sees every call that the server executes, and every hold that begins and ends."""

    def __init__(self, server: SimulatedServer, limits: dict[str, int]) -> None:
        self._server = server
        self._limits = limits
        self._names = list(limits)
        self._seen: list[dict[str, float]] = [{} for _ in limits]
        self._highest = dict.fromkeys(limits, 0)
        self._fences: dict[str, int] = {}
        self._inside: dict[str, tuple[SimulatedProcess, BaseLease]] = {}
        self._not_promised: set[str] = set()
        # Tokens that stand for one job: a run and the reservation of its message.
        self.related: dict[str, str] = {}
        self.grants = self.entered = 0

    def on_executed(self, call: Call, executed: Executed) -> None:
        """Compare the holders with those before the call."""
        own = str(call.args[0]) if call.args else ""
        allowed = {own, self.related.get(own, own)}
        for name, before, after in zip(self._names, self._seen, executed.holders, strict=True):
            if before != after:
                self._on_change(name, before, after, allowed, call.script.name)
        self._seen = executed.holders

    def _on_change(
        self,
        name: str,
        before: dict[str, float],
        after: dict[str, float],
        allowed: set[str],
        command: str,
    ) -> None:
        now = self._server.milliseconds
        for token, expiry in before.items():
            is_live = expiry > now and not token.startswith("~")  # a marker is no holder
            gives_way = command == "reassert" and token.startswith(("q", "k"))
            if is_live and token not in after and token not in allowed and not gives_way:
                raise Violation(f"{command} of {allowed} removed {token!r}, which holds {name!r}")
        granted = [it for it in after if it not in before and not it.startswith(("-", "~"))]
        # One call may grant several slots.
        for fence, token in sorted((self._server.fence_of(token), token) for token in granted):
            self._on_grant(name, token, fence)
        live = [token for token, expiry in after.items() if expiry > now and token[0] != "~"]
        if len(live) > self._limits[name]:
            raise Violation(f"the server has {len(live)} holders of {name!r}: {live}")

    def _on_grant(self, name: str, token: str, fence: int) -> None:
        if self._fences.get(token) == fence:
            return  # asserted again after a loss of data: no new grant
        if fence <= self._highest[name]:
            raise Violation(f"fence {fence} of {name!r} is not above {self._highest[name]}")
        self._highest[name] = self._fences[token] = fence
        self._not_promised.discard(token)
        self.grants += 1

    def on_data_loss(self) -> None:
        self._seen = [{} for _ in self._names]
        self._not_promised.update(self._fences)

    def enter(self, process: SimulatedProcess, lease: BaseLease) -> None:
        """Note that a task works under its lease from now on."""
        if lease.fence != self._fences.get(lease.token):
            raise Violation(f"the lease of {lease.name!r} has a fence that nobody gave it")
        self._inside[lease.token] = process, lease
        self.entered += 1

    def leave(self, lease: BaseLease) -> None:
        self._inside.pop(lease.token, None)

    def after_step(self) -> None:
        """Count those who may believe that the lock is theirs."""
        if len(self._inside) < 2:
            return
        counts = dict.fromkeys(self._names, 0)
        jobs: set[str] = set()
        for token, (process, lease) in self._inside.items():
            is_trusted = not lease.has_ended and process.now() < lease.deadline
            if is_trusted and process.is_alive and token not in self._not_promised:
                counts[lease.name] += 1
                job = self.related.get(token, token)
                if job in jobs:
                    raise Violation(f"two runs of {job!r} trust their lease at once")
                jobs.add(job)
        for name, count in counts.items():
            if count > self._limits[name]:
                raise Violation(f"{count} tasks trust their lease on {name!r} at once")
