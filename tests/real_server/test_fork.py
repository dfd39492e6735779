"""A process that holds locks forks: the parent's stay the parent's, the child has its own.

Each test forks in a Python of its own, so that no pytest thread or server fixture is copied.
"""

from typing import Any

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.child import run_python

PREAMBLE = """
import asyncio, os, sys, time, traceback
from celery_locks import AsyncLocks, Locks, State
from celery_locks.core.renewer import renewer

def until(condition, deadline=30.0):
    ends = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)

def fork(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

def join(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"

url = sys.argv[1]
"""


def run(code: str, server: EmbeddedServer) -> str:
    return run_python(PREAMBLE + code, server.url)


@pytest.fixture
def clean(valkey: EmbeddedServer) -> EmbeddedServer:
    valkey.flush()
    return valkey


def test_child_neither_renews_nor_releases_the_parents_lease(clean: EmbeddedServer) -> None:
    run(
        """
locks = Locks.from_url(url)
lease = locks.acquire("parents", ttl=3)
until(lambda: lease.renewals >= 1)

def child():
    seen = lease.renewals
    assert renewer.tokens == frozenset()
    assert lease.is_foreign()
    assert lease.release() is False
    assert Locks.from_url(url).acquire("parents") is None
    time.sleep(0.8)
    assert lease.renewals == seen

join(fork(child))
renewed = lease.renewals
until(lambda: lease.renewals >= renewed + 2)
lease.check()
assert lease.release() is True
""",
        clean,
    )


def test_child_takes_locks_of_its_own(clean: EmbeddedServer) -> None:
    """With the very object it inherited, on connections of its own."""
    run(
        """
locks = Locks.from_url(url)
lease = locks.acquire("parents", ttl=1)
assert locks.acquire("parents", ttl=1, wait=0.1) is None  # opens the pub/sub connection too

def child():
    assert locks.acquire("parents") is None
    mine = locks.acquire("childs", ttl=1)
    until(lambda: mine.renewals >= 3)
    assert mine.release() is True
    assert len(os.listdir("/proc/self/task")) == 2

pids = [fork(child)]
join(pids[0])
until(lambda: lease.renewals >= 3)
lease.check()
assert lease.release() is True
assert locks.acquire("childs", ttl=1)
""",
        clean,
    )


def test_lock_of_a_child_that_exits_at_once_lapses(clean: EmbeddedServer) -> None:
    """os._exit runs no handler, so the lock lapses after its ttl."""
    run(
        """
locks = Locks.from_url(url)
kept = locks.acquire("parents", ttl=1)
pid = os.fork()
if not pid:
    locks.acquire("childs", ttl=1)
    os._exit(0)
join(pid)
began = time.monotonic()
assert locks.acquire("childs", wait=20)
assert time.monotonic() - began < 10
kept.check()
assert kept.renewals >= 1
""",
        clean,
    )


def test_many_forks_under_a_busy_renewer(clean: EmbeddedServer) -> None:
    """A fork may come at any instruction of the background thread, inside any lock it takes."""
    run(
        """
locks = Locks.from_url(url)
leases = [locks.acquire(f"parents{n}", ttl=3 + n % 50 / 50) for n in range(300)]

def child(n):
    def work():
        mine = locks.acquire(f"child{n}", ttl=5)
        assert mine.release() is True
    return work

forks, began = 0, time.monotonic()
while time.monotonic() - began < 1.5:
    for pid in [fork(child(n)) for n in range(6)]:
        join(pid)
        forks += 1
assert forks > 20, forks
for lease in leases:
    lease.check()
    assert lease.renewals >= 1
""",
        clean,
    )


