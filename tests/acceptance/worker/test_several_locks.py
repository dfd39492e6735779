"""Real workers run tasks with several locks, and tasks that share one."""

import os
import signal
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_locks import Locks, admin
from celery_locks.types import LockInfo
from tests.servers.embedded import EmbeddedServer
from tests.support.waiting import wait_until
from tests.support.worker import Worker

NAMES = ("tenant:1", "warehouse")
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as one:
        yield one


@pytest.fixture(scope="module", params=["prefork", "threads"])
def pool(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[str]:
    server.client().flushall()
    env = {"SEVERAL_URL": server.url}
    with Worker("tests.support.several_app", pool=request.param, concurrency=4, env=env):
        yield request.param


@pytest.fixture(scope="module")
def app(server: EmbeddedServer) -> Iterator[Celery]:
    app = Celery("caller", broker=server.url, backend=server.url, set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def locks(server: EmbeddedServer) -> Iterator[Locks]:
    locks = Locks.from_url(server.url)
    yield locks
    locks.close()


def held(locks: Locks, *names: str) -> list[LockInfo]:
    def find() -> list[LockInfo] | None:
        infos = [locks.info(name) for name in names]
        found = [info for info in infos if info and info.holders]
        return found if len(found) == len(names) else None

    return wait_until(find, 30, what=f"{names} to be held")


def all_free(locks: Locks, *names: str) -> bool:
    return all(locks.info(name) is None for name in names)


def test_task_keeps_all_its_locks_beyond_the_ttl(
    pool: str, app: Celery, locks: Locks, server: EmbeddedServer
) -> None:
    """In prefork the main process renews them all, though it knows only one token."""
    result = app.send_task("pack", (1, f"gate-{pool}"))
    infos = held(locks, *NAMES)
    # A third of the ttl later at the earliest somebody renews; 11 s is beyond that.
    fences = {info.name: info.holders[0].fence for info in infos}
    first = {info.name: info.holders[0].expires_at for info in infos}
    wait_until(
        lambda: all(
            info.holders[0].expires_at > first[info.name] + 5 for info in held(locks, *NAMES)
        ),
        60,
        what="both to be renewed",
    )
    with server.client() as client:
        client.set(f"gate-{pool}", 1)
    assert result.get(timeout=30) == fences
    wait_until(lambda: all_free(locks, *NAMES), 10)


def test_force_release_of_the_second_lock_ends_the_task(
    pool: str, app: Celery, locks: Locks
) -> None:
    result = app.send_task("pack", (1, f"never-{pool}"))
    held(locks, *NAMES)
    admin.force_release(locks, "warehouse", reason="stuck", by="ops")
    with pytest.raises(Exception, match="ops"):
        result.get(timeout=60)
    wait_until(lambda: all_free(locks, *NAMES), 10)


def test_killed_child_frees_all_its_locks(pool: str, app: Celery, locks: Locks) -> None:
    if pool != "prefork":
        pytest.skip("a thread cannot be killed")
    result = app.send_task("pack", (1, "never"))
    infos = held(locks, *NAMES)
    waiter = app.send_task("pack", (1, "gate-prefork"))
    wait_until(lambda: len(held(locks, "tenant:1")[0].waiters) == 1, 30)
    pid = infos[0].holders[0].pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    assert set(waiter.get(timeout=15)) == set(NAMES), "well before the ttl of 30 s"
    with pytest.raises(Exception, match="Worker"):
        result.get(timeout=30)
    wait_until(lambda: all_free(locks, *NAMES), 10)


def test_readers_run_together_and_a_writer_alone(
    pool: str, app: Celery, locks: Locks, server: EmbeddedServer
) -> None:
    readers = [app.send_task("read", (1, f"readers-{pool}")) for _ in range(2)]
    wait_until(lambda: len(held(locks, "doc:1")[0].holders) == 2, 30)
    writer = app.send_task("write", (1, f"writer-{pool}"))
    wait_until(lambda: len(held(locks, "doc:1")[0].waiters) == 1, 30)
    late = app.send_task("read", (1, f"readers-{pool}"))
    wait_until(lambda: len(held(locks, "doc:1")[0].waiters) == 2, 30)
    with server.client() as client:
        client.set(f"readers-{pool}", 1)
        assert [reader.get(timeout=30) for reader in readers] == ["read", "read"]
        wait_until(lambda: not held(locks, "doc:1")[0].shared, 30)
        assert not late.ready()
        client.set(f"writer-{pool}", 1)
    assert writer.get(timeout=30) == "wrote"
    assert late.get(timeout=30) == "read"
