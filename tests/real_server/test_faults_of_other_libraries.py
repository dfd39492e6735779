"""Bugs that other lock libraries had, each held off by a test of its own."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_locks import LeaseLost, Locks, State
from celery_locks.clock import now
from celery_locks.core.pending_releases import PendingRelease
from celery_locks.core.renewer import renewer
from celery_locks.store.commands.replies import Renewal
from tests.servers.embedded import EmbeddedServer
from tests.support.news import News
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

Open = Callable[..., Any]


@pytest.fixture
def clean(valkey: EmbeddedServer) -> EmbeddedServer:
    valkey.flush()
    return valkey


def key_of(name: str) -> str:
    return "celery-locks:{0}:h:" + name


@pytest.mark.parametrize("error", [RuntimeError("of a bug"), MemoryError(), SystemExit(1)])
def test_renewer_survives_an_error(
    locks: Open,
    clean: EmbeddedServer,
    news: News,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """A renewer that dies of one error loses every lock of the process and tells nobody."""
    face = locks(clean.url)
    lease = face.acquire("survives", ttl=1.5)
    store = face.locks._store.store_for_thread()
    perform, failures = store.perform, [error, error]

    def failing(effect: Any) -> Any:
        if failures:
            raise failures.pop()
        return perform(effect)

    monkeypatch.setattr(store, "perform", failing)
    wait_until(lambda: not failures and lease.renewals >= 2, 15)
    lease.check()
    assert "lost" not in news.of(lease)


def test_renewer_survives_a_callback_that_raises(
    locks: Open, clean: EmbeddedServer, news: News
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("in on_lost")

    face = locks(clean.url)
    other = face.acquire("other", ttl=1)
    lease = face.acquire("gone", ttl=1, on_lost=explode)
    clean.ask("DEL", key_of("gone"))
    news.wait(lease, "lost", 2)
    wait_until(lambda: other.renewals >= 4, 15)


def test_release_that_fails_oddly_does_not_stop_the_renewer(
    locks: Open, clean: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is owed is tried again, and never at the price of what is held."""
    face, odd = locks(clean.url), locks(clean.url)
    asked: list[float] = []

    def failing(_: Any) -> Any:
        asked.append(now())
        raise RuntimeError("of a bug")

    store = odd.locks._store.store_for_thread()
    monkeypatch.setattr(store, "perform", failing)
    renewer.release_later(PendingRelease("x", "t", store, odd.locks.commands, now() + 2))
    lease = face.acquire("held", ttl=1)
    wait_until(lambda: lease.renewals >= 4, 15)
    assert len(asked) < 12, "the keeper spins"


def test_forgotten_lease_is_renewed(locks: Open, clean: EmbeddedServer) -> None:
    """Garbage collection of the lease must not end what somebody relies on."""
    face = locks(clean.url)
    lease = face.acquire("forgotten", ttl=1)
    token, ghost = lease.token, weakref.ref(lease)
    del lease
    gc.collect()
    ends = time.monotonic() + 2.2
    wait_until(lambda: time.monotonic() > ends, 3)
    assert [holder.token for holder in face.info("forgotten").holders] == [token]
    kept = ghost()
    assert kept is not None
    assert face.release(kept) is True
    del kept
    gc.collect()
    assert ghost() is None, "a released lease is held on to"


def test_forgotten_locks_object_still_renews(clean: EmbeddedServer) -> None:
    lease = Locks.from_url(clean.url).acquire("orphaned", ttl=1)
    assert lease is not None
    gc.collect()
    wait_until(lambda: lease.renewals >= 4, 15)
    assert lease.release() is True


def test_lease_is_renewed_and_released_by_any_thread(locks: Open, clean: EmbeddedServer) -> None:
    """A token kept per thread would be missing in the renewer's and in the releaser's."""
    face = locks(clean.url)
    made: list[Any] = []
    maker = threading.Thread(target=lambda: made.append(face.acquire("handed", ttl=1)))
    maker.start()
    maker.join()
    wait_until(lambda: made[0].renewals >= 3, 15)
    made[0].renew()
    assert made[0].release() is True


