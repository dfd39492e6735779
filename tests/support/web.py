"""Asking the web surface without a socket in between."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

READ, WRITE = "read-key-of-the-tests", "write-key-of-the-tests"
MAY_READ, MAY_WRITE = {"X-API-Key": READ}, {"X-API-Key": WRITE}
OURS = {"X-Celery-Locks": "1"}


def ask(
    app: Any,
    method: str,
    path: str,
    *,
    address: str = "10.0.0.7",
    root_path: str = "",
    base_url: str = "http://localhost",
    **request: Any,
) -> httpx.Response:
    """One request, in an event loop of its own."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(address, 4242), root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:
            return await client.request(method, path, **request)

    return asyncio.run(asked())


def error_of(answer: httpx.Response) -> str:
    """The sentence; there is nothing else in it, and no traceback."""
    [(word, sentence)] = answer.json().items()
    assert word == "error"
    assert "Traceback" not in sentence
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    return str(sentence)
