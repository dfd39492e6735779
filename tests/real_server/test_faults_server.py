"""The server itself fails or refuses: restarts, wipes, memory, roles, permissions, foreign data."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import (
    ForeignData,
    LeaseLost,
    LockUnavailable,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    ServerTooOld,
    State,
)
from celery_locks.admin import force_release
from celery_locks.clock import now
from tests.servers.embedded import EmbeddedServer
from tests.support.fake_server import FakeServer
from tests.support.news import Callback, News, at_most
from tests.support.redis_keys import keys_of_locks
from tests.support.waiting import wait_until

Open = Callable[..., Any]
TTL = 1.5


def expect_told(lease: Any, describe_entry: Callback, news: News, within: float) -> None:
    """Lost reaches the holder in all three ways, in time; nothing of it is silent."""
    news.wait(lease, "lost", within)
    assert lease.state is State.LOST
    assert lease.remaining == 0
    with pytest.raises(LeaseLost):
        lease.check()
    assert [(one, error.name) for one, error in describe_entry.calls] == [(lease, lease.name)]
    assert news.of(lease).count("lost") == 1


def test_restart_with_appendonly_goes_on(face: Open, news: News) -> None:
    """What the server wrote down survives kill -9, so the holder never notices but for a pause."""
    with EmbeddedServer(appendonly="always") as server:
        locks = face(server.url)
        lease = locks.acquire("kept", ttl=3)
        server.restart()
        renewed = lease.renewals
        wait_until(lambda: lease.renewals > renewed and lease.state is State.HELD, 15)
        assert face(server.url).acquire("kept") is None
        assert locks.release(lease) is True
        later = locks.acquire("kept", ttl=3)
        assert later.fence > lease.fence
        assert "lost" not in news.of(lease)
        locks.release(later)


def test_restart_without_persistence_is_survived(
    face: Open, server: EmbeddedServer, news: News
) -> None:
    """The holder asserts its lease again, and nobody who knew the server gets in meanwhile."""
    locks, other = face(server.url), face(server.url)
    other.release(other.acquire("known", ttl=TTL))
    lease = locks.acquire("kept", ttl=6)
    server.restart()
    assert other.acquire("kept", ttl=6) is None
    news.wait(lease, "reasserted")
    assert other.acquire("kept", ttl=6) is None
    lease.check()
    assert server.ask("KEYS", "*h:*") == ["celery-locks:{0}:h:kept"]
    assert locks.release(lease) is True
    later = wait_until(lambda: other.acquire("kept", ttl=6), 30)
    assert later.fence > lease.fence
    assert "lost" not in news.of(lease)


def test_restart_without_persistence_is_told_as_lost(
    face: Open, server: EmbeddedServer, news: News
) -> None:
    describe_entry = Callback()
    locks = face(server.url, guard_after_loss=False)
    lease = locks.acquire("forgotten", ttl=TTL, on_lost=describe_entry)
    server.restart()
    expect_told(lease, describe_entry, news, within=TTL / 3 + TTL / 3)
    later = locks.acquire("forgotten", ttl=TTL)
    assert later.fence > lease.fence, "a fence must rise over an amnesia too"
    assert locks.release(lease) is False
    assert locks.info("forgotten").holders[0].token == later.token


def test_flushall_is_told_as_lost(face: Open, server: EmbeddedServer, news: News) -> None:
    describe_entry = Callback()
    locks = face(server.url, guard_after_loss=False)
    lease = locks.acquire("wiped", ttl=TTL, on_lost=describe_entry)
    server.flush()
    expect_told(lease, describe_entry, news, within=TTL / 3 + TTL / 3)
    assert server.ask("KEYS", "*h:*") == [], "a renewal made the lock anew"


def test_script_flush_is_not_noticed(face: Open, server: EmbeddedServer, news: News) -> None:
    locks = face(server.url)
    lease = locks.acquire("scripts", ttl=TTL)
    server.ask("SCRIPT", "FLUSH", "SYNC")
    wait_until(lambda: lease.renewals >= 1, TTL)
    for verb in (lambda: locks.acquire("more", ttl=TTL), lambda: locks.release(lease)):
        server.ask("SCRIPT", "FLUSH", "SYNC")
        assert verb()
    assert not {"lost", "suspended", "unavailable"} & set(news.of(lease))


def test_out_of_memory_refuses_new_locks_and_keeps_the_held(
    face: Open, either: EmbeddedServer, news: News
) -> None:
    """Under noeviction a full server must not cost anybody the lock they hold."""
    locks = face(either.url)
    lease, queue = locks.acquire("held", ttl=TTL), locks.acquire("other", ttl=TTL)
    either.ask("CONFIG", "SET", "maxmemory", "1")
    with at_most(0.3), pytest.raises(ServerOutOfMemory):
        locks.acquire("new", ttl=TTL)
    renewed = lease.renewals
    wait_until(lambda: lease.renewals >= renewed + 2, 2 * TTL)
    locks.renew(lease)
    assert "suspended" not in news.of(lease)
    assert locks.release(lease) is True
    assert locks.release(queue) is True
    left: Any = either.ask("KEYS", "*")
    assert keys_of_locks(left) == []


def test_eviction_of_volatile_keys_cannot_take_a_held_lock(
    locks: Open, either: EmbeddedServer
) -> None:
    """Expiry is data, not a key's ttl, so nothing of ours is volatile."""
    held = [locks(either.url).acquire(f"held{n}", ttl=30) for n in range(20)]
    either.ask("SET", "cache", "x" * 1000, "EX", 100)
    either.ask("CONFIG", "SET", "maxmemory-policy", "volatile-random")
    either.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(ServerOutOfMemory):
        locks(either.url).acquire("new", ttl=TTL)
    assert either.ask("EXISTS", "cache") == 0, "nothing was evicted: the test proves nothing"
    for lease in held:
        lease.renew()
        lease.check()