@pytest.mark.parametrize("decode", [True, False])
def test_decode_responses_changes_nothing(clean: EmbeddedServer, decode: bool) -> None:
    client = redis.Redis(host=clean.host, port=clean.port, decode_responses=decode)
    locks = Locks(client)
    lease = locks.acquire("decoded", ttl=1)
    assert lease is not None
    assert locks.acquire("decoded") is None
    wait_until(lambda: lease.renewals >= 1, 15)
    assert locks.holders("decoded")[0].token == lease.token
    assert lease.release() is True
    locks.close()
    client.close()


@pytest.mark.parametrize("ttl", [1.25, 2.999, 10.0005])
def test_fraction_of_the_ttl_is_kept(face: Open, clean: EmbeddedServer, ttl: float) -> None:
    locks = face(clean.url)
    sent = time.time()
    lease = locks.acquire("float", ttl=ttl)
    expiry = float(str(clean.ask("ZSCORE", key_of("float"), lease.token))) / 1000
    assert sent + ttl - 0.002 <= expiry <= time.time() + ttl + 0.002
    # The own deadline passes first, and by little.
    assert lease.remaining < ttl
    assert lease.remaining > ttl * 0.99 - 0.1 - (time.time() - sent)


def test_renewals_do_not_add_up(face: Open, clean: EmbeddedServer) -> None:
    locks = face(clean.url)
    lease = locks.acquire("extended", ttl=5)
    for _ in range(5):
        locks.renew(lease, 5)
    info = locks.info("extended")
    assert info.remaining <= 5
    assert lease.remaining <= 5


def test_shorter_ttl_shortens_the_own_deadline_too(
    locks: Open, clean: EmbeddedServer, proxy: Proxy
) -> None:
    """From 30 s to 1 s, then silence: the holder must not believe in the 30 s."""
    near, far = locks(proxy.url), locks(clean.url)
    lease = near.acquire("shorter", ttl=30)
    lease.renew(1)
    proxy.black_hole()
    wait_until(lambda: far.acquire("shorter"), 15)
    assert lease.state is State.LOST


def test_shorter_ttl_whose_answer_is_lost_shortens_too(
    locks: Open, clean: EmbeddedServer, proxy: Proxy
) -> None:
    near, far = locks(proxy.url), locks(clean.url)
    lease = near.acquire("shorter", ttl=30)
    proxy.drop_replies()
    with pytest.raises(Exception, match="no answer"):
        lease.renew(1)
    proxy.black_hole()
    wait_until(lambda: far.acquire("shorter"), 15)
    assert lease.state is State.LOST


def test_late_renewal_after_release_makes_nothing_anew(locks: Open, clean: EmbeddedServer) -> None:
    face = locks(clean.url)
    lease = face.acquire("released", ttl=2)
    assert lease.release() is True
    late = face.locks.commands.renew([Renewal("released", lease.token, 2)], 1.0)
    assert face.locks.perform(late).lost == {lease.token}
    assert clean.ask("EXISTS", key_of("released")) == 0
    with pytest.raises(LeaseLost):
        lease.renew()


def test_late_renewal_does_not_touch_the_next_holder(locks: Open, clean: EmbeddedServer) -> None:
    face = locks(clean.url)
    old = face.acquire("next", ttl=2)
    old.release()
    new = face.acquire("next", ttl=30)
    before = clean.ask("ZSCORE", key_of("next"), new.token)
    face.locks.perform(face.locks.commands.renew([Renewal("next", old.token, 2)], 1.0))
    assert clean.ask("ZRANGE", key_of("next"), 0, -1) == [new.token]
    assert clean.ask("ZSCORE", key_of("next"), new.token) == before


def test_lease_that_was_lost_is_not_renewed_for_ever(
    locks: Open, clean: EmbeddedServer, proxy: Proxy
) -> None:
    """Who was told LeaseLost need not release; the lock must come free by itself."""
    lease = locks(proxy.url).acquire("abandoned", ttl=1)
    proxy.black_hole()
    with pytest.raises(LeaseLost):
        while True:
            lease.check()
            time.sleep(0.001)
    proxy.pass_through()
    near = locks(clean.url)
    wait_until(lambda: near.acquire("abandoned"), 15, what="the lock to come free by itself")
    wait_until(lambda: lease.token not in renewer.tokens, 15, what="the keeper to forget it")
