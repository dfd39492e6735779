"""Deadlocks among processes: every one is found, none is imagined, and the dead do not count."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer
from tests.servers.topologies import EmbeddedCluster
from tests.support import dining
from tests.support.child import ROOT, start_python
from tests.support.redis_keys import keys_of_locks
from tests.support.waiting import wait_until

ROUNDS = 60


def dine(url: str, order: str) -> tuple[int, int, float]:
    """Four processes at one table: how many deadlocks and meals, and the longest wait."""
    kinds = ("sync", "async", "sync", "async")
    commands = [
        [sys.executable, "-m", dining.__name__, url, str(seed), str(ROUNDS), order, kind]
        for seed, kind in enumerate(kinds)
    ]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            )
            for command in commands
        ]
        try:
            answers = [process.communicate(timeout=300)[0].split() for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes)
    sums = [sum(int(answer[n]) for answer in answers) for n in (0, 1)]
    return sums[0], sums[1], max(float(answer[2]) for answer in answers)


@pytest.fixture(params=["valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    server: EmbeddedServer | EmbeddedCluster = request.getfixturevalue(request.param)
    client = server.client()
    if request.param == "cluster":
        client.flushall(target_nodes="primaries")  # type: ignore[call-arg]
    else:
        client.flushall()
    client.close()
    return server.url


def test_locks_in_any_order_never_end_a_wait_by_patience(url: str) -> None:
    """Deadlocks happen all the time here; each is over at once, for the rest to go on."""
    deadlocks, meals, longest = dine(url, "any")
    print(f"{deadlocks} deadlocks, {meals} meals, longest wait {longest:.1f} s")
    assert deadlocks > 0
    assert deadlocks + meals == 4 * dining.THREADS * ROUNDS
    assert longest < dining.PATIENCE / 2


def test_locks_in_one_order_are_never_called_a_deadlock(url: str) -> None:
    """There can be none, so every one that is raised would be a mistake."""
    deadlocks, meals, _ = dine(url, "same")
    assert deadlocks == 0
    assert meals == 4 * dining.THREADS * ROUNDS


_WAITER = """
    import sys
    from celery_locks import Locks

    locks = Locks.from_url(sys.argv[1], ttl=2.0)
    with locks.hold("b"), locks.hold("a", wait=60):
        pass
"""


@contextmanager
def waiter(url: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds b and waits for a."""
    process = start_python(_WAITER, url)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_waiter_that_was_killed_does_not_count(either: EmbeddedServer) -> None:
    """Its lock lapses and is ours then: a deadlock with the dead is none."""
    locks = Locks.from_url(either.url)
    with locks.hold("a"), waiter(either.url) as process:
        wait_until(lambda: (info := locks.info("a")) and info.waiters, 20, what="it waits for a")
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        with locks.hold("b", wait=30):
            pass
    locks.close()
    with either.client() as client:
        wait_until(lambda: not keys_of_locks(client.keys("*")), 20, what="nothing to be left")
