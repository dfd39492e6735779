"""A primary dies: what was held is renewed or reported lost, never silently gone.

Replication is asynchronous, so a failover may forget the latest writes; which of the two happens is
the server's luck. That the holder knows, and that fences rise, is ours.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks import LeaseLost, Locks, LockUnavailable, State
from celery_locks.clock import now
from celery_locks.core import waiting
from tests.servers.embedded import EmbeddedServer
from tests.servers.topologies import EmbeddedCluster, EmbeddedSentinel
from tests.support.fake_server import FakeSentinel
from tests.support.news import Callback, News
from tests.support.waiting import wait_until

Open = Callable[..., Any]
OpenBoth = Callable[..., list[Any]]


@pytest.fixture
def trio() -> Iterator[EmbeddedSentinel]:
    with EmbeddedSentinel() as servers:
        yield servers


@pytest.fixture
def replicated() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(replicas=1) as servers:
        yield servers


@pytest.fixture
def bare() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as servers:
        yield servers


def acquired(locks: Any, name: str, **asked: Any) -> Any:
    """A lease, or None while the servers have not found each other again."""
    try:
        return locks.acquire(name, **asked)
    except LockUnavailable:
        return None


def expect_known(lease: Any, describe_entry: Callback, holders: tuple[str, ...]) -> None:
    """The holder's belief equals the store's, and a loss was told."""
    if lease.state is State.LOST:
        with pytest.raises(LeaseLost):
            lease.check()
        assert len(describe_entry.calls) == 1
        assert lease.token not in holders
    else:
        lease.check()
        assert lease.token in holders


def settled(lease: Any, since: int) -> bool:
    """Renewed since the failover, or lost."""
    return lease.state is State.LOST or (lease.state is State.HELD and lease.renewals > since)


def holders_of(locks: Any, name: str) -> tuple[str, ...]:
    info = locks.info(name)
    return tuple(holder.token for holder in info.holders) if info else ()


def test_lock_held_through_a_sentinel_failover(both: OpenBoth, trio: EmbeddedSentinel) -> None:
    describe_entry = [Callback(), Callback()]
    faces = both(trio.url)
    leases = [
        face.acquire(f"through{n}", ttl=9, on_lost=describe_entry[n])
        for n, face in enumerate(faces)
    ]
    # The luck is taken out: these writes are on the replica.
    wait_until(lambda: trio.replica.ask("EXISTS", "celery-locks:{0}:h:through1"), 15)
    old = trio.primary
    old.kill()
    since = [lease.renewals for lease in leases]
    trio.wait_failover(old)
    for n, (face, lease) in enumerate(zip(faces, leases, strict=True)):
        wait_until(lambda one=lease, i=n: settled(one, since[i]), 9, what="a renewal or a loss")
        expect_known(lease, describe_entry[n], holders_of(face, lease.name))
        assert lease.state is State.HELD, "it was replicated and within its ttl"
        assert face.release(lease) is True
        later = face.acquire(lease.name, ttl=9)
        assert later.fence > lease.fence
        face.release(later)


def test_lock_that_was_not_replicated_is_told_as_lost(
    locks: Open, trio: EmbeddedSentinel, news: News
) -> None:
    """The failover that forgets a grant: told within a renewal, and the next fence is higher."""
    describe_entry = Callback()
    face = locks(trio.url, guard_after_loss=False)
    trio.replica.pause()
    trio.primary.ask("CLIENT", "KILL", "TYPE", "replica")
    lease = face.acquire("forgotten", ttl=6, on_lost=describe_entry)
    old = trio.primary
    old.kill()
    next(server for server in trio.servers if server is not old).resume()
    trio.wait_failover(old)
    news.wait(lease, "lost")
    expect_known(lease, describe_entry, holders_of(face, "forgotten"))
    later = wait_until(lambda: acquired(face, "forgotten", ttl=6), 15)
    assert later.fence > lease.fence
    assert face.release(lease) is False
    later.check()


def test_lock_that_was_not_replicated_is_asserted_again(
    locks: Open, trio: EmbeddedSentinel, news: News
) -> None:
    """The replica knows neither the grant nor its number: the holder shows both."""
    face, other = locks(trio.url), locks(trio.url)
    trio.replica.pause()
    trio.primary.ask("CLIENT", "KILL", "TYPE", "replica")
    other.release(other.acquire("known", ttl=6))
    lease = face.acquire("forgotten2", ttl=30)
    old = trio.primary
    old.kill()
    next(server for server in trio.servers if server is not old).resume()
    trio.wait_failover(old)
    wait_until(lambda: other.acquire("forgotten2", ttl=30) is None, 15)
    news.wait(lease, "reasserted", 30)
    assert holders_of(face, "forgotten2") == (lease.token,)
    lease.check()


def test_waiter_follows_the_primary_and_does_not_spin(
    face: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pub/sub connection died with the old primary: it must listen to the new one, calmly."""
    with EmbeddedServer() as old, EmbeddedServer() as new, FakeSentinel() as sentinel:
        sentinel.name_primary(old.host, old.port)
        before, after = Locks.from_url(old.url), Locks.from_url(new.url)
        assert before.acquire("queue", ttl=30)
        lease = after.acquire("queue", ttl=30)
        assert lease is not None
        served: list[Any] = []
        # Two servers that share no data: for the guard, the second one has lost that of the first.
        waiter = face(sentinel.url, guard_after_loss=False)
        line = threading.Thread(
            target=lambda: served.append(waiter.acquire("queue", ttl=30, wait=60))
        )
        line.start()
        wait_until(lambda: before.info("queue").waiters, 15)  # type: ignore[union-attr]

        sentinel.name_primary(new.host, new.port)
        old.kill()
        wait_until(lambda: after.info("queue").waiters, 15)  # type: ignore[union-attr]
        asked, began = scripts_run(new), now()
        wait_until(lambda: now() - began > 1.7)
        assert scripts_run(new) - asked < 8, "the waiter spins"
        monkeypatch.setattr(waiting, "REPOLL", 30.0)
        last_poll = now() + 1.0
        wait_until(lambda: now() > last_poll, what="the waiter to poll no more")
        lease.release()
        line.join(15)
        assert served, "the message did not reach the waiter"
        assert served[0]
        assert served[0].fence > lease.fence
        waiter.release(served[0])
        before.close()
        after.close()


