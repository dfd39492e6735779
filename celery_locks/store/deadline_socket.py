"""A socket that keeps to one deadline, for redis-py's blocking connections.

redis-py sets a timeout for each ``recv``. A server that sends a byte now and then never exceeds
it, and holds a caller for as long as it likes: in a reply, and in the handshake of a connection.
redis-py has no option for a deadline. So a subclass of the user's connection class wraps the socket
that ``_connect()`` returns; redis-py declares that method as the one that subclasses implement.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from celery_locks.clock import now


class Deadline:
    """When the current exchange on one connection must end, and when the last one was answered."""

    __slots__ = ("answered_at", "at")

    def __init__(self) -> None:
        self.at = math.inf
        self.answered_at = 0.0


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