def test_fork_while_a_script_is_read(clean: EmbeddedServer) -> None:
    """By the background thread, for the first time: the child must not wait for it to end."""
    run(
        """
import threading
from celery_locks.store import scripts

reading, go_on, files = threading.Event(), threading.Event(), scripts.files

def slow_files(package):
    if threading.current_thread() is not threading.main_thread():
        reading.set()
        go_on.wait(20)
    return files(package)

scripts.files = slow_files
reader = threading.Thread(target=lambda: scripts.RENEW.sha)
reader.start()
assert reading.wait(10)
locks = Locks.from_url(url)
pid = fork(lambda: locks.acquire("child", ttl=5).release())
ended = []

def is_over():
    ended[:] = os.waitpid(pid, os.WNOHANG)
    return ended[0] == pid

try:
    until(is_over, 15)
finally:
    os.kill(pid, 9) if not ended[0] else None
    go_on.set()
assert ended[1] == 0
reader.join()
""",
        clean,
    )


def test_nothing_is_imported_in_the_background_thread(clean: EmbeddedServer) -> None:
    """A process forked while another thread imports a module waits for that import for ever."""
    imported = run(
        """
import threading

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name)

async def main():
    lease = await AsyncLocks.from_url(url).acquire("watched", ttl=1)
    while lease.renewals < 2:
        await asyncio.sleep(0.01)

sys.meta_path.insert(0, Watch())
asyncio.run(main())
""",
        clean,
    )
    assert imported == ""


def test_fork_of_a_fork_holds_its_own(clean: EmbeddedServer) -> None:
    run(
        """
locks = Locks.from_url(url)
outer = locks.acquire("outer", ttl=3)

def grandchild():
    assert locks.acquire("middle") is None
    inner = locks.acquire("inner", ttl=3)
    until(lambda: inner.renewals >= 2)
    assert inner.release() is True

def child():
    middle = locks.acquire("middle", ttl=3)
    join(fork(grandchild))
    until(lambda: middle.renewals >= 2)
    assert middle.release() is True

join(fork(child))
outer.check()
""",
        clean,
    )


def test_fork_inside_an_event_loop_leaves_the_parents_connections_alone(
    clean: EmbeddedServer,
) -> None:
    """The child shares the parent's epoll: closing what it inherited would deafen the parent."""
    run(
        """
import gc
from celery_locks.core import waiting as waiting_module

async def main():
    locks = AsyncLocks.from_url(url)
    lease = await locks.acquire("parents", ttl=1)
    assert await locks.acquire("parents", ttl=1, wait=0.1) is None

    def child():
        gc.collect()
        assert lease.release  # the lease is the parent's
        mine = Locks.from_url(url).acquire("childs", ttl=9)
        assert mine.release() is True

    took = []
    for _ in range(3):
        join(fork(child))
        began = time.monotonic()
        await (await locks.acquire("other", ttl=9)).release()
        took.append(time.monotonic() - began)
    assert min(took) < 0.75, f"a connection is no longer in the loop: {took}"
    waiting_module.REPOLL, waiting_module.ALIVE = 30.0, 90.0  # only the message can wake it in time
    waiting = asyncio.create_task(locks.acquire("parents", ttl=1, wait=60))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    assert await lease.release() is True
    got = await waiting
    assert got, "the waiter was not served"
    assert time.monotonic() - began < 15, "the message did not reach the loop"
    await got.release()
    await locks.close()

asyncio.run(main())
""",
        clean,
    )


def test_child_that_runs_a_loop_uses_connections_of_its_own(clean: EmbeddedServer) -> None:
    run(
        """
locks = AsyncLocks.from_url(url)

async def section(name):
    async with locks.hold(name, ttl=1, wait=3) as lease:
        while lease.renewals < 1:
            await asyncio.sleep(0.01)
    await locks.close()

asyncio.run(section("before"))
pids = [fork(lambda: asyncio.run(section("shared"))) for _ in range(3)]
asyncio.run(section("parents"))
for pid in pids:
    join(pid)
""",
        clean,
    )


def test_pending_releases_of_the_parent_are_not_the_childs(clean: EmbeddedServer) -> None:
    output: Any = run(
        """
from celery_locks.clock import now
from celery_locks.core.pending_releases import PendingRelease
locks = Locks.from_url("redis://127.0.0.1:1/0")
renewer.release_later(
    PendingRelease("x", "t", locks.operations.background_store, locks.commands, now() + 30)
)

def child():
    print(len(renewer._pending_releases))

join(fork(child))
""",
        clean,
    )
    assert output == "0"
