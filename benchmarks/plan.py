"""The capacity of lock servers, calculated from what the benchmarks measured. Pure.

``docs/operations/capacity.md`` includes the output of ``table``, so it follows the result files.
"""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
# The share of a core that a server is planned for; the rest is for bursts and for other commands.
PLANNED = 0.5
# Limits of one server: Redis' default for connections, and a network of 1 Gbit/s.
MAX_CLIENTS, NETWORK = 10_000, 125e6
# Shards for each server, so that they spread evenly; 16 is the default on a Cluster.
SHARDS_PER_SERVER, DEFAULT_SHARDS = 4, 16
# Leases in one call of the renewer, and how often it renews in a ttl.
RENEW_BATCH, RENEWALS_PER_TTL = 250, 3


class Inputs(NamedTuple):
    """What was measured: microseconds are the server's processor time."""

    calls_per_second: float
    acquire_us: float
    release_us: float
    renew_us: float
    poll_us: float
    poll_seconds: float
    bytes_per_call: float
    calls_per_task: float
    connections_beside_children: int
    bytes_per_lock: float

    @property
    def call_us(self) -> float:
        return (self.acquire_us + self.release_us) / 2


class Demand(NamedTuple):
    """What a fleet asks for; ``queued_locks`` are those that queued messages hold."""

    what: str
    tasks_per_second: float
    task_seconds: float
    queued_locks: int = 0
    ttl: float = 30.0
    children: int = 16

    @property
    def running(self) -> int:
        """Return how many tasks run at once, each in a child and with a lock."""
        return ceil(self.tasks_per_second * self.task_seconds)

    @property
    def renewals_per_second(self) -> float:
        """Return the leases renewed in a second: each after a third of its ttl, if it lasts."""
        is_renewed = self.task_seconds > self.ttl / RENEWALS_PER_TTL
        return self.running * RENEWALS_PER_TTL / self.ttl if is_renewed else 0.0

    @property
    def workers(self) -> int:
        return ceil(self.running / self.children)

    @property
    def renewal_calls_per_second(self) -> float:
        """Return the calls for them: one for all leases of a worker, up to a batch."""
        leases_in_a_call = min(self.children, RENEW_BATCH)
        return self.renewals_per_second / leases_in_a_call


class Plan(NamedTuple):
    """What the fleet costs, and the servers for it."""

    demand: Demand
    calls_per_second: float
    cores: float  # of the calls of tasks and renewals, on all servers together
    poll_cores: float  # of the polls of all workers, for one shard
    servers: int  # 0 if the polls alone are too many for a server, however many there are
    shards: int
    memory: float  # bytes on all servers together
    network: float  # bytes a second on all servers together
    connections: int  # on each server: a process may have a lock in any shard

    def loads(self, servers: int) -> dict[str, float]:
        """Return the share of each limit that is used, with a shard on each server."""
        return {
            "processor": self.cores / servers + self.poll_cores,
            "connections": self.connections / MAX_CLIENTS,
            "network": self.network / servers / NETWORK,
        }

    @property
    def first_limit(self) -> str:
        """Return what saturates first on a single server, as load grows."""
        loads = self.loads(1)
        return max(loads, key=lambda name: loads[name])


def calculate(demand: Demand, inputs: Inputs) -> Plan:
    """Return the plan for a demand."""
    # A message that holds a lock while it is queued has acquired it at publish.
    calls_per_task = inputs.calls_per_task + (1 if demand.queued_locks else 0)
    calls = demand.tasks_per_second * calls_per_task + demand.renewal_calls_per_second
    cores = (calls * inputs.call_us + demand.renewals_per_second * inputs.renew_us) / 1e6
    poll_cores = demand.workers / inputs.poll_seconds * inputs.poll_us / 1e6
    servers = servers_for(cores, poll_cores)
    return Plan(
        demand=demand,
        calls_per_second=calls,
        cores=cores,
        poll_cores=poll_cores,
        servers=servers,
        shards=servers if servers < 2 else max(DEFAULT_SHARDS, servers * SHARDS_PER_SERVER),
        memory=(demand.running + demand.queued_locks) * inputs.bytes_per_lock,
        network=calls * inputs.bytes_per_call,
        connections=demand.workers * (demand.children + inputs.connections_beside_children),
    )


def servers_for(cores: float, poll_cores: float) -> int:
    """Return how many servers there must be; 0 if no number is enough.

    Every worker polls every shard, so a server with several shards has as many polls whether it is
    alone or one of many.
    """
    if cores + poll_cores <= PLANNED:
        return 1
    left = PLANNED - poll_cores * SHARDS_PER_SERVER
    return max(2, ceil(cores / left)) if left > 0 else 0


DEMANDS = (
    Demand("400 tasks/s of 0.5 s", 400, 0.5),
    Demand("10,000 tasks/s of 0.1 s", 10_000, 0.1),
    Demand("100,000 tasks/s of 0.1 s", 100_000, 0.1),
    Demand("the same, and 1,000,000 queued messages with a lock", 100_000, 0.1, 1_000_000),
    Demand("1,000,000 locks of tasks of 10 min", 1_000_000 / 600, 600),
)
COLUMNS = (
    *("demand", "locks", "workers", "calls/s", "leases renewed/s", "server CPU, cores"),
    *("and for polls, cores a shard", "servers", "shards", "memory", "network"),
    *("connections of each server", "first limit of a single server"),
)


def rows(inputs: Inputs) -> list[tuple[str, ...]]:
    """Return the plans for all demands, as text."""
    return [_row(calculate(demand, inputs)) for demand in DEMANDS]


def _row(plan: Plan) -> tuple[str, ...]:
    demand, is_over = plan.demand, plan.connections > MAX_CLIENTS
    return (
        demand.what,
        f"{demand.running + demand.queued_locks:,}",
        f"{demand.workers:,}",
        f"{plan.calls_per_second:,.0f}",
        f"{demand.renewals_per_second:,.0f}",
        f"{plan.cores:.2f}",
        f"{plan.poll_cores:.2f}",
        f"{plan.servers:,}" if plan.servers else "too many polls",
        f"{plan.shards:,}" if plan.servers else "",
        _bytes(plan.memory),
        f"{_bytes(plan.network)}/s",
        f"{plan.connections:,}" + (", over `maxclients`" if is_over else ""),
        plan.first_limit,
    )


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def read_inputs(folder: Path = RESULTS) -> Inputs:
    """Read the inputs from the result files; the bytes are those with the most locks."""
    capacity = json.loads((folder / "capacity.json").read_text())["data"]["inputs"]
    *_, most = json.loads((folder / "growth-listing.json").read_text())["data"]["points"]
    return Inputs(**capacity, bytes_per_lock=most[1])
