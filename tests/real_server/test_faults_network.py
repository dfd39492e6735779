"""The network between us and the server breaks: silence, lateness, lost replies, drips."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_locks import (
    Holder,
    LeaseLost,
    LockEvent,
    Locks,
    LockUnavailable,
    State,
    admin,
    subscribe,
)
from celery_locks.clock import now
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.errors import ServerOutOfMemory
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer
from tests.support.news import BUSY, Callback, News, at_most
from tests.support.proxy import Proxy
from tests.support.redis_keys import keys_of_locks
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until

Open = Callable[..., Any]
OpenBoth = Callable[..., list[Any]]

MODES: dict[str, Callable[[Proxy], None]] = {
    "black hole": Proxy.black_hole,
    "half a second late": lambda proxy: proxy.delay(0.5),
    "two seconds late": lambda proxy: proxy.delay(2.0),
    "replies lost": Proxy.drop_replies,
    "connections refused": lambda proxy: (proxy.refuse(), proxy.cut())[0],
    "connections cut": Proxy.cut,
    "a byte every 50 ms": lambda proxy: proxy.drip(0.05),
    "a byte every 200 ms": lambda proxy: proxy.drip(0.2),
}


def nothing_left(server: EmbeddedServer) -> bool:
    """Only the counter remains, which must outlive every lock."""
    left: Any = server.ask("KEYS", "*")
    return keys_of_locks(left) == []


def test_black_hole_suspends_then_loses_at_the_own_deadline(
    face: Open, valkey: EmbeddedServer, proxy: Proxy, news: News, stalled: Callable[[], float]
) -> None:
    """Silence is not loss: until the deadline it is ours, at the deadline the holder is told."""
    describe_entry = Callback()
    near, far = face(proxy.url), Locks.from_url(valkey.url)
    lease = near.acquire("hole", ttl=3, on_lost=describe_entry)
    proxy.black_hole()
    wait_until(lambda: lease.state is State.SUSPENDED, 3)
    lease.check()

    taken_at = None
    while taken_at is None:
        other = far.acquire("hole", ttl=5)
        if other is None:
            assert now() < lease.deadline + 10, "the lock never came free"
            time.sleep(0.002)
        else:
            taken_at = now()  # at the latest: on a busy machine the call itself takes a while
    assert lease.deadline <= taken_at, "another had it inside our deadline"
    assert lease.state is State.LOST
    lost_at = news.wait(lease, "lost")
    assert 0 <= lost_at - lease.deadline < BUSY + stalled()
    assert news.of(lease) == ["acquired", *["renewed"] * lease.renewals, "suspended", "lost"]
    assert [error.name for _, error in describe_entry.calls] == ["hole"]
    with pytest.raises(LeaseLost):
        lease.check()
    assert other is not None
    assert other.fence > lease.fence
    other.release()
    far.close()


def test_black_hole_that_heals_in_time_leaves_the_lease_held(
    face: Open, proxy: Proxy, news: News
) -> None:
    lease = face(proxy.url).acquire("healed", ttl=1.5)
    proxy.black_hole()
    news.wait(lease, "suspended")
    before = lease.renewals
    proxy.pass_through()
    wait_until(lambda: lease.state is State.HELD and lease.renewals > before, 15)
    lease.check()
    assert "lost" not in news.of(lease)


def test_lateness_within_the_budget_is_borne(face: Open, proxy: Proxy, news: News) -> None:
    """Replies half a second late and a ttl of 6 s: slow, and nothing is lost."""
    locks = face(proxy.url)
    lease = locks.acquire("late", ttl=6)
    proxy.delay(0.5)
    wait_until(lambda: lease.renewals >= 2, 30)
    lease.check()
    assert "lost" not in news.of(lease)
    # Not as late as that: of a release that is asked for twice, the second answer is "not yours".
    proxy.pass_through()
    assert locks.release(lease) is True


def test_grant_that_comes_too_late_is_given_back(
    face: Open, valkey: EmbeddedServer, proxy: Proxy
) -> None:
    """The server grants, we have given up: nobody may hold a lock that nobody knows of."""
    locks = face(proxy.url)
    locks.release(locks.acquire("warm", ttl=3))
    proxy.delay(2.0)
    with at_most(1.0, "acquire"), pytest.raises(LockUnavailable):
        locks.acquire("late", ttl=3)
    wait_until(lambda: nothing_left(valkey), 2.9, what="the late grant to be given back")


def test_lost_reply_gives_the_same_lease_and_no_orphan(
    face: Open, valkey: EmbeddedServer, proxy: Proxy
) -> None:
    """The server granted, its answer was lost: the same token asks again and finds its grant."""
    locks = face(proxy.url)
    locks.release(locks.acquire("warm", ttl=3))
    proxy.drop_next_reply(b"EVALSHA")
    lease = locks.acquire("lost-reply", ttl=3)
    assert proxy.dropped == 1
    assert lease is not None
    info = locks.info("lost-reply")
    assert info is not None
    assert [(h.token, h.fence) for h in info.holders] == [(lease.token, lease.fence)]
    assert int(str(valkey.ask("GET", "celery-locks:{0}:fence"))) == lease.fence
    assert locks.release(lease) is True
    assert nothing_left(valkey)


def test_lost_reply_and_then_a_full_server_leave_nothing_taken(
    face: Open, server: EmbeddedServer
) -> None:
    """The first try was granted, the second is refused for want of memory."""
    with Proxy(server.host, server.port) as proxy:
        locks = face(proxy.url)
        locks.release(locks.acquire("warm", ttl=3))
        proxy.drop_next_reply(b"EVALSHA")
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(locks.acquire, "full", ttl=600)
            wait_until(lambda: proxy.dropped, 5)
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(ServerOutOfMemory):
                asking.result(10)
        server.ask("CONFIG", "SET", "maxmemory", "0")
        wait_until(lambda: nothing_left(server), 10, what="the grant to be given back")


def test_lost_reply_to_a_release_still_frees(
    face: Open, valkey: EmbeddedServer, proxy: Proxy
) -> None:
    locks = face(proxy.url)
    lease = locks.acquire("freed", ttl=3)
    proxy.drop_next_reply(b"EVALSHA")
    locks.release(lease)
    assert nothing_left(valkey)


def test_lost_reply_to_a_forced_release_spares_the_next_in_line(
    valkey: EmbeddedServer, proxy: Proxy
) -> None:
    """The operator's question is asked again, when the next one has the lock already."""
    near, far = Locks.from_url(valkey.url), Locks.from_url(proxy.url)
    admin.force_release(far, "warm")
    first = near.acquire("hung", ttl=30)
    assert first is not None
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(near.acquire, "hung", ttl=30, wait=20)
        wait_until(lambda: (info := near.info("hung")) and info.waiters, 10)
        proxy.drop_next_reply(b"EVALSHA")
        freed = admin.force_release(far, "hung")
        second = waiter.result(20)
    assert proxy.dropped == 1
    assert [holder.token for holder in freed] == [first.token]
    assert second is not None
    assert [holder.token for holder in near.holders("hung")] == [second.token]
    second.release()
    far.close()
    near.close()


