"""Recorded histories of real clients on a real server, and of locks with a mistake.

The workloads run for a few seconds here; ``make jepsen`` runs them for longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.histories.contradiction import judge
from tests.histories.recorder import VARIABLE
from tests.histories.requests import History, read
from tests.jepsen.broken_locks import MISTAKES
from tests.jepsen.run import run
from tests.jepsen.storage import FencedStorage, Rejected
from tests.servers.embedded import EmbeddedServer
from tests.support.child import ROOT
from tests.support.proxy import Proxy

SCRIPT = """
import sys
from contextlib import suppress
from celery_locks import Locks, LockUnavailable
from tests.histories.recorder import install_if_wanted

install_if_wanted()
locks = Locks.from_url(sys.argv[1], ttl=3)
{body}
locks.close()
"""
EVERY_KIND = """
with locks.hold("mutex", wait=1) as lease:
    assert locks.acquire("mutex") is None
    locks.renew(lease)
with locks.hold("readers", shared=True), locks.hold("readers", shared=True):
    pass
with locks.hold("one", "two"):
    pass
"""
ONE_ACQUIRE = """
with suppress(LockUnavailable):
    locks.acquire("mutex")
"""


def record(url: str, directory: Path, body: str) -> History:
    """Run this code with ``locks`` in a process of its own; return what it recorded."""
    environment = {**os.environ, VARIABLE: str(directory)}
    command = [sys.executable, "-c", SCRIPT.format(body=body), url]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return read([directory])


def test_recorder_writes_requests_and_replies(valkey: EmbeddedServer, tmp_path: Path) -> None:
    """What is not recorded is not checked, and what cannot be checked must be named."""
    valkey.flush()
    history = record(valkey.url, tmp_path, EVERY_KIND)
    mutex = [(it.operation, *(it.reply or ())) for it in history.locks["mutex"]]
    assert mutex == [
        ("acquire", "fence"),
        ("acquire", "busy", "ahead", "paused"),
        ("renew", "held"),
        ("release", "held"),
    ]
    assert [it.limit for it in history.locks["readers"] if it.operation == "acquire"] == [0, 0]
    assert history.unchecked.keys() == {"one", "two"}
    assert judge(history).is_linearizable


def test_lost_reply_is_recorded_as_no_reply(valkey: EmbeddedServer, tmp_path: Path) -> None:
    """Each try is a request of its own: the server may have executed it, or not yet."""
    valkey.flush()
    with Proxy(valkey.host, valkey.port) as proxy:
        proxy.drop_next_reply(b"h:mutex")
        history = record(proxy.url, tmp_path, ONE_ACQUIRE)
    first, second, *_ = [it for it in history.locks["mutex"] if it.operation == "acquire"]
    assert (first.token, first.reply) == (second.token, None)
    assert second.reply is not None
    assert judge(history).is_linearizable


def test_command_checks_a_directory(tmp_path: Path) -> None:
    """A history that was kept can be checked again, and the exit code says the verdict."""
    line = '{"id": "%s", "at": %s, "operation": "acquire", "lock": "l", "token": "%s", "ttl": 9}\n'
    reply = '{"id": "%s", "at": %s, "reply": {"fence": %s}}\n'
    steps = line % (1, 1, "a") + reply % (1, 2, 1) + line % (2, 3, "b") + reply % (2, 4, 2)
    (tmp_path / "1.jsonl").write_text(steps)
    command = [sys.executable, "-m", "tests.histories", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 locks, 2 requests: NOT linearizable" in done.stdout


@pytest.mark.timeout(200)
def test_lock_and_unlock_is_linearizable() -> None:
    """Jepsen's first workload: a mutex, a semaphore and a shared lock under faults."""
    outcome = run("lock and unlock", seconds=3.0, seed=1, least_requests=100)
    assert outcome.history.locks == 3
    assert outcome.history.requests >= 100
    assert outcome.is_good, str(outcome.history)


@pytest.mark.timeout(200)
def test_set_without_the_fence_loses_updates() -> None:
    """The lock is linearizable, and still no lock can help a client that is stopped too long."""
    outcome = run("set without the fence", seconds=2.0, seed=1, least_lost=1)
    assert outcome.history.is_linearizable, str(outcome.history)
    assert outcome.lost > 0


@pytest.mark.timeout(200)
def test_set_with_the_fence_loses_nothing() -> None:
    """The fence is what makes the update safe under the same faults."""
    outcome = run("set with the fence", seconds=4.0, seed=1, least_requests=100)
    assert outcome.is_good, str(outcome.history)
    assert outcome.added > 10
    assert outcome.lost == 0


def test_storage_rejects_a_write_after_the_read_of_the_next_holder(valkey: EmbeddedServer) -> None:
    """If only writes were compared, the late one would be accepted, and then overwritten."""
    valkey.flush()
    storage = FencedStorage(valkey.url)
    late = storage.read(fence=1)
    elements = storage.read(fence=2)
    with pytest.raises(Rejected):
        storage.write([*late, "late"], fence=1)
    storage.write([*elements, "next"], fence=2)
    assert storage.read(fence=2) == ["next"]
    storage.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_control_broken_lock_is_rejected(mistake: str) -> None:
    """The same recorder and the same checker, on a lock with a mistake in its script.

    On a busy machine the clients may not meet in one run: then the mistake does not show in it.
    """
    outcomes = (
        run("lock and unlock", seconds=1.0, seed=seed, least_requests=300, mistake=mistake)
        for seed in (1, 2, 3)
    )
    found = next((it.history.contradictions for it in outcomes if it.history.contradictions), ())
    assert found
    assert len(found[0].requests) < 30
