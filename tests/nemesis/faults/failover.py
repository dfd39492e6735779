"""A failover to a replica that has not received the last writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.nemesis.faults.fault import Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig


@contextmanager
def lose_writes(rig: Rig, holder: Run) -> Iterator[None]:
    """Cut the replica off, let the primary grant for a while, and kill it."""
    trio = rig.sentinel
    assert trio
    primary, replica = trio.primary, trio.replica
    replica.pause()
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    yield
    primary.kill()
    replica.resume()
    trio.wait_failover(primary)


FAULTS = (
    Fault(
        "failover",
        "a Sentinel failover loses the last writes",
        lose_writes,
        2.0,
        "replicated",
        forgets="at its end",
    ),
)
