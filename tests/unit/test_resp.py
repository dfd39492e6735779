"""Bytes in any pieces are the same reply."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_locks.store.resp import ErrorReply, Incomplete, Reply, pack, pack_args, parse

REPLIES: list[tuple[bytes, Reply]] = [
    (b"+OK\r\n", b"OK"),
    (b":0\r\n", 0),
    (b":-7\r\n", -7),
    (b":1794795389937199\r\n", 1794795389937199),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"$7\r\na\r\nb\0c\xff\r\n", b"a\r\nb\0c\xff"),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n:1\r\n$1\r\nx\r\n*2\r\n$-1\r\n+y\r\n", [1, b"x", [None, b"y"]]),
    (b"-NOSCRIPT No matching script.\r\n", ErrorReply("NOSCRIPT No matching script.")),
    (b"*2\r\n-ERR x\r\n:1\r\n", [ErrorReply("ERR x"), 1]),
    (b"-ERR \xff\r\n", ErrorReply("ERR �")),
]


@pytest.mark.parametrize(("data", "reply"), REPLIES)
def test_parse_a_whole_reply(data: bytes, reply: Reply) -> None:
    assert parse(data) == (reply, len(data))
    assert parse(b"junk" + data + b"+next\r\n", 4) == (reply, 4 + len(data))


@pytest.mark.parametrize(("data", "reply"), REPLIES)
def test_parse_of_a_reply_cut_anywhere_is_incomplete(data: bytes, reply: Reply) -> None:
    for cut in range(len(data)):
        with pytest.raises(Incomplete):
            parse(data[:cut])


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\r\n", b":x\r\n", b"$y\r\n"]
)
def test_parse_refuses_what_is_no_redis(data: bytes) -> None:
    """A port that speaks TLS or HTTP must not look like a lock."""
    with pytest.raises(ValueError):
        parse(data)


def test_error_reply_has_a_code() -> None:
    assert ErrorReply("MOVED 1 h:1").code == "MOVED"
    assert ErrorReply("NOSCRIPT").code == "NOSCRIPT"


def test_pack_is_one_command() -> None:
    assert (
        pack("SET", "é", 5, "\0") == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa9\r\n$1\r\n5\r\n$1\r\n\0\r\n"
    )
    assert pack_args(()) == b""


@given(st.lists(st.one_of(st.text(), st.integers()), min_size=1))
def test_pack_is_read_back_by_parse(args: list[Any]) -> None:
    expected = [str(arg).encode() for arg in args]
    assert parse(pack(*args)) == (expected, len(pack(*args)))
