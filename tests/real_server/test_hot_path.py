"""What a task's lock costs the server, command by command: a change here is a decision."""

from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import Holder, Locks
from celery_locks.store.calls import Call
from celery_locks.store.commands.requests import Renewal
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

HOLDER = Holder(task_id="j", task="bill", worker="w", host="h", pid=3)
SPEC = LockSpec("a")


@pytest.fixture
def locks(server: EmbeddedServer) -> Iterator[Locks]:
    made = Locks.from_url(server.url)
    yield made
    made.close()


def cost(server: EmbeddedServer, locks: Locks, call: Call) -> dict[str, int]:
    """The commands within the script; it is there already."""
    with server.client() as client:
        client.config_resetstat()
        locks.perform(call)
        stats: Any = client.info("commandstats")
    ours = {word.removeprefix("cmdstat_"): said["calls"] for word, said in stats.items()}
    return {word: n for word, n in sorted(ours.items()) if word not in _NOT_OURS}


_NOT_OURS = ("evalsha", "config|resetstat", "info", "client|setinfo")


def test_commands_of_a_short_task(server: EmbeddedServer, locks: Locks) -> None:
    """Notes of revocation, of past holds and of usual ones cost nothing here."""
    commands = locks.commands
    for _ in range(2):
        locks.perform(commands.acquire(SPEC, "t", HOLDER))
        locks.perform(commands.renew([Renewal("a", "t", 30)], 1))
        locks.perform(commands.release("a", "t"))
    assert cost(server, locks, commands.acquire(SPEC, "t", HOLDER)) == {
        "hset": 1,
        "set": 1,
        "time": 1,
        "zadd": 2,
        "zrange": 1,
    }
    assert cost(server, locks, commands.renew([Renewal("a", "t", 30)], 1)) == {
        "exists": 1,
        "time": 1,
        "zadd": 2,
        "zrem": 1,
    }
    assert cost(server, locks, commands.release("a", "t")) == {
        "exists": 1,
        "hdel": 1,
        "zrem": 2,
    }
