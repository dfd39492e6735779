"""Packed commands are what redis-py would send; redis-py's errors are the server's replies."""

from typing import Any

import pytest
import redis
import redis.exceptions as redis_errors
from hypothesis import given
from hypothesis import strategies as st

from celery_locks.errors import LockUsageError
from celery_locks.store.connect_errors import ErrorReply, error_reply
from celery_locks.store.scripts import pack, pack_args


def test_error_reply_has_a_code() -> None:
    assert ErrorReply("MOVED 1 h:1").code == "MOVED"
    assert ErrorReply("NOSCRIPT").code == "NOSCRIPT"


def test_pack_is_one_command() -> None:
    assert (
        pack("SET", "é", 5, "\0") == b"*4\r\n$3\r\nSET\r\n$2\r\n\xc3\xa9\r\n$1\r\n5\r\n$1\r\n\0\r\n"
    )
    assert pack_args(()) == b""


@given(st.lists(st.one_of(st.text(), st.integers()), min_size=1))
def test_pack_is_what_redis_py_sends(args: list[Any]) -> None:
    # redis-py splits the first word of a command ("CLIENT LIST"): ours have none.
    assert pack("SET", *args) == b"".join(redis.Connection().pack_command("SET", *args))


def test_text_without_utf8_is_refused_before_it_is_sent() -> None:
    with pytest.raises(LockUsageError, match="no UTF-8 form"):
        pack("SET", "\udc80")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (redis_errors.NoScriptError("No matching script."), "NOSCRIPT No matching script."),
        (redis_errors.OutOfMemoryError("command not allowed"), "OOM command not allowed"),
        (redis_errors.ReadOnlyError("You can't write"), "READONLY You can't write"),
        (redis_errors.BusyLoadingError("Redis is loading"), "LOADING Redis is loading"),
        (redis_errors.NoPermissionError("User x"), "NOPERM User x"),
        (redis_errors.MovedError("1 h:1"), "MOVED 1 h:1"),
        (redis_errors.AskError("1 h:1"), "ASK 1 h:1"),
        (redis_errors.MasterDownError("Link with MASTER"), "MASTERDOWN Link with MASTER"),
        (redis_errors.AuthenticationError("Authentication required."), "NOAUTH Authentication r"),
        (redis_errors.AuthenticationError("invalid username-password"), "WRONGPASS invalid user"),
        (redis_errors.ResponseError("WRONGTYPE Operation"), "WRONGTYPE Operation"),
        (redis_errors.ResponseError("unknown command"), "unknown command"),
    ],
)
def test_code_that_redis_py_removed_is_back(error: Exception, text: str) -> None:
    """The router decides by the code whether another try can help."""
    reply = error_reply(error)
    assert reply
    assert reply.text.startswith(text)


@pytest.mark.parametrize(
    "error",
    [
        redis_errors.ConnectionError("Connection closed by server."),
        redis_errors.TimeoutError("Timeout reading"),
        redis_errors.InvalidResponse("Protocol Error"),
    ],
)
def test_failure_is_no_reply(error: Exception) -> None:
    assert error_reply(error) is None