def test_readonly_replica_refuses_and_suspends_until_it_is_primary_again(
    face: Open, server: EmbeddedServer, news: News
) -> None:
    locks = face(server.url)
    lease = locks.acquire("role", ttl=3)
    with EmbeddedServer() as master:
        # Nobody listens there any more: a replica that keeps its data, as before the first sync.
        port = master.port
    server.ask("REPLICAOF", "127.0.0.1", port)
    with at_most(0.5), pytest.raises(ServerReadOnly):
        locks.acquire("new", ttl=3)
    news.wait(lease, "suspended", 3)
    lease.check()
    server.ask("REPLICAOF", "NO", "ONE")
    wait_until(lambda: lease.state is State.HELD, 15)
    assert "lost" not in news.of(lease)


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:secret@"])
def test_wrong_login_is_refused_at_once(face: Open, server: EmbeddedServer, login: str) -> None:
    """A password is not a passing fault: no retry, no patience."""
    server.ask("CONFIG", "SET", "requirepass", "secret")
    url = f"redis://{login}{server.host}:{server.port}/0"
    with at_most(0.3), pytest.raises(ServerRefused) as refused:
        face(url).acquire("mine", ttl=30)
    assert "secret" not in str(refused.value)


def test_password_that_nobody_asked_for_is_refused(face: Open, valkey: EmbeddedServer) -> None:
    url = f"redis://:surplus@{valkey.host}:{valkey.port}/0"
    with at_most(0.3), pytest.raises(ServerRefused):
        face(url).acquire("mine", ttl=30)


@pytest.mark.parametrize("rule", ["-evalsha -eval", "~other:*", "-zadd", "-@all"])
def test_missing_permission_is_refused_at_once(
    face: Open, either: EmbeddedServer, rule: str
) -> None:
    """Without the commands, or without the keys; and nothing is half-taken."""
    everything = "~*" if "~" not in rule else "resetkeys"
    either.ask("ACL", "SETUSER", "clerk", "on", ">pw", everything, "&*", "+@all", *rule.split())
    with at_most(0.3), pytest.raises(ServerRefused):
        face(f"redis://clerk:pw@{either.host}:{either.port}/0").acquire("mine", ttl=30)
    assert either.ask("KEYS", "*h:*") == []


def test_permission_taken_away_suspends_until_it_is_back(
    locks: Open, server: EmbeddedServer, news: News
) -> None:
    server.ask("ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all")
    lease = locks(f"redis://clerk:pw@{server.host}:{server.port}/0").acquire("mine", ttl=3)
    server.ask("ACL", "SETUSER", "clerk", "-evalsha", "-eval")
    news.wait(lease, "suspended", 3)
    server.ask("ACL", "SETUSER", "clerk", "+@all")
    wait_until(lambda: lease.state is State.HELD, 15)


