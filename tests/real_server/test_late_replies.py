"""A release that nobody waits for: whatever happens to its reply, the lock comes free."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from celery_locks import LockedTask, Locks
from celery_locks.core.lease import Lease
from celery_locks.core.renewer import renewer
from celery_locks.events import subscribe
from celery_locks.integration.app_locks import locks_of
from tests.servers.embedded import EmbeddedServer
from tests.support.child import run_python
from tests.support.proxy import Proxy
from tests.support.strike import Strike
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

Open = Callable[..., Locks]


@pytest.fixture
def open_locks() -> Iterator[Open]:
    opened: list[Locks] = []

    def open_one(url: str, **layout: Any) -> Locks:
        opened.append(locks := Locks.from_url(url, **layout))
        acquired(locks, "first").release()  # the server has the scripts now
        return locks

    yield open_one
    for locks in opened:
        locks.close()


def release_without_waiting(locks: Locks, lease: Lease) -> None:
    locks.run(locks.operations.release(lease, wait=False))


def acquired(locks: Locks, name: str = "a") -> Lease:
    lease = locks.acquire(name, ttl=600)
    assert lease
    return lease


def has_unconfirmed() -> bool:
    """Return True if a reply is late. Confirmed releases may be repeated for a while."""
    return renewer._pending_releases.has_unsent


def wait_confirmed() -> None:
    wait_until(lambda: not has_unconfirmed(), 20, what="the reply of the release")


def calls_of_scripts(server: EmbeddedServer) -> int:
    with server.client() as client:
        stats: Any = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def test_next_call_reads_the_late_reply(
    valkey: EmbeddedServer, proxy: Proxy, open_locks: Open
) -> None:
    """The next acquire and its own reply must not be confused by the one before."""
    locks = open_locks(proxy.url)
    release_without_waiting(locks, acquired(locks))
    assert len(renewer._pending_releases) == 1
    following = acquired(locks, "b")
    assert not has_unconfirmed()
    assert [lock.name for lock in locks.run(locks.queries.list_locks())] == ["b"]
    assert following.release() is True
    assert proxy.connections == 1


def test_idle_process_reads_the_late_reply(server: EmbeddedServer, open_locks: Open) -> None:
    """Without a next call a failure would stay unknown; the release is not sent twice for that."""
    locks = open_locks(server.url)
    lease = acquired(locks)
    before = calls_of_scripts(server)
    release_without_waiting(locks, lease)
    wait_confirmed()
    assert calls_of_scripts(server) == before + 1
    assert locks.info("a") is None


def test_lost_reply_repeats_the_release_and_spares_the_next_holder(
    valkey: EmbeddedServer, proxy: Proxy, open_locks: Open
) -> None:
    locks, far = open_locks(proxy.url), open_locks(valkey.url)
    lease = acquired(locks)
    proxy.drop_next_reply(b"EVALSHA")
    release_without_waiting(locks, lease)
    wait_until(lambda: far.info("a") is None)
    following = acquired(far)
    wait_confirmed()
    assert proxy.dropped == 1
    assert following.release() is True


@pytest.mark.parametrize("is_busy", [True, False])
def test_next_call_does_not_take_the_place_of_a_lost_reply(
    valkey: EmbeddedServer, proxy: Proxy, open_locks: Open, is_busy: bool
) -> None:
    """The reply to the next call comes first then, and must not be read as that of the release."""
    locks, far = open_locks(proxy.url), open_locks(valkey.url)
    if is_busy:
        acquired(far, "b")
    lease = acquired(locks)
    proxy.drop_next_reply(b"EVALSHA")
    release_without_waiting(locks, lease)
    wait_until(lambda: proxy.dropped == 1)
    assert (locks.acquire("b", ttl=600) is None) is is_busy
    wait_confirmed()
    assert far.info("a") is None


def test_lost_request_is_sent_again(valkey: EmbeddedServer, proxy: Proxy, open_locks: Open) -> None:
    """The bytes were in a socket that died: nobody but the sender knows of the release."""
    locks, far = open_locks(proxy.url), open_locks(valkey.url)
    lease = acquired(locks)
    proxy.black_hole()
    release_without_waiting(locks, lease)
    proxy.cut()
    proxy.pass_through()
    wait_until(lambda: far.info("a") is None, 20)


@pytest.mark.parametrize("is_idle", [True, False])
@pytest.mark.parametrize("trouble", ["NOSCRIPT", "READONLY", "OOM"])
def test_error_reply_repeats_the_release(
    server: EmbeddedServer, open_locks: Open, trouble: str, is_idle: bool
) -> None:
    """Read in the background, or by the next call, which has a reply of its own."""
    locks = open_locks(server.url)
    lease = acquired(locks)
    if trouble == "NOSCRIPT":
        server.ask("SCRIPT", "FLUSH")
    elif trouble == "READONLY":
        server.ask("REPLICAOF", "127.0.0.1", 1)
    else:
        server.ask("CONFIG", "SET", "maxmemory", "1")
    release_without_waiting(locks, lease)
    if not is_idle:
        with suppress(Exception):
            acquired(locks, "b")
    server.ask("REPLICAOF", "NO", "ONE")
    server.ask("CONFIG", "SET", "maxmemory", "0")
    wait_until(lambda: locks.info("a") is None, 20)
    wait_until(lambda: lease.token not in renewer._pending_releases)


def test_one_connection_is_enough(valkey: EmbeddedServer, proxy: Proxy, open_locks: Open) -> None:
    """A connection with a late reply is free for the next caller."""
    locks = open_locks(f"{proxy.url}?max_connections=1")
    for number in range(5):
        release_without_waiting(locks, acquired(locks, str(number)))
        assert proxy.connections == 1
    acquired(locks).release()
    assert not has_unconfirmed()


def test_stopped_server_does_not_delay_the_release(
    server: EmbeddedServer, open_locks: Open
) -> None:
    """The task goes on; the release is executed when the server continues."""
    locks = open_locks(server.url)
    lease = acquired(locks)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        release_without_waiting(locks, lease)
        assert renewer._pending_releases
    finally:
        os.kill(server.pid, signal.SIGCONT)
    wait_confirmed()
    assert locks.info("a") is None


def test_end_of_a_process_reads_the_late_reply(valkey: EmbeddedServer, open_locks: Open) -> None:
    """A pool child that exits would take the only knowledge of a failed release with it."""
    valkey.flush()
    locks = open_locks(valkey.url)
    release_without_waiting(locks, acquired(locks))
    renewer.wait_idle(10)
    assert not has_unconfirmed()


def test_forked_child_leaves_the_late_reply_to_its_parent(valkey: EmbeddedServer) -> None:
    """Its connections and pending releases are its own."""
    valkey.flush()
    run_python(
        """
