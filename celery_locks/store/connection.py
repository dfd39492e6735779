"""Exchanges with one node on redis-py's connections, each bounded by one deadline.

redis-py connects, logs in, sends and reads, through its public methods. Idle connections are kept
here, last in, first out, and never more than the user's pool may open. They are not borrowed from
the user's own pool, which would run empty for the user, and whose timeouts and retries exceed our
deadlines. An exchange that fails or is interrupted never puts its connection back: the next user
would read its reply. There is no liveness check before use: every call may be repeated, so a stale
connection costs one more try, not a round trip each time. A forked child starts with none.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

import redis.exceptions

from celery_locks.clock import now
from celery_locks.forking import run_after_fork
from celery_locks.store.connect_errors import (
    ConnectionFailed,
    check_version,
    connect_error,
)
from celery_locks.store.resp import ErrorReply, Reply, error_reply, pack
from celery_locks.store.server_config import Address, ServerConfig, describe_address

FAILURES = (redis.exceptions.RedisError, OSError, ValueError)
SERVER_INFO = pack("INFO", "server")


class ResetsAtFork(Protocol):
    """An object whose state (sockets, locks of other threads) is the parent's after a fork."""

    def after_fork(self) -> None: ...


_reset_at_fork: weakref.WeakSet[ResetsAtFork] = weakref.WeakSet()


def reset_at_fork(thing: ResetsAtFork) -> None:
    _reset_at_fork.add(thing)


def _after_fork() -> None:
    for thing in list(_reset_at_fork):
        thing.after_fork()


run_after_fork(_after_fork, "store")


def exchange_on(connection: Any, data: bytes, deadline: float) -> Reply:
    """Send and read one reply; an error reply is a value, everything else that fails is raised."""
    state = connection.deadline
    state.at, state.awaits_reply = deadline, True
    connection.send_packed_command([data], check_health=False)
    try:
        reply: Reply = connection.read_response(disable_decoding=True)
    except redis.exceptions.RedisError as error:
        found = error_reply(error)
        if found is None:
            raise
        reply = found
    state.awaits_reply = False
    return reply


class ConnectionPool:
    """All connections of this process to one node; at most ``limit`` of them if it is not 0."""

    def __init__(self, server: ServerConfig, address: Address, limit: int = 0) -> None:
        self._server = server
        self._address = address
        self._limit = limit
        self.after_fork()
        reset_at_fork(self)

    def after_fork(self) -> None:
        """Forget the connections: the sockets are the parent's."""
        self._idle: list[Any] = []
        # Weak: a connection that an interrupted exchange has lost no longer counts.
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._opening = threading.Lock()
        self._returned = threading.Condition()
        self._waiting = 0

    def exchange(self, data: bytes, deadline: float) -> Reply:
        """Send and read one reply; raise ``ConnectionFailed`` if that fails by the deadline."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = None
        if connection is None:
            connection = self._borrow(deadline)
        began = now()
        try:
            reply = exchange_on(connection, data, deadline)
        except FAILURES as error:
            self._discard(connection)
            self._discard_suspects(began, error)
            where = describe_address(self._address)
            raise ConnectionFailed(f"no answer from {where}: {error}") from error
        except BaseException:
            self._discard(connection)
            raise
        if isinstance(reply, ErrorReply) and not connection_survives(reply):
            return self._repeat_with_new_login(connection, data, deadline, reply)
        self._put_back(connection)
        return reply

    def _put_back(self, connection: Any) -> None:
        connection.deadline.answered_at = now()
        self._idle.append(connection)
        if self._waiting:
            with self._returned:
                self._returned.notify()

    def _repeat_with_new_login(
        self, connection: Any, data: bytes, deadline: float, reply: ErrorReply
    ) -> Reply:
        """Credentials may have been rotated since an idle connection logged in: use a new one."""
        is_new = connection.deadline.answered_at == 0.0
        self._discard(connection)
        if is_new or reply.code != "NOAUTH":
            return reply
        self.close()
        return self.exchange(data, deadline)

    def _borrow(self, deadline: float) -> Any:
        """Open a connection; at the limit wait for one that is put back."""
        while True:
            connection = self._make(deadline)
            if connection is not None:
                return self._connected(connection, deadline)
            connection = self._wait(deadline)
            if connection is not None:
                return connection
            if now() >= deadline:
                where = describe_address(self._address)
                raise ConnectionFailed(
                    f"all connections to {where} that max_connections permits are in use"
                )

    def _wait(self, deadline: float) -> Any:
        with self._returned:
            self._waiting += 1
            try:
                if not self._idle:
                    # Not longer: one that was lost or closed is not announced.
                    self._returned.wait(max(0.0, min(0.05, deadline - now())))
                return self._idle.pop() if self._idle else None
            except IndexError:  # another thread was faster
                return None
            finally:
                self._waiting -= 1

    def _make(self, deadline: float) -> Any:
        """Make an unconnected connection; None at the limit."""
        with self._opening:
            if self._limit and len(self._open) >= self._limit:
                return None
            connection = self._new(deadline)
            self._open.add(connection)
            return connection

    def _new(self, deadline: float) -> Any:
        return self._server.connection(self._address, max(0.001, (deadline - now()) / 3))

    def open(self, deadline: float) -> Any:
        """Open a connection that does not count and is not kept, for a subscription."""
        return self._connected(self._new(deadline), deadline)

    def _connected(self, connection: Any, deadline: float) -> Any:
        """Connect and log in; check once that the server is new enough."""
        connection.deadline.at = deadline
        try:
            connection.connect()
            if self._address not in self._server.checked:
                info = exchange_on(connection, SERVER_INFO, deadline)
                check_version(self._server, self._address, info)
                self._server.checked.add(self._address)
        except FAILURES as error:
            self._discard(connection)
            raise connect_error(self._server, self._address, error) from error
        except BaseException:
            self._discard(connection)
            raise
        return connection

    def _discard(self, connection: Any) -> None:
        self._open.discard(connection)
        connection.disconnect()

    def _discard_suspects(self, began: float, error: Exception) -> None:
        """Close the idle connections that are most likely dead too.

        After a timeout these are only those that have not been answered since it began.
        """
        is_timeout = isinstance(error, redis.exceptions.TimeoutError | TimeoutError)
        idle, self._idle = self._idle, []
        for connection in idle:
            if is_timeout and connection.deadline.answered_at > began:
                self._idle.append(connection)
            else:
                self._discard(connection)

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)


def connection_survives(reply: ErrorReply) -> bool:
    """Tell whether redis-py keeps the connection open after this error reply."""
    return reply.code not in ("NOAUTH", "WRONGPASS", "LOADING")
