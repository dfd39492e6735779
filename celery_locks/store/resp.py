"""The Redis protocol (RESP2) as bytes: packing commands, parsing replies; no I/O.

We speak it ourselves on connections that redis-py opens (see ``wire.py``): every command we send
is a script call with a fixed head, so packing is one join, and one deadline can bound a whole
call however the bytes drip in. Against ``client.execute_command`` this saves about a quarter of
an acquire and release (``make bench``). Replies are bytes whatever ``decode_responses`` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_locks.errors import LockUsageError

Arg = str | int


class Incomplete(Exception):
    """More bytes are needed."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The server said no; ``code`` is its first word."""

    text: str

    @property
    def code(self) -> str:
        return self.text.split(" ", 1)[0]


Reply = None | int | bytes | ErrorReply | list["Reply"]


_as_bulk = "${}\r\n{}\r\n".format


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
    """One whole command."""
    return b"*%d\r\n%b" % (len(args), pack_args(args))


def parse(data: bytes, at: int = 0) -> tuple[Reply, int]:
    """The reply that begins at ``at`` and where the next one begins; ``Incomplete`` if cut off."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind == b":":
        return int(line), at
    if kind == b"$":
        return _bulk(data, int(line), at)
    if kind == b"*":
        return _array(data, int(line), at)
    if kind == b"-":
        return ErrorReply(line.decode(errors="replace")), at
    if kind == b"+":
        return line, at
    raise ValueError(f"not a reply of a Redis server: {data[:40]!r}")


def _bulk(data: bytes, size: int, at: int) -> tuple[Reply, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + 2:
        raise Incomplete
    return data[at : at + size], at + size + 2


def _array(data: bytes, size: int, at: int) -> tuple[Reply, int]:
    if size < 0:
        return None, at
    items: list[Reply] = []
    for _ in range(size):
        item, at = parse(data, at)
        items.append(item)
    return items, at
