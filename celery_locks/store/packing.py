"""Packed commands and plain replies, as the store exchanges them with a server.

Every command that we send is a script call with a fixed head, so we pack it with one join; redis-py
sends the bytes as they are (``send_packed_command``). redis-py reads the replies. An error that the
server replies with is a value here, :class:`ErrorReply`, because the router decides what it means.
"""

from __future__ import annotations

from dataclasses import dataclass

import redis.exceptions as redis_errors

from celery_locks.errors import LockUsageError

Arg = str | int


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error that the server replied with; ``code`` is its first word."""

    text: str

    @property
    def code(self) -> str:
        return self.text.split(" ", 1)[0]


Reply = None | int | bytes | ErrorReply | list["Reply"]

_as_bulk = "${}\r\n{}\r\n".format

# redis-py removes the code from the text of these errors and makes it a class.
_CODES = {
    redis_errors.NoScriptError: "NOSCRIPT",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.AskError: "ASK",
    redis_errors.MovedError: "MOVED",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.ClusterCrossSlotError: "CROSSSLOT",
}


def pack_args(args: tuple[Arg, ...]) -> bytes:
    texts = [*map(str, args)]
    packed = "".join(map(_as_bulk, map(len, texts), texts))
    if packed.isascii():
        return packed.encode()
    # Lengths are in bytes, and now a character may be several of them.
    try:
        coded = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise LockUsageError(
            f"the text {error.object!r} has no UTF-8 form: {error.reason}; nothing was sent"
        ) from None
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in coded])


def pack(*args: Arg) -> bytes:
    """Pack one whole command."""
    return b"*%d\r\n%b" % (len(args), pack_args(args))


def error_reply(error: Exception) -> ErrorReply | None:
    """Return the server's error reply that redis-py raised as ``error``; None if it was no reply.

    Two of them are no ResponseError to redis-py, and it has closed the connection after them.
    """
    text = str(error)
    if isinstance(error, redis_errors.AuthenticationError):
        return ErrorReply(f"{'NOAUTH' if 'required' in text else 'WRONGPASS'} {text}")
    if not isinstance(error, redis_errors.ResponseError | redis_errors.BusyLoadingError):
        return None
    code = _CODES.get(type(error), "")
    return ErrorReply(text if text.startswith(code) else f"{code} {text}")
