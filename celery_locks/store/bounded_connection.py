"""What redis-py's connections lack: one deadline, and a way to take back an unanswered command.

redis-py sets a timeout for each ``recv``. A server that sends a byte now and then never exceeds
it, and holds a caller for as long as it likes: in a reply, and in the handshake of a connection.
redis-py has no option for a deadline. So a subclass of the user's connection class wraps the socket
that ``_connect()`` returns; redis-py declares that method as the one that subclasses implement.
asyncio bounds an exchange by itself.

A command whose reply we no longer wait for must not arrive later: by then the caller may have
repeated it, got the lock and released it, and the late one would take a lock that nobody holds,
until it expires. When a connection is closed, the kernel goes on sending what the other end has not
received; a connection with an unanswered command is therefore reset (``SO_LINGER`` of zero).
For that the awaited connections need redis-py's ``_writer``, which is private (seen in 5.0 to 8.1).
"""

from __future__ import annotations

import math
import socket
import struct
from contextlib import suppress
from functools import cache
from typing import Any

from celery_locks.clock import now

_LINGER_ZERO = struct.pack("@ii", 1, 0)


class Deadline:
    """The state of one connection's exchange, and when its last one was answered."""

    __slots__ = ("answered_at", "at", "awaits_reply")

    def __init__(self) -> None:
        self.at = math.inf
        self.awaits_reply = False
        self.answered_at = 0.0


def _discard_unsent(sock: Any) -> None:
    """Make the kernel forget, when the socket is closed, what the other end has not received."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)


class DeadlineSocket:
    """A connected socket whose every operation gets the time that is left, or a little less."""

    def __init__(self, sock: Any, deadline: Deadline) -> None:
        self._sock = sock
        self._recv, self._recv_into, self._sendall = sock.recv, sock.recv_into, sock.sendall
        self._deadline = deadline
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
        if self._deadline.awaits_reply:
            _discard_unsent(self._sock)
        else:
            self._sock.shutdown(direction)

    def _set_time_left(self) -> None:
        left = self._deadline.at - now()
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
    """Return the connection class with a ``deadline`` that bounds connecting and each exchange."""

    class BoundedConnection(connection_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.deadline = Deadline()
            super().__init__(*args, **kwargs)

        def _connect(self) -> DeadlineSocket:
            return DeadlineSocket(super()._connect(), self.deadline)

    return BoundedConnection


@cache
def resetting(connection_class: Any) -> Any:
    """Return the connection class for asyncio, reset if closed with a command unanswered."""

    class ResettingConnection(connection_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.deadline = Deadline()
            super().__init__(*args, **kwargs)

        async def disconnect(self, *args: Any, **kwargs: Any) -> None:
            writer = getattr(self, "_writer", None)
            if writer and self.deadline.awaits_reply:
                _discard_unsent(writer.get_extra_info("socket"))
                writer.transport.abort()
            await super().disconnect(*args, **kwargs)

    return ResettingConnection