def test_lost_reply_to_a_renewal_is_repeated(face: Open, proxy: Proxy, news: News) -> None:
    lease = face(proxy.url).acquire("renewed", ttl=1.5)
    proxy.drop_next_reply(b"EVALSHA")
    wait_until(lambda: proxy.dropped and lease.renewals >= 2, 15)
    assert "lost" not in news.of(lease)


def test_unreachable_release_is_a_debt_that_is_paid(
    face: Open, valkey: EmbeddedServer, proxy: Proxy
) -> None:
    """The release failed; the lock must not stay taken until it lapses once the network is back."""
    locks = face(proxy.url)
    lease = locks.acquire("debt", ttl=30)
    proxy.black_hole()
    with pytest.raises(LockUnavailable):
        locks.release(lease)
    assert lease.state is State.RELEASED
    assert locks.release(lease) is False
    proxy.pass_through()
    wait_until(lambda: nothing_left(valkey), 15, what="the debt to be paid")


def test_question_that_arrives_after_all_is_given_back_too(
    locks: Open, valkey: EmbeddedServer, proxy: Proxy
) -> None:
    """A healed network delivers in any order: the give-back first, what it gives back later."""
    face = locks(proxy.url)
    asked: list[LockEvent] = []
    end = subscribe(asked.append)
    proxy.black_hole()
    with pytest.raises(LockUnavailable):
        face.acquire("belated", ttl=9)
    end()
    proxy.pass_through()
    wait_until(lambda: nothing_left(valkey), 15)
    direct, spec = locks(valkey.url).locks, LockSpec("belated", 9)
    # Judged by its own reply: the debt, paid again and again, may free it before another question.
    granted = direct.perform(direct.commands.acquire(spec, asked[-1].token, Holder()))
    assert isinstance(granted, int), "the question that came late was not granted at all"
    wait_until(lambda: nothing_left(valkey), 8, what="the belated grant to be given back")


