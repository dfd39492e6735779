"""What a failure to connect or a refusal means: it may pass, or a person has to correct something.

The texts of servers, redis-py and OpenSSL are read here and nowhere else.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import redis.exceptions as redis_errors

from celery_locks.errors import ServerRefused, ServerTooOld
from celery_locks.store.connection_config import Address, ServerConfig, describe_address

MINIMUM = (6, 2)

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

# A command with more than ten arguments is refused in words of its own before any login; a command
# inside a script in other words on each server.
_REFUSALS = {
    r"NOAUTH|unauthenticated (multi)?bulk": (
        "wants a password; write it into the URL of the lock server"
    ),
    r"WRONGPASS|invalid (password|username)|called without any": (
        "refuses our user or password; correct them in the URL of the lock server"
    ),
    r"NOPERM|ACL failure in script|The user executing the script can't": (
        "does not permit our user to do this; the permissions are in docs/operations/security.md"
    ),
    "ALERT_CERTIFICATE_REQUIRED": "wants a client certificate; set ssl_certfile and ssl_keyfile",
    "CERTIFICATE_VERIFY_FAILED": (
        "has a certificate that is not trusted here; set ssl_ca_certs to its authority's "
        "certificate and write the host name that it was made for"
    ),
}
_TLS_FILES = "is not asked: a file of ssl_ca_certs, ssl_certfile or ssl_keyfile cannot be used"
_TLS_FAILS = "and we cannot agree on TLS; is it a TLS port, and are the ssl_… options right?"
_PASSING_TLS_ERRORS = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error that the server replied with; ``code`` is its first word.

    It is a value and not raised, because the router decides what it means.
    """

    text: str

    @property
    def code(self) -> str:
        return self.text.split(" ", 1)[0]


Reply = None | int | bytes | ErrorReply | list["Reply"]


class ConnectionFailed(Exception):
    """No reply came from this node: it may or may not have run the command."""


def reason(error: Exception) -> str:
    return str(error) or "timed out"  # asyncio's TimeoutError has no text


def refused_because(text: str) -> str:
    """Say what a server that refuses us wants; "" if the text is no refusal."""
    return next((sentence for words, sentence in _REFUSALS.items() if re.search(words, text)), "")


def connect_error(server: ServerConfig, address: Address, error: Exception) -> Exception:
    """Make the error for a failure to connect: final if a person has to act."""
    reply = error_reply(error)
    # redis-py before 6 leaves OpenSSL's words out of its own text.
    text = reply.text if reply else " ".join(map(str, _causes(error)))
    why = refused_because(text) or _tls_trouble(server, error)
    if why:
        return ServerRefused(f"the {server} {why}: {error}")
    hint = _hint(server, address, error)
    return ConnectionFailed(f"cannot connect to {describe_address(address)}: {reason(error)}{hint}")


def _tls_trouble(server: ServerConfig, error: BaseException) -> str:
    if "tls" not in (server.transport, server.sentinel_transport):
        return ""
    for cause in _causes(error):
        if isinstance(cause, FileNotFoundError | PermissionError | IsADirectoryError):
            return _TLS_FILES
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _PASSING_TLS_ERRORS):
            own_files = ("PEM", "KEY_VALUES_MISMATCH", "X509", "NO_CERTIFICATE")
            return _TLS_FILES if any(part in str(cause) for part in own_files) else _TLS_FAILS
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _hint(server: ServerConfig, address: Address, error: BaseException) -> str:
    """Suggest a cure where one side speaks TLS and the other does not, or wants a certificate."""
    causes = list(_causes(error))
    is_tls = server.transport_for(address) == "tls"
    if is_tls and any("handshake operation timed out" in str(cause) for cause in causes):
        return " (if it does not speak TLS there, write redis:// instead of rediss://)"
    # What the server says of a missing certificate may be lost when it closes the connection.
    closed = (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)
    if is_tls and any(isinstance(cause, closed) for cause in causes):
        return " (if it wants a client certificate, set ssl_certfile and ssl_keyfile)"
    if not is_tls and any(isinstance(cause, ConnectionResetError) for cause in causes):
        return " (if it speaks TLS there, write rediss:// instead of redis://)"
    return ""


def check_version(address: Address, info: Reply) -> None:
    """Refuse a server that lacks what the scripts use; one that hides its version is believed."""
    found = re.search(rb"redis_version:(\d+)\.(\d+)", info) if isinstance(info, bytes) else None
    version = tuple(map(int, found.groups())) if found else MINIMUM
    if version < MINIMUM:
        raise ServerTooOld(
            f"the lock server at {describe_address(address)} is Redis {version[0]}.{version[1]}; "
            f"{MINIMUM[0]}.{MINIMUM[1]} is the oldest that works"
        )


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
