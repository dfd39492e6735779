"""Requests to the web app without a socket."""

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
    """Send one request, in its own event loop."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(address, 4242), root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


def error_of(answer: httpx.Response) -> str:
    """Return the sentence; the answer has nothing else, and no traceback."""
    [(name, sentence)] = answer.json().items()
    assert name == "error"
    assert "Traceback" not in sentence
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    return str(sentence)
