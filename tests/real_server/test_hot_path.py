"""What a task's lock costs the server, command by command: a change here is a decision."""

from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import Holder, Locks
from celery_locks.rates import Rate
from celery_locks.store.commands.locks import AcquireExtras, RateCheck
from celery_locks.store.commands.replies import Renewal
from celery_locks.store.effects import Call
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
    ours = {word.removeprefix("cmdstat_"): fields["calls"] for word, fields in stats.items()}
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
        "get": 1,  # the epoch
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


def test_commands_of_a_start_at_a_rate(server: EmbeddedServer, locks: Locks) -> None:
    """What operators may set for a rate is read with its times, by one HMGET."""
    rate = RateCheck("r", Rate.parse("1000/s", burst=1000).text, 0)
    calls = [
        locks.commands.acquire(LockSpec(name), name, HOLDER, AcquireExtras(rates=(rate,)))
        for name in ("a", "b")
    ]
    locks.perform(calls[0])
    found = cost(server, locks, calls[1])
    assert found.pop("pexpire", 0) <= 1  # only if the key expires too early
    assert found == {
        "get": 2,  # the epoch is one of them
        "hmget": 1,
        "hset": 2,
        "pttl": 1,
        "set": 2,
        "time": 1,
        "zadd": 2,
        "zrange": 1,
        "zscore": 1,
    }
