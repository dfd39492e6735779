"""The limits of every request: how many a minute, and how large."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.web import create_app
from celery_locks.web.middleware import RequestLimit, address_of, network_of
from celery_locks.web.params import MAX_BODY
from celery_locks.web.responses import HttpError
from tests.support.web import OURS, ask, error_of

NOWHERE = Locks.from_url("redis://127.0.0.1:1")


def test_request_limit_counts_each_address_by_the_minute() -> None:
    now = 1000.0
    limit = RequestLimit(2, lambda: now)
    for address in ("a", "a", "b"):
        limit.count(address)
    now += 59.5
    with pytest.raises(HttpError, match="More than 2 requests in a minute") as error:
        limit.count("a")
    assert (error.value.status, error.value.headers) == (429, {"Retry-After": "1"})
    limit.count("b")
    now += 0.5
    limit.count("a")


def test_request_limit_is_bounded_and_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many addresses must not fill the memory, and a new caller is still served."""
    monkeypatch.setattr("celery_locks.web.middleware._MAX_CALLERS", 3)
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
    """A proxy's header may contain anything; one machine may own a whole IPv6 /64."""
    scope = {"client": (client, 0)}
    assert (address_of(scope), network_of(scope)) == (address, network)


def test_address_may_be_missing() -> None:
    """A server on a Unix socket has no client address."""
    assert address_of({"client": None}) == address_of({}) == "an unknown address"


def test_one_ipv6_network_is_one_caller() -> None:
    app = create_app(NOWHERE, open_to_all=True, requests_per_minute=2)
    statuses = [ask(app, "GET", "/", address=f"2001:db8::{n}").status_code for n in range(1, 5)]
    assert statuses == [200, 200, 429, 429]
    assert ask(app, "GET", "/", address="2001:db8:0:1::1").status_code == 200


def test_too_many_requests_get_a_retry_time() -> None:
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
    """A chunked body does not announce its size."""
    app = create_app(NOWHERE, open_to_all=True)
    headers = {**OURS, "Content-Type": "application/json"}
    size = MAX_BODY + 1024
    content: Any = _chunks(size) if chunked else b" " * size
    answer = ask(app, "POST", "/api/v1/locks/sweep", headers=headers, content=content)
    assert answer.status_code == 413
    assert error_of(answer) == "The body is larger than 64 kB."
