"""What redis-py's connections lack: one deadline, and a way to take back an unanswered command.

redis-py sets a timeout for each ``recv``. A server that sends a byte now and then never exceeds
it, and holds a caller for as long as it likes: in a reply, and in the handshake of a connection.
redis-py has no option for a deadline. So a subclass of the user's connection class wraps the socket
that ``_connect()`` returns. asyncio bounds an exchange by itself.

A command whose reply we no longer wait for must not arrive later: by then the caller may have
repeated it, got the lock and released it, and the late one would take a lock that nobody holds,
until it expires. When a connection is closed, the kernel goes on sending what the other end has not
received; a connection with an unanswered command is therefore reset (``SO_LINGER`` of zero).

The private attributes of others are used here and nowhere else, and ``test_transports.py`` fails if
one of them changes:
- ``_connect`` of redis-py's blocking connections, which it declares for subclasses to implement;
- ``_writer`` and ``_reader`` of its asyncio connections, to reset one, and to close one whose
  event loop has ended, which redis-py and asyncio cannot: both need the loop;
- ``_sock`` and ``_ssl_protocol`` of asyncio's transports, for the latter.
"""

from __future__ import annotations

import math
import socket
import struct
import threading
from contextlib import suppress
from functools import cache
from typing import Any

import redis.connection

from celery_locks.clock import now

_LINGER_ZERO = struct.pack("@ii", 1, 0)


class ExchangeState:
    """When the exchange on a connection must end, and how the last one ended."""

    __slots__ = ("answered_at", "awaits_reply", "deadline")

    def __init__(self) -> None:
        self.deadline = math.inf
        self.awaits_reply = False
        self.answered_at = 0.0


def _discard_unsent(sock: Any) -> None:
    """Make the kernel forget, when the socket is closed, what the other end has not received."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)


class DeadlineSocket:
    """A connected socket whose every operation gets the time that is left, or a little less."""

    def __init__(self, sock: Any, state: ExchangeState) -> None:
        self._sock = sock
        self._recv, self._recv_into, self._sendall = sock.recv, sock.recv_into, sock.sendall
        self._state = state
        self._timeout = 0.0

    def recv(self, *args: Any) -> Any:
        self._set_time_left()
        return self._recv(*args)

    def recv_into(self, *args: Any) -> Any:
        self._set_time_left()
        return self._recv_into(*args)

    def sendall(self, data: Any) -> None:
        self._set_time_left()
        self._sendall(data)

    def settimeout(self, timeout: float | None) -> None:
        """Ignore redis-py's own timeouts: the deadline replaces them."""

    def shutdown(self, direction: int) -> None:
        """Prepare to close: end in order, or reset if a command is unanswered."""
        if self._state.awaits_reply:
            _discard_unsent(self._sock)
        else:
            self._sock.shutdown(direction)

    def _set_time_left(self) -> None:
        left = self._state.deadline - now()
        if 0.95 * left <= self._timeout <= left:
            return  # saves a system call; the next operation mostly has the same time
        if left <= 0:
            raise TimeoutError("timed out")
        self._timeout = min(0.99 * left, 3600.0)
        self._sock.settimeout(self._timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@cache
def bounded(connection_class: Any) -> Any:
    """Return the connection class, with its ``state`` to bound connecting and each exchange."""
    resolves = connection_class._connect in (
        redis.connection.Connection._connect,
        redis.connection.SSLConnection._connect,
    )

    class BoundedConnection(connection_class):  # type: ignore[misc]
        state: ExchangeState

        def _connect(self) -> DeadlineSocket:
            if resolves:
                _resolve(self.host, self.port, self.state.deadline)
            return DeadlineSocket(super()._connect(), self.state)

    return BoundedConnection


_lookups: dict[tuple[str, int, int], threading.Thread] = {}


def _resolve(host: str, port: int, deadline: float) -> None:
    """Raise OSError if the name server does not reply by the deadline.

    redis-py resolves names itself, without a time limit and without an option for one. So the name
    is looked up in a thread first; when redis-py does it again, the name server is known to reply.
    asyncio has such a thread of its own. One that still runs serves later callers too, if they
    are of the same native thread: a greenlet cannot be joined from another.
    """
    with suppress(OSError):
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        return
    key = (host, port, threading.get_native_id())
    thread = _lookups.get(key)
    if thread is None or not thread.is_alive():
        thread = _lookups[key] = threading.Thread(target=_look_up, args=key, daemon=True)
        with suppress(RuntimeError):  # no thread can be started any more: without a time limit then
            thread.start()
    if thread.is_alive():
        thread.join(max(0.0, deadline - now()))
    if thread.is_alive():
        raise socket.gaierror(socket.EAI_AGAIN, "no name server has replied in time")


def _look_up(host: str, port: int, caller: int) -> None:
    with suppress(OSError, UnicodeError):  # redis-py finds the same, and reports it
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    _lookups.pop((host, port, caller), None)


@cache
def resetting(connection_class: Any) -> Any:
    """Return the connection class for asyncio, closed at once, and reset if a reply is due."""

    class ResettingConnection(connection_class):  # type: ignore[misc]
        state: ExchangeState

        async def disconnect(self, *args: Any, **kwargs: Any) -> None:
            if self._writer:
                if self.state.awaits_reply:
                    _discard_unsent(self._writer.get_extra_info("socket"))
                # At once: the end of TLS waits for the server, and the loop may end before that.
                self._writer.transport.abort()
            await super().disconnect(*args, **kwargs)

    return ResettingConnection


def close_without_loop(connection: Any) -> None:
    """Close an asyncio connection whose event loop has ended."""
    writer = getattr(connection, "_writer", None)
    if writer is None:
        return  # it is closed, or in this process
    connection._reader = connection._writer = None
    transport = writer.transport
    with suppress(RuntimeError):  # it is marked as closed before it needs its loop
        transport.abort()
    tls = getattr(transport, "_ssl_protocol", None)
    transport = tls._transport if tls else transport
    if transport and transport._sock:
        transport._sock.close()
        transport._sock = None
