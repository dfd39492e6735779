"""The calculation of capacity, on inputs for which it can be done by hand."""

from __future__ import annotations

import pytest

from benchmarks.plan import (
    COLUMNS,
    DEMANDS,
    Demand,
    Inputs,
    calculate,
    read_inputs,
    rows,
    servers_for,
)

INPUTS = Inputs(
    calls_per_second=40_000,
    acquire_us=30,
    release_us=20,
    renew_us=4,
    poll_us=20,
    poll_seconds=2,
    bytes_per_call=500,
    calls_per_task=2,
    connections_beside_children=2,
    bytes_per_lock=550,
)


def test_short_tasks_cost_two_calls_and_no_renewal() -> None:
    """100,000 tasks/s × 50 µs are five cores; 4 shards × 313 polls/s leave 0.475 of each server."""
    plan = calculate(Demand("", 100_000, 0.1), INPUTS)
    assert plan.calls_per_second == 200_000
    assert plan.cores == 5.0
    assert plan.poll_cores == 625 / 2 * 20e-6
    assert (plan.servers, plan.shards) == (11, 44)
    assert plan.memory == 10_000 * 550
    assert plan.network == 100e6
    assert (plan.demand.workers, plan.connections) == (625, 625 * 18)
    assert plan.demand.renewals_per_second == 0


def test_long_tasks_are_renewed_after_a_third_of_the_ttl() -> None:
    """10,000 leases, each renewed every 10 s by 100 workers: 1000 × 4 µs and 10 calls a second."""
    plan = calculate(Demand("", 10, 1000.0, ttl=30, children=100), INPUTS)
    assert plan.demand.running == 10_000
    assert plan.demand.renewals_per_second == 1000
    assert plan.demand.renewal_calls_per_second == 10
    assert round(plan.cores, 9) == round((30 * 25 + 1000 * 4) / 1e6, 9)
    assert plan.servers == 1


@pytest.mark.parametrize(
    ("cores", "poll_cores", "servers"), [(0.4, 0.05, 1), (0.4, 0.11, 7), (0.1, 0.45, 0), (5, 0, 10)]
)
def test_servers_for_tasks_and_polls(cores: float, poll_cores: float, servers: int) -> None:
    """Polls take their share of every server; if they take all, more servers do not help."""
    assert servers_for(cores, poll_cores) == servers


def test_queued_messages_cost_a_call_and_memory_but_no_connection() -> None:
    plain = calculate(Demand("", 1000, 0.1), INPUTS)
    queued = calculate(Demand("", 1000, 0.1, queued_locks=1_000_000), INPUTS)
    assert queued.calls_per_second == plain.calls_per_second * 1.5
    assert queued.memory - plain.memory == 550e6
    assert queued.connections == plain.connections


def test_small_fleet_needs_one_server_and_no_shards() -> None:
    plan = calculate(Demand("", 400, 0.5), INPUTS)
    assert (plan.servers, plan.shards) == (1, 1)
    assert plan.first_limit == "connections"


def test_more_servers_share_the_processor_but_not_the_connections() -> None:
    """A process may have a lock in any shard, so it connects to every server."""
    plan = calculate(Demand("", 100_000, 0.1), INPUTS)
    one, ten = plan.loads(1), plan.loads(10)
    assert ten["processor"] == pytest.approx(one["processor"] / 10, rel=0.02)
    assert ten["connections"] == one["connections"]
    assert plan.first_limit == "processor"


def test_every_plan_has_every_column() -> None:
    found = rows(INPUTS)
    assert len(found) == len(DEMANDS)
    assert {len(row) for row in found} == {len(COLUMNS)}


def test_connections_above_the_limit_are_marked() -> None:
    """Who reads the table must not plan for a server that refuses its workers."""
    million = next(row for row in rows(INPUTS) if row[0].startswith("1,000,000 locks"))
    assert "over `maxclients`" in million[COLUMNS.index("connections of each server")]


def test_inputs_are_in_the_result_files() -> None:
    """The page is calculated from them; a file with another layout would stop the site."""
    found = read_inputs()
    assert all(value > 0 for value in found)
    assert found.bytes_per_lock < 1000
