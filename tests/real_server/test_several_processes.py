"""Dining philosophers: five processes, each of which needs the forks at both its sides."""

import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer
from tests.support import dining_together
from tests.support.child import ROOT
from tests.support.waiting import wait_until

MEALS = 40


def sit_down(stack: ExitStack, url: str, seat: int, meals: int) -> subprocess.Popen[str]:
    kind = ("sync", "async")[seat % 2]
    command = [sys.executable, "-m", dining_together.__name__, url, str(seat), str(meals), kind]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


@pytest.fixture
def url(valkey: EmbeddedServer) -> str:
    with valkey.client() as client:
        client.flushall()
    return valkey.url


def test_philosophers_all_eat_and_never_share_a_fork(url: str) -> None:
    """Nobody waits with one fork in hand, so they cannot block each other; each gets its turn."""
    with ExitStack() as stack:
        processes = [sit_down(stack, url, seat, MEALS) for seat in range(5)]
        answers = [process.communicate(timeout=300)[0] for process in processes]
    assert answers == [f"meals {MEALS}\n"] * 5
    locks = Locks.from_url(url)
    assert [locks.info(f"fork:{n}") for n in range(5)] == [None] * 5
    locks.close()


def test_killed_philosophers_do_not_stop_the_others(url: str) -> None:
    """One is killed while it waits: those behind it pass once it is known to be gone."""
    locks = Locks.from_url(url)
    with ExitStack() as stack:
        blocker = locks.acquire("fork:0")
        assert blocker
        dead = sit_down(stack, url, 4, 1)  # needs the forks 4 and 0
        wait_until(lambda: bool((info := locks.info("fork:4")) and info.waiters), 60)
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        others = [sit_down(stack, url, seat, 5) for seat in (2, 3)]
        assert [other.communicate(timeout=60)[0] for other in others] == ["meals 5\n"] * 2
        assert blocker.release()
        last = sit_down(stack, url, 4, 1)
        assert last.communicate(timeout=60)[0] == "meals 1\n"
    locks.close()