def test_server_that_is_down_is_unavailable_quickly(face: Open, server: EmbeddedServer) -> None:
    locks = face(server.url, guard_after_loss=False)
    held = locks.acquire("held", ttl=30)
    server.kill()
    for verb in (
        lambda: locks.acquire("mine", ttl=30),
        lambda: locks.acquire("mine", ttl=30, wait=5),
        lambda: locks.renew(held),
        lambda: locks.info("mine"),
    ):
        with at_most(0.5), pytest.raises(LockUnavailable):
            verb()
    with at_most(0.5), pytest.raises(LockUnavailable):
        locks.release(held)
    server.restart()
    wait_until(lambda: locks.acquire("mine", ttl=30), 15)


def test_paused_server_leaves_nothing_half_taken(face: Open, server: EmbeddedServer) -> None:
    """It did what it was asked once it woke, long after we had given up: all is given back."""
    locks = face(server.url)
    locks.release(locks.acquire("warm", ttl=30))
    server.pause()
    with at_most(1.0), pytest.raises(LockUnavailable):
        locks.acquire("mine", ttl=3)
    server.resume()

    def only_the_counter() -> bool:
        left: Any = server.ask("KEYS", "*")
        return keys_of_locks(left) == []

    wait_until(only_the_counter, 2, what="the late grant to be given back")


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "2.8.0"])
def test_old_server_is_named_as_such(face: Open, version: str) -> None:
    with FakeServer(version) as old:
        with at_most(0.5), pytest.raises(ServerTooOld, match=r"6\.2"):
            face(old.url).acquire("mine", ttl=30)
        assert not any(b"EVAL" in data for data in old.heard), "scripts were sent to it"


def test_server_that_speaks_something_else_is_unavailable(face: Open) -> None:
    with FakeServer("", greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as other:
        with at_most(1.0), pytest.raises(LockUnavailable):
            face(other.url).acquire("mine", ttl=3)


def test_force_release_is_told_to_the_holder(
    locks: Open, server: EmbeddedServer, news: News
) -> None:
    describe_entry = Callback()
    mine, operator = locks(server.url), locks(server.url)
    lease = mine.acquire("taken", ttl=TTL, on_lost=describe_entry)
    taken = force_release(operator.locks, "taken")
    assert [holder.token for holder in taken] == [lease.token]
    other = operator.acquire("taken", ttl=TTL)
    assert other.fence > lease.fence
    expect_told(lease, describe_entry, news, within=TTL / 3 + TTL / 3)
    assert mine.release(lease) is False
    other.check()


def test_foreign_data_is_lost_and_left_alone(
    face: Open, server: EmbeddedServer, news: News
) -> None:
    """Somebody's SET over our key ends that lease, and that one only."""
    describe_entry = Callback()
    locks = face(server.url)
    bystanders = [locks.acquire(f"bystander{n}", ttl=TTL) for n in range(3)]
    lease = locks.acquire("overwritten", ttl=TTL, on_lost=describe_entry)
    key = "celery-locks:{0}:h:overwritten"
    server.ask("SET", key, "precious")
    expect_told(lease, describe_entry, news, within=TTL / 3 + TTL / 3)
    with pytest.raises(ForeignData):
        locks.acquire("overwritten", ttl=TTL)
    with pytest.raises(ForeignData):
        locks.release(lease)
    with pytest.raises(ForeignData):
        locks.info("overwritten")
    wait_until(lambda: all(one.renewals >= 3 for one in bystanders), 3 * TTL)
    for one in bystanders:
        one.check()
        assert "suspended" not in news.of(one)
    assert server.ask("GET", key) == "precious"


@pytest.mark.parametrize("key", ["records", "index", "fence"])
def test_foreign_data_under_a_shared_key_takes_nothing(
    face: Open, server: EmbeddedServer, key: str
) -> None:
    server.ask("RPUSH", "celery-locks:{0}:" + key, "precious")
    with pytest.raises(LockUnavailable):
        face(server.url).acquire("mine", ttl=TTL)
    assert server.ask("LRANGE", "celery-locks:{0}:" + key, 0, -1) == ["precious"]
    assert server.ask("KEYS", "*h:*") == []


def test_busy_script_of_others_is_borne(
    locks: Open, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A slow script of somebody else holds the whole server up: suspended at most, not lost."""
    lease = locks(server.url).acquire("mine", ttl=3)
    caplog.set_level(logging.CRITICAL)
    server.ask("CONFIG", "SET", "busy-reply-threshold", 100)
    slow = "local e = redis.call('TIME')[1] + 2; while redis.call('TIME')[1] + 0 < e do end"
    began = now()
    try:
        server.ask("EVAL", slow, 0)
    except OSError:
        pass  # our own patience with it is a second
    wait_until(lambda: lease.state is State.HELD and now() - began > 2.1, 15)
    lease.check()
