"""A few words of the Redis protocol over a plain socket.

Enough to ask a server we started whether it is up and to wire a cluster together, so that the
servers need no client library. Not a client: one connection per question, no pooling, no retry.
"""

import socket
from collections.abc import Callable
from typing import BinaryIO, TypeAlias

Reply: TypeAlias = "str | int | list[Reply] | None"


class ServerError(Exception):
    """The server answered with an error; the text is the server's own."""


def ask(host: str, port: int, *words: str | int, patience: float = 1.0) -> Reply:
    """Send one command and return its reply.

    Raises OSError when nobody answers within `patience`, ServerError when the answer is an error.
    """
    with socket.create_connection((host, port), timeout=patience) as connection:
        connection.sendall(_encode(words))
        with connection.makefile("rb") as stream:
            return _read(stream)


def _encode(words: tuple[str | int, ...]) -> bytes:
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _read(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection before it answered")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise ServerError(rest)
    return _READERS[kind](stream, rest)


def _bulk(stream: BinaryIO, rest: str) -> Reply:
    return None if rest == "-1" else stream.read(int(rest) + 2)[:-2].decode()


def _array(stream: BinaryIO, rest: str) -> Reply:
    return None if rest == "-1" else [_read(stream) for _ in range(int(rest))]


_READERS: dict[bytes, Callable[[BinaryIO, str], Reply]] = {
    b"+": lambda _stream, rest: rest,
    b":": lambda _stream, rest: int(rest),
    b"$": _bulk,
    b"*": _array,
}