import os, sys
from celery_locks import Locks
from celery_locks.core.renewer import renewer

locks = Locks.from_url(sys.argv[1])
locks.acquire("first").release()
lease = locks.acquire("a", ttl=600)
locks.run(locks.operations.release(lease, wait=False))
pid = os.fork()
if not pid:
    is_clean = not renewer._pending_releases
    os._exit(0 if is_clean and locks.acquire("b", ttl=600).release() else 1)
assert os.waitpid(pid, 0)[1] == 0, "the child failed"
assert locks.acquire("c", ttl=600).release()
assert lease.token not in renewer._pending_releases
""",
        valkey.url,
    )


def test_release_that_somebody_listens_to_waits(valkey: EmbeddedServer, open_locks: Open) -> None:
    """Metrics and logs report whether the lock was ours, which only the reply tells."""
    valkey.flush()
    locks, seen = open_locks(valkey.url), []
    unsubscribe = subscribe(lambda event: seen.append((event.kind, event.detail.get("ours"))))
    try:
        release_without_waiting(locks, acquired(locks))
    finally:
        unsubscribe()
    assert seen[-1] == ("released", True)
    assert not has_unconfirmed()


def test_release_struck_at_any_line_leaves_nothing_held(
    valkey: EmbeddedServer, open_locks: Open
) -> None:
    """A time limit may strike while the reply of the task before is read."""
    valkey.flush()
    locks = open_locks(valkey.url)
    for line in range(1, 1000):
        lease, strike = acquired(locks, f"a{line}"), Strike(line)
        with suppress(KeyboardInterrupt), strike:
            release_without_waiting(locks, lease)
            with locks.hold(f"b{line}", ttl=600):
                pass
        sys.settrace(None)
        lease.release()  # as ``after_return`` does
        wait_until(
            lambda: not renewer.tokens and not locks.run(locks.queries.list_locks()),
            20,
            what=strike.where,
        )
        if not strike.where:
            break
    assert line > 50
    assert not strike.where


_ENDS = {"callbacks": None, "chain": None, "chord": None, "called_directly": False}


@pytest.mark.parametrize(
    ("request_fields", "is_late"),
    [
        ({"ignore_result": True}, True),
        ({"ignore_result": False}, False),
        ({"ignore_result": True, "chord": {"task": "x"}}, False),
        ({"ignore_result": True, "is_eager": True}, False),
    ],
)
def test_task_waits_unless_its_end_is_unnoticed(
    valkey: EmbeddedServer, request_fields: dict[str, Any], is_late: bool
) -> None:
    """A caller that has the result may try the lock at once, and must find it free."""
    valkey.flush()
    app = Celery("late", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.locks_url = valkey.url
    late: list[bool] = []

    @app.task(base=LockedTask, shared=False, lock_key="mail:{to}")
    def mail(to: int) -> None: ...

    mail.backend.on_chord_part_return = lambda *_, **__: late.append(has_unconfirmed())
    trace = build_tracer(mail.name, mail, app=app)
    for number in range(2):  # the first one opens the connection
        trace(f"job-{number}", (number,), {}, {"id": f"job-{number}", **_ENDS, **request_fields})
    assert has_unconfirmed() is is_late
    assert not any(late)
    wait_confirmed()
    locks_of(app).close()
