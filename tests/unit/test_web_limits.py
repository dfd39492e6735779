"""How often, how much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.web import create_app
from celery_locks.web.limits import MOST_BYTES, RequestLimit, in_thread
from celery_locks.web.replies import Refusal
from tests.support.web import OURS, ask, error_of

NOWHERE = Locks.from_url("redis://127.0.0.1:1")


def test_request_limit_counts_each_address_by_the_minute() -> None:
    now = 1000.0
    limit = RequestLimit(2, lambda: now)
    for address in ("a", "a", "b"):
        limit.count(address)
    now += 59.5
    with pytest.raises(Refusal, match="More than 2 requests in a minute") as refusal:
        limit.count("a")
    assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "1"})
    limit.count("b")
    now += 0.5
    limit.count("a")


def test_request_limit_remembers_no_more_than_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody fills our memory by coming from everywhere."""
    monkeypatch.setattr("celery_locks.web.limits._MOST_ADDRESSES", 3)
    limit = RequestLimit(2)
    for address in ("a", "b", "c", "a"):
        limit.count(address)
    with pytest.raises(Refusal):
        limit.count("d")


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

    busy = [asyncio.create_task(in_thread("POST", waits)) for _ in range(20)]
    assert await asyncio.wait_for(in_thread("GET", lambda: "looked"), 30) == "looked"
    assert not any(task.done() for task in busy)
    gate.set()
    await asyncio.gather(*busy)