def test_many_debts_to_a_silent_server_do_not_starve_a_healthy_one(
    locks: Open, valkey: EmbeddedServer, proxy: Proxy, news: News
) -> None:
    """There is one keeper: what it owes to a dead server must not cost leases on a living one."""
    near, far = locks(proxy.url), locks(valkey.url)
    proxy.black_hole()
    operations = near.locks.operations
    for number in range(60):
        renewer.release_later(
            PendingRelease(
                f"d{number}",
                f"{number:024x}",
                operations.background_store,
                near.locks.commands,
                now() + 60,
            )
        )
    lease = far.acquire("healthy", ttl=1)
    wait_until(lambda: lease.renewals >= 6 or lease.state is State.LOST, 15)
    assert lease.state is State.HELD
    assert set(news.of(lease)) == {"acquired", "renewed"}


@pytest.mark.parametrize("mode", MODES)
def test_no_call_outlasts_a_third_of_the_ttl(both: OpenBoth, proxy: Proxy, mode: str) -> None:
    """Whatever the network does to connections that are open and to those yet to be opened."""
    ttl = 1.5
    calls: list[Callable[[], Any]] = []
    for verb in ("acquire", "renew", "release"):
        for n, face in enumerate(both(proxy.url)):
            lease = face.acquire(f"{verb}{n}", ttl=ttl)
            calls.append(
                (lambda one=face: one.acquire("more", ttl=ttl))
                if verb == "acquire"
                else (lambda one=face, word=verb, held=lease: getattr(one, word)(held))
            )
    MODES[mode](proxy)
    expect_quick(calls, ttl / 3)
    proxy.pass_through()


@pytest.mark.parametrize("mode", MODES)
def test_no_first_call_outlasts_a_third_of_the_ttl(
    both: OpenBoth, guarded: EmbeddedServer, mode: str
) -> None:
    """The handshake counts too: a password, a database and a name to send before the first verb."""
    with Proxy(guarded.host, guarded.port) as proxy:
        MODES[mode](proxy)
        url = f"redis://:secret@{proxy.host}:{proxy.port}/3?client_name=us"
        faces = both(url)
        expect_quick([lambda one=face: one.acquire("first", ttl=1.5) for face in faces], 0.5)
        proxy.pass_through()


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedServer]:
    with EmbeddedServer({"requirepass": "secret"}) as server:
        yield server


def expect_quick(calls: list[Callable[[], Any]], limit: float) -> None:
    """All at once, each in a thread: none may take longer, however it ends."""
    took: list[float] = []

    def timed(call: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            call()
        except (LockUnavailable, LeaseLost):
            pass
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=timed, args=(call,)) for call in calls]
    with measure_stalls() as stalled:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(took) == len(calls)
    assert max(took) <= limit + BUSY + stalled(), f"{max(took):.3f} s is more than {limit:.3f} s"


def test_patience_is_kept_to_while_waiting(face: Open, proxy: Proxy) -> None:
    """``wait`` is a promise too: no read of the pub/sub connection may outlast it."""
    holder, waiter = face(proxy.url), face(proxy.url)
    holder.acquire("busy", ttl=30)
    for wait in (0.3, 0.3, 0.3):
        with at_most(wait, "waiting"):
            assert waiter.acquire("busy", ttl=30, wait=wait) is None


def test_waiter_outlives_a_cut_pubsub_connection(face: Open, proxy: Proxy) -> None:
    """The message that would wake it is lost with the connection; it costs latency only."""
    holder, waiter = Locks.from_url(proxy.url), face(proxy.url)
    held = holder.acquire("busy", ttl=10)
    assert held is not None

    def cut_then_release() -> None:
        wait_until(lambda: holder.info("busy").waiters, 15)  # type: ignore[union-attr]
        proxy.cut()
        held.release()

    meanwhile = threading.Thread(target=cut_then_release)
    meanwhile.start()
    with at_most(2.0, "waiting"):
        lease = waiter.acquire("busy", ttl=10, wait=5)
    meanwhile.join()
    assert lease is not None
    waiter.release(lease)
    holder.close()