def scripts_run(server: EmbeddedServer) -> int:
    stats = server.info("commandstats")
    lines = [stats.get(f"cmdstat_{name}", "calls=0") for name in ("evalsha", "eval")]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)


def test_locks_held_through_the_death_of_a_cluster_primary(
    both: OpenBoth, replicated: EmbeddedCluster
) -> None:
    """Those on the dead node go on at its replica; those elsewhere notice nothing."""
    faces = both(replicated.url)
    describe_entry = {f"lock{n}": Callback() for n in range(24)}
    held = {
        name: (face := faces[n % 2], face.acquire(name, ttl=12, on_lost=callback))
        for n, (name, callback) in enumerate(describe_entry.items())
    }
    victim, hit = owner_and_locks(replicated, faces[0], held)
    keys = victim.ask("DBSIZE")
    wait_until(lambda: keys in [replica.ask("DBSIZE") for replica in replicated.replicas], 15)
    victim.kill()
    since = {name: lease.renewals for name, (_, lease) in held.items()}
    replicated.wait_ok()
    for name, (face, lease) in held.items():
        wait_until(lambda one=lease, n=name: settled(one, since[n]), 12)
        expect_known(lease, describe_entry[name], holders_of(face, name))
        assert lease.state is State.HELD or name in hit
        face.release(lease)
        later = face.acquire(name, ttl=12)
        assert later.fence > lease.fence
        face.release(later)


def test_locks_of_a_cluster_primary_without_replica_are_told_as_lost(
    both: OpenBoth, bare: EmbeddedCluster, news: News
) -> None:
    """Nobody takes its slots over: unknown until the deadline, then lost; the rest stays held."""
    faces = both(bare.url)
    # Without this, every node would refuse while one is missing.
    for node in bare.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    describe_entry = {f"lock{n}": Callback() for n in range(24)}
    held = {
        name: (face := faces[n % 2], face.acquire(name, ttl=2, on_lost=callback))
        for n, (name, callback) in enumerate(describe_entry.items())
    }
    victim, hit = owner_and_locks(bare, faces[0], held)
    victim.kill()
    for name in hit:
        lease = held[name][1]
        assert news.wait(lease, "lost", 5) - lease.deadline < 1
        assert "suspended" in news.of(lease)
        assert len(describe_entry[name].calls) == 1
    for name in set(held) - hit:
        face, lease = held[name]
        lease.check()
        assert "lost" not in news.of(lease)
        face.release(lease)
    lost = next(iter(hit))
    for face in faces:
        with pytest.raises(LockUnavailable):
            face.acquire(lost, ttl=3)

    victim.restart()
    for face in faces:
        later = wait_until(lambda one=face: acquired(one, lost, ttl=3), 15)
        assert later.fence > held[lost][1].fence
        face.release(later)


def owner_and_locks(
    cluster: EmbeddedCluster, face: Any, held: dict[str, Any]
) -> tuple[EmbeddedServer, set[str]]:
    """A primary that has some of these locks and not all, and which."""
    owners = {name: cluster.owner_of(face.locks.commands.root(name)) for name in held}
    victim = owners["lock0"]
    hit = {name for name, owner in owners.items() if owner is victim}
    assert hit < set(held)
    return victim, hit
