"""The permissions of docs/security.md suffice for what runs beside the contract suite.

The suite itself runs as that user too (the store ``acl``). Here: Sentinel, Cluster, a drain, a real
worker with its sweep, and the user that may only look. Each ends with an empty ``ACL LOG``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_locks import Locks, admin
from celery_locks.errors import ServerRefused
from celery_locks.recipes import drain
from tests.servers.embedded import EmbeddedServer
from tests.servers.topologies import EmbeddedCluster, EmbeddedSentinel
from tests.support import acl
from tests.support.celery_worker import PATIENCE, rig_on
from tests.support.waiting import wait_until


@contextmanager
def permitted(servers: list[EmbeddedServer], user: str, *more: str) -> Iterator[None]:
    """The user exists on these servers; at the end nothing may have been refused to it."""
    for server in servers:
        with server.client() as client:
            acl.add_user(client, user, *more)
            client.execute_command("ACL", "LOG", "RESET")
    yield
    for server in servers:
        if server.is_running:
            with server.client() as client:
                assert acl.refused(client) == []


def url_of(server: EmbeddedServer, user: str = "locks") -> str:
    return f"redis://{user}:{acl.PASSWORD}@{server.host}:{server.port}/0"


def use(locks: Locks, name: str = "a") -> None:
    with locks.hold(name, wait=5, ttl=10) as lease:
        lease.renew()
        assert locks.is_locked(name)


def test_every_permission_is_used() -> None:
    """What no script and no call of ours says has no place in the list."""
    scripts = Path(str(files("celery_locks.store.scripts")))
    texts = [path.read_text() for path in scripts.rglob("*.lua")]
    in_scripts = {word.lower() for text in texts for word in re.findall(r"call\('([A-Z]+)'", text)}
    by_us = {"auth", "select", "ping", "eval", "evalsha", "subscribe", "hscan", "scard"}
    by_us |= {"zscan", "mget"}
    given = {word[1:].partition("|")[0] for word in acl.rules_of("locks") if word[0] == "+"}
    assert given == in_scripts | by_us


def test_sentinel_and_its_failover() -> None:
    """Users of their own on the servers and on the sentinels."""
    with EmbeddedSentinel() as sentinel:
        ports = ",".join(f"127.0.0.1:{watcher.port}" for watcher in sentinel.sentinels)
        app = Celery(set_as_current=False)
        login = {"username": "locks-sentinel", "password": acl.PASSWORD}
        app.conf.update(
            locks_url=f"redis+sentinel://locks:{acl.PASSWORD}@{ports}/mymaster/0",
            locks_url_options={"sentinel_kwargs": login},
        )
        with permitted(sentinel.servers, "locks"), permitted(sentinel.sentinels, "locks-sentinel"):
            locks = Locks.from_app(app)
            use(locks)
            old = sentinel.primary
            old.kill()
            sentinel.wait_failover(old, 60)
            use(locks)
            locks.close()
        app.close()


def test_cluster(cluster: EmbeddedCluster) -> None:
    """Its clients have to ask where the slots are, too."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    with permitted(cluster.nodes, "locks", "+cluster|slots"):
        locks = Locks.from_url(f"redis+cluster://locks:{acl.PASSWORD}@{hosts}/")
        for n in range(20):
            use(locks, f"a{n}")
        list(admin.list_locks(locks))
        locks.close()


def test_drain_of_a_list(redis_server: EmbeddedServer) -> None:
    """The list's own key, and the memo beside it, as the page says."""
    more = ("~inbox", "~{inbox}:celery-locks:drained:*")
    with permitted([redis_server], "locks", *more), redis_server.client() as client:
        client.rpush("inbox", 1, 2, 3)
        locks = Locks.from_url(url_of(redis_server))
        assert drain(locks, "inbox", 2) == [b"1", b"2"]
        client.delete("inbox")
        locks.close()


def test_worker_and_sweep(redis_server: EmbeddedServer) -> None:
    """Tasks, waiting, and freeing the locks of a worker that was killed."""
    with EmbeddedServer() as broker, permitted([redis_server], "locks"):
        conf: dict[str, Any] = {"locks_url": url_of(redis_server), "locks_ttl": 20}
        with rig_on(broker, **conf) as rig:
            with rig.worker() as worker:
                assert rig.task("work").delay("done").get(timeout=PATIENCE) == "done"
                stuck = rig.task("work").delay("stuck", "a gate that stays shut")
                rig.wait_started(stuck)
                worker.kill()
            deadline = time.monotonic() + PATIENCE
            wait_until(
                lambda: [one.name for one in admin.sweep(rig.locks, rig.app).freed] == ["stuck"],
                deadline - time.monotonic(),
                every=0.5,
                what="the sweep to free it",
            )
            assert not rig.locks.is_locked("stuck")
            assert admin.history(rig.locks)


def test_look_only_user_looks(redis_server: EmbeddedServer) -> None:
    """What shows locks works; what changes one is refused by the server itself."""
    writer = Locks.from_url(redis_server.url)
    with permitted([redis_server], "locks-look"):
        locks = Locks.from_url(url_of(redis_server, "locks-look"))
        with writer.hold("seen", ttl=10):
            assert "seen" in [lock.name for lock in admin.list_locks(locks)]
            assert locks.info("seen") is not None
            admin.history(locks)
            assert [finding.level for finding in admin.check_server(locks)] == []
    with writer.hold("seen", ttl=10):
        for change in (
            lambda: locks.acquire("free"),
            lambda: admin.force_release(locks, "seen", by="me"),
        ):
            with pytest.raises(ServerRefused, match=r"not permit our user.* docs/security\.md"):
                change()
        assert writer.is_locked("seen")
    writer.close()
    locks.close()
