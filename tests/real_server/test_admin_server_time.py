"""What operators ask for keeps the server busy for less than 5 ms a call, with everything full."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks import Holder, Locks
from celery_locks.store.calls import Call, Operation
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands, PruneStep
from celery_locks.store.commands.locks import LockCommands
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

MOST = 5000  # microseconds
HOLDER = Holder(task_id="7c1f" * 9, task="shop.invoices.bill", worker="w@host.example", pid=4711)


def one(call: Call) -> Operation[Any]:
    return (yield call)


CALLS: dict[str, Callable[[LockCommands, str], Operation[Any]]] = {
    "list": lambda commands, root: commands.page(),
    "history of acts": lambda commands, root: one(AdminCommands(commands).history(root)),
    "history of holds": lambda commands, root: one(
        AdminCommands(commands).history(root, of="past")
    ),
    "usual": lambda commands, root: one(AdminCommands(commands).durations(root)),
    **{
        f"trim of {part}": lambda commands, root, part=part: AdminCommands(commands).prune(
            root, part
        )  # type: ignore[misc]
        for part in PRUNED_KEYS
    },
}


@pytest.fixture(scope="module")
def full() -> Iterator[EmbeddedServer]:
    """Acts upon semaphores of sixteen, long reasons, a thousand tasks, leftovers on every page."""
    with EmbeddedServer() as server, server.client() as client:
        locks = Locks.from_url(server.url)
        commands, root = locks.commands, locks.commands.root("")
        for act in range(60):
            for slot in range(16):
                spec = LockSpec("semaphore", limit=16)
                locks.perform(commands.acquire(spec, f"{act:012x}{slot:012x}", HOLDER))
            why = "it hung " * 60
            call = AdminCommands(commands).force_release(
                "semaphore", "", "ann@host", why, request_id=f"{act}"
            )
            locks.perform(call)
        for number in range(600):
            token = f"{number:024x}"
            locks.perform(commands.acquire(LockSpec(f"invoice:{number}"), token, HOLDER))
            record = client.hget(f"{root}records", token)
            holder = ("from", token, "from", 1, "from", record)
            client.execute_command(
                "XADD", f"{root}past", "*", "act", "held", "name", "x", "held", 1, *holder
            )
        for number in range(0, 600, 2):
            client.delete(f"{root}h:invoice:{number}")
        holds = "12345678 " * 16
        client.hset(f"{root}usual", mapping={f"shop.tasks.task{n}": holds for n in range(1000)})
        client.zadd(f"{root}completed", {f"invoice:{n}": n for n in range(600)})
        ended = '1 1 0 {"by": "ann", "why": "a release"}'
        client.hset(f"{root}patterns", mapping={f"invoice:{n}*": ended for n in range(100)})
        locks.close()
        yield server


@pytest.mark.parametrize("what", CALLS)
def test_call_keeps_the_server_busy_briefly(full: EmbeddedServer, what: str) -> None:
    """One of several calls is short: on a busy machine the server itself is made to wait."""
    locks = Locks.from_url(full.url)
    with full.client() as client:
        client.config_set("slowlog-log-slower-than", 0)
        took = []
        for _ in range(100):
            client.slowlog_reset()
            answer = locks.run(CALLS[what](locks.commands, locks.commands.root("")))
            calls = [e["duration"] for e in client.slowlog_get() if b"SLOWLOG" not in e["command"]]
            if isinstance(answer, PruneStep) and not answer.entries:
                break  # nothing is left of it to measure
            took.append(max(calls))
            if min(took) < MOST:
                break
    locks.close()
    print(f"{what}: {min(took)} µs, the shortest of {len(took)}")
    assert min(took) < MOST
