"""What operators ask for keeps the server busy for a few milliseconds a call, with everything full.

How many depends on the machine, so a call is compared with a script of simple commands.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from celery_locks import Holder, Locks
from celery_locks.store.commands.admin import PRUNED_KEYS, AdminCommands, PruneStep
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.effects import Call, Operation
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

# A server does as many in 4 to 20 ms.
SIMPLE_COMMANDS = "for i = 1, 10000 do redis.call('HGET', 'no hash', i) end"
UNCOUNTED = (b"SLOWLOG", b"INFO")
T = TypeVar("T")
HOLDER = Holder(task_id="7c1f" * 9, task="shop.invoices.bill", worker="w@host.example", pid=4711)


def processor_time(client: Any) -> int:
    """Return how many microseconds the server has computed."""
    info = client.info("cpu")
    return round(1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]))


def busy_time(client: Any, call: Callable[[], T]) -> tuple[int, T]:
    """Return for how many microseconds the longest command of a call kept the server busy.

    A busy machine makes the server itself wait: then it is the processor time of the call, with
    what the server does beside it.
    """
    client.slowlog_reset()
    used = processor_time(client)
    answer = call()
    used = processor_time(client) - used
    calls = [
        it["duration"] for it in client.slowlog_get() if not it["command"].startswith(UNCOUNTED)
    ]
    return min(max(calls), used), answer


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
    """The shortest of several calls counts, on both sides."""
    locks = Locks.from_url(full.url)
    operation = CALLS[what]
    with full.client() as client:
        client.config_set("slowlog-log-slower-than", 0)
        took, allowed = [], []
        for _ in range(100):
            allowed.append(busy_time(client, lambda: client.eval(SIMPLE_COMMANDS, 0))[0])
            busy, answer = busy_time(
                client, lambda: locks.run(operation(locks.commands, locks.commands.root("")))
            )
            if isinstance(answer, PruneStep) and not answer.entries:
                break  # nothing is left of it to measure
            took.append(busy)
            if min(took) < min(allowed):
                break
    locks.close()
    print(f"{what}: {min(took)} of {min(allowed)} µs, the shortest of {len(took)}")
    assert min(took) < min(allowed)
