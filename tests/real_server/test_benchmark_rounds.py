"""The rounds of the benchmark of tasks, with a real worker and caller."""

from __future__ import annotations

from random import Random

from benchmarks.peers import OURS, contenders
from benchmarks.rounds import PHASES, Outcome, measure
from tests.servers.embedded import EmbeddedServer


def test_round_times_publishing_and_running_apart() -> None:
    """The worker is stopped while tasks are published, and runs all of them after that."""
    outcome = Outcome()
    with EmbeddedServer() as server:
        with contenders([OURS], server, ("-P", "prefork", "-c", "1")) as (ready, absent):
            assert not absent
            [contender] = ready
            measure(ready, outcome, 0, Random(1), 1, PHASES)
            contender.ask("publish", 10, contender.worker.pid)
            with server.client(db=2) as client:
                assert client.llen("celery") >= 5, "one or two may be on their way to the worker"
            contender.ask("run", contender.worker.pid)
            with server.client(db=2) as client:
                assert client.llen("celery") == 0
    for phase in PHASES:
        figures = outcome.of(OURS, phase)
        assert figures.wall.keys() == figures.cpu.keys() == {(0, 0)}
        assert figures.wall[0, 0] > 0
        assert figures.cpu[0, 0] > 0
