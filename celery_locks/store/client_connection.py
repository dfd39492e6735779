"""A wire for clients without sockets (fakeredis): the same commands through their own method."""

from __future__ import annotations

from typing import Any

import redis.exceptions

from celery_locks.store.connect_errors import ConnectionFailed
from celery_locks.store.resp import ErrorReply, Reply, parse


class ClientConnection:
    """Blocks."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def exchange(self, data: bytes, deadline: float) -> Reply:
        try:
            reply = self._client.execute_command(*_unpacked(data))
        except redis.exceptions.RedisError as error:
            return _as_error_reply(error)
        return _as_bytes(reply)

    def close(self) -> None:
        """The client is its owner's to close."""


class AsyncClientConnection:
    """Awaited."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def exchange(self, data: bytes, deadline: float) -> Reply:
        try:
            reply = await self._client.execute_command(*_unpacked(data))
        except redis.exceptions.RedisError as error:
            return _as_error_reply(error)
        return _as_bytes(reply)

    async def close(self) -> None:
        """The client is its owner's to close."""


def _unpacked(data: bytes) -> Any:
    return parse(data)[0]


def _as_bytes(reply: Any) -> Reply:
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [_as_bytes(item) for item in reply]
    plain: Reply = reply
    return plain


def _as_error_reply(error: redis.exceptions.RedisError) -> ErrorReply:
    if isinstance(error, redis.exceptions.NoScriptError):
        return ErrorReply("NOSCRIPT")
    if isinstance(error, redis.exceptions.ConnectionError):
        raise ConnectionFailed(str(error)) from error
    return ErrorReply(str(error))
