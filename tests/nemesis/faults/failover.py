"""A failover to a replica that has not received the last writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.nemesis.faults.fault import Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig


def cut_replica_off(rig: Rig) -> None:
    """What the primary grants from now on is lost with it."""
    trio = rig.sentinel
    assert trio
    primary = trio.primary
    trio.replica.pause()
    primary.ask("CLIENT", "KILL", "TYPE", "replica")


@contextmanager
def fail_over(rig: Rig, holder: Run) -> Iterator[None]:
    trio = rig.sentinel
    assert trio
    primary, replica = trio.primary, trio.replica
    primary.kill()
    replica.resume()
    trio.wait_failover(primary)
    yield


FAULTS = (
    Fault(
        "failover",
        "a Sentinel failover loses the last writes",
        fail_over,
        rig="replicated",
        forgets="at its end",
        cuts_off=True,
        prepare=cut_replica_off,
    ),
)
