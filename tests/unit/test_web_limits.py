"""How often, how much."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import httpx
import pytest

from celery_locks import Locks
from celery_locks.web import create_app
from celery_locks.web.addresses import address_of, network_of
from celery_locks.web.limits import MOST_BYTES, RequestLimit, in_slow_thread, in_thread
from celery_locks.web.responses import HttpError
from tests.support.web import OURS, ask, error_of

NOWHERE = Locks.from_url("redis://127.0.0.1:1")


def test_request_limit_counts_each_address_by_the_minute() -> None:
    now = 1000.0
    limit = RequestLimit(2, lambda: now)
    for address in ("a", "a", "b"):
        limit.count(address)
    now += 59.5
    with pytest.raises(HttpError, match="More than 2 requests in a minute") as refusal:
        limit.count("a")
    assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "1"})
    limit.count("b")
    now += 0.5
    limit.count("a")


def test_request_limit_is_bounded_and_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes from everywhere fills no memory, and an honest newcomer is served all the same."""
    monkeypatch.setattr("celery_locks.web.limits._MOST_COUNTED", 3)
    limit = RequestLimit(2)
    for number in range(100):
        limit.count(f"network-{number}")
        assert len(limit._counts) <= 3
    limit.count("honest")
    limit.count("honest")
    with pytest.raises(HttpError, match="More than 2 requests in a minute"):
        limit.count("honest")


@pytest.mark.parametrize(
    ("client", "address", "network"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:2", "2001:db8::ffff:2", "2001:db8::/64"),
        ("fe80::1%" + "x" * 60_000, "fe80::1", "fe80::/64"),
        ("203.0.113.9 (VPN of the CTO)", "an unknown address", "an unknown address"),
        ("x" * 60_000, "an unknown address", "an unknown address"),
        ("", "an unknown address", "an unknown address"),
    ],
)
def test_address_is_parsed(client: str, address: str, network: str) -> None:
    """Where a header says it, it may say anything; one machine may own a whole IPv6 /64."""
    scope = {"client": (client, 0)}
    assert (address_of(scope), network_of(scope)) == (address, network)


def test_address_may_be_missing() -> None:
    """A server on a Unix socket knows none."""
    assert address_of({"client": None}) == address_of({}) == "an unknown address"


def test_one_ipv6_network_is_one_caller() -> None:
    app = create_app(NOWHERE, open_to_all=True, requests_per_minute=2)
    statuses = [ask(app, "GET", "/", address=f"2001:db8::{n}").status_code for n in range(1, 5)]
    assert statuses == [200, 200, 429, 429]
    assert ask(app, "GET", "/", address="2001:db8:0:1::1").status_code == 200


def test_too_many_requests_are_told_when_to_come_again() -> None:
    app = create_app(NOWHERE, open_to_all=True, requests_per_minute=2)
    assert [ask(app, "GET", "/").status_code for _ in range(2)] == [200, 200]
    answer = ask(app, "GET", "/")
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert "More than 2 requests" in error_of(answer)
    assert ask(app, "GET", "/", address="10.0.0.8").status_code == 200


async def _chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 1024):
        yield b" " * 1024


@pytest.mark.parametrize("chunked", [False, True])
def test_large_body_is_refused(chunked: bool) -> None:
    """Also one that does not say how large it is."""
    app = create_app(NOWHERE, open_to_all=True)
    headers = {**OURS, "Content-Type": "application/json"}
    size = MOST_BYTES + 1024
    content: Any = _chunks(size) if chunked else b" " * size
    answer = ask(app, "POST", "/api/v1/locks/sweep", headers=headers, content=content)
    assert answer.status_code == 413
    assert error_of(answer) == "The body is larger than 64 kB."


async def test_changes_that_wait_keep_nobody_from_looking() -> None:
    """A release with a grace waits for a minute; so many of them have threads of their own."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)

    busy = [asyncio.create_task(in_thread("change", waits)) for _ in range(20)]
    assert await asyncio.wait_for(in_thread("quick", lambda: "looked"), 30) == "looked"
    assert not any(task.done() for task in busy)
    gate.set()
    await asyncio.gather(*busy)


async def test_slow_questions_of_one_caller_keep_no_other_waiting() -> None:
    """One read key that asks 64 times at once must not delay everybody else's answers."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)

    busy = [asyncio.create_task(in_slow_thread("greedy", waits)) for _ in range(64)]
    await asyncio.sleep(0)
    for asked in (
        in_slow_thread("other", lambda: "describe_entry"),
        in_thread("quick", lambda: "describe_entry"),
    ):
        assert await asyncio.wait_for(asked, 30) == "describe_entry"
    assert not any(task.done() for task in busy)
    gate.set()
    await asyncio.gather(*busy)


def test_quick_questions_are_answered_while_slow_ones_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page's list and login stay fast while somebody asks `stale` 64 times at once."""
    locks, gate = Locks(fakeredis.FakeRedis()), threading.Event()
    monkeypatch.setattr("celery_locks.web.snapshot.server_time", lambda locks: 1.0)
    monkeypatch.setattr("celery_locks.web.handlers.server_time", lambda locks: 1.0)
    monkeypatch.setattr("celery_locks.admin.stale", lambda *_, **__: gate.wait(30))
    app = create_app(locks, read_keys=["key"])

    async def asked() -> None:
        transport = httpx.ASGITransport(app, client=("10.0.0.7", 4242))
        headers = {"X-API-Key": "key"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as client:
            slow = [asyncio.create_task(client.get("/api/v1/locks/stale")) for _ in range(64)]
            for path in ("me", "locks"):
                answer = await asyncio.wait_for(client.get(f"/api/v1/{path}"), 20)
                assert answer.status_code == 200, answer.text
            assert not any(one.done() for one in slow)
            gate.set()
            await asyncio.gather(*slow)

    asyncio.run(asked())
