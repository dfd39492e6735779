"""The faults of the table, one module for each family, in the order of the table."""

from __future__ import annotations

from tests.nemesis.faults import broker, clocks, failover, network, processes, server
from tests.nemesis.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *processes.FAULTS,
    *broker.FAULTS,
    *server.FAULTS,
    *network.FAULTS,
    *clocks.FAULTS,
    *failover.FAULTS,
)
