"""How many connections to the lock server a worker opens, as docs/operations/capacity.md says."""

from typing import Any

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.stage import Stage, new_key
from tests.support.waiting import wait_until

# The database in which the stage has its locks; the tasks write their journal into another one.
LOCKS = "1"
CONCURRENCY = 3
# The stage has a connection of its locks and one of its client; the latter is not used here.
OWN = 1


def connections(server: EmbeddedServer) -> int:
    """All connections to the locks, the stage's own included."""
    with server.client() as client:
        found: Any = client.client_list()
    return sum(one["db"] == LOCKS for one in found)


@pytest.mark.parametrize(
    ("pool", "most"),
    [
        pytest.param("prefork", CONCURRENCY + 2, id="prefork"),
        pytest.param("threads", CONCURRENCY + 1, id="threads"),
        pytest.param("gevent", CONCURRENCY + 1, id="gevent"),
        pytest.param("solo", 2, id="solo"),
    ],
)
def test_worker_opens_few_connections(pool: str, most: int) -> None:
    """One for each task that asks at the same time, and those that renew; not one for each lock."""
    concurrency = 1 if pool == "solo" else CONCURRENCY
    with EmbeddedServer() as lock_server, Stage(locks_on=lock_server) as stage:
        with stage.worker(pool, concurrency):
            for result in [stage.send("noop") for _ in range(40)]:
                result.get(timeout=30)
            keys = [new_key("long") for _ in range(concurrency)]
            long = [stage.send("work", key, "sleep", 4) for key in keys]
            first = [stage.wait_held(key).holders[0] for key in keys]
            wait_until(
                lambda: all(
                    stage.wait_held(key).holders[0].expires_at > holder.expires_at
                    for key, holder in zip(keys, first, strict=True)
                ),
                20,
                what="all locks to be renewed",
            )
            opened = connections(lock_server) - OWN
            for result in long:
                result.get(timeout=30)
        assert 1 < opened <= most
