"""Bytes to and from one node, each exchange bounded by one deadline; awaited: ``aio_wire.py``.

redis-py opens the connection (TCP, TLS, unix socket); then we write and read on its socket
ourselves, from the handshake (password, database) on. Idle connections are kept per node and used
last-in first-out. There is no liveness check before use: every call we make may be repeated, so a
stale connection costs one more try, not a round trip each time. After a fork the child starts with
none.

These two are the only files that touch what redis-py does not promise: ``Connection._sock`` and,
awaited, ``_reader`` and ``_writer``. They have had these names from redis-py 4.2 to 8.
"""

from __future__ import annotations

import socket
import struct
import weakref
from contextlib import suppress
from typing import Any, Protocol

import redis.exceptions

from celery_locks.clock import now
from celery_locks.forking import run_after_fork
from celery_locks.store.connect_errors import (
    ConnectionFailed,
    check_handshake,
    check_version,
    place_of,
    refusal,
)
from celery_locks.store.resp import Incomplete, Reply, pack, parse
from celery_locks.store.server import Address, ServerConfig

CHUNK = 8192
CLOSED = "the server closed the connection"
_TIMEVAL = struct.Struct("@ll")
_LINGER_ZERO = struct.pack("@ii", 1, 0)


class ResetsAtFork(Protocol):
    """Something whose state (sockets, locks of other threads) is the parent's after a fork."""

    def after_fork(self) -> None: ...


_reset_at_fork: weakref.WeakSet[ResetsAtFork] = weakref.WeakSet()


def reset_at_fork(thing: ResetsAtFork) -> None:
    _reset_at_fork.add(thing)


def _after_fork() -> None:
    for thing in list(_reset_at_fork):
        thing.after_fork()


run_after_fork(_after_fork, "store")


def reset_connection(sock: Any) -> None:
    """When closed, the kernel is to forget what the other end has not received.

    Else it goes on sending after the close, and a question for a lock may arrive when its asker has
    asked again, got the lock and given it back: nobody would have it then, until it lapses.
    """
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)


class Connection:
    """One open connection, blocking.

    On a plain socket the kernel keeps the time: a timeout of Python's own costs a ``poll`` before
    each read and write, and a thread that holds the GIL has to give it away for each of them. (A
    signal that the process handles meanwhile makes the kernel begin anew; Python would not.)
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sock = connection._sock
        self._rest = b""
        self._limit = 0.0
        # Not TLS, which takes a timeout within a record for its end; nor a greenlet's.
        self._is_plain = type(self._sock).__module__ == "socket"
        if self._is_plain:
            self._sock.settimeout(None)

    def send(self, data: bytes, deadline: float) -> None:
        self._allow(deadline)
        try:
            self._sock.sendall(data)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def receive(self, deadline: float) -> Reply:
        """The next reply; TimeoutError at the deadline, whatever drips in before it."""
        self._allow(deadline)
        return self._receive(deadline)

    def _receive(self, deadline: float) -> Reply:
        while True:
            try:
                if self._rest:
                    reply, end = parse(self._rest)
                    self._rest = self._rest[end:]
                    return reply
            except Incomplete:
                self._allow(deadline)
                if now() >= deadline:
                    raise TimeoutError("the reply did not end in time") from None
            self._rest += self._recv()

    def _recv(self) -> bytes:
        try:
            chunk: bytes = self._sock.recv(CHUNK)
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        if not chunk:
            raise ConnectionError(CLOSED)
        return chunk

    def _allow(self, deadline: float) -> None:
        """Until the deadline, or a little less: the next call, mostly, has the same time."""
        left = max(0.001, deadline - now())
        if not self._is_plain:
            self._sock.settimeout(left)
        else:
            self._limit = 0.99 * left
            seconds, part = divmod(self._limit, 1.0)
            value = _TIMEVAL.pack(int(seconds), int(part * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def exchange(self, data: bytes, deadline: float) -> Reply:
        left = deadline - now()
        if not 0.95 * left <= self._limit <= left:
            self._allow(deadline)
        sock = self._sock
        try:
            sock.sendall(data)
            chunk: bytes = sock.recv(CHUNK)  # the timeout that was just set still fits
        except BlockingIOError:
            raise TimeoutError("timed out") from None
        if chunk[:1] == b":" and chunk[-1:] == b"\n":
            return int(chunk[1:])  # as most replies are
        if not chunk:
            raise ConnectionError(CLOSED)
        self._rest = chunk
        return self._receive(deadline)

    def close(self) -> None:
        self._connection.disconnect()

    def abort(self) -> None:
        """Close with a question that is not answered."""
        reset_connection(self._sock)
        self._sock.close()  # redis-py would say goodbye first
        self.close()


class ConnectionPool:
    """All connections of this process to one node."""

    def __init__(self, server: ServerConfig, address: Address) -> None:
        self._site = server
        self._address = address
        self._idle: list[Connection] = []
        reset_at_fork(self)

    def exchange(self, data: bytes, deadline: float) -> Reply:
        """Send and read one reply; raise ``ConnectionFailed`` if that fails by the deadline."""
        try:
            link = self._idle.pop()
        except IndexError:
            link = self.open(deadline)
        try:
            reply = link.exchange(data, deadline)
        except (OSError, ValueError) as error:
            self.drop(link)
            raise ConnectionFailed(f"no answer from {place_of(self._address)}: {error}") from error
        except BaseException:
            # Interrupted between question and answer: the next user would read our reply.
            link.abort()
            raise
        self._idle.append(link)
        return reply

    def open(self, deadline: float) -> Connection:
        """A new connection, greeted and known to be to a server that is new enough."""
        connection = self._site.connection(self._address, max(0.001, (deadline - now()) / 3))
        try:
            connection.connect()
        except (redis.exceptions.RedisError, OSError) as error:
            raise refusal(self._site, self._address, error) from error
        link = Connection(connection)
        try:
            self._meet(link, deadline)
        except (OSError, ValueError) as error:
            link.close()
            raise refusal(self._site, self._address, error) from error
        except BaseException:
            link.close()
            raise
        return link

    def _meet(self, link: Connection, deadline: float) -> None:
        handshake = self._site.handshake(self._address)
        if handshake:
            link.send(b"".join(handshake), deadline)
            replies = [link.receive(deadline) for _ in handshake]
            check_handshake(self._site, self._address, replies)
        if self._address not in self._site.checked:
            check_version(
                self._site, self._address, link.exchange(pack("INFO", "server"), deadline)
            )
            self._site.checked.add(self._address)

    def drop(self, link: Connection) -> None:
        """One connection failed: those that idle are most likely as dead."""
        self.close()
        link.abort()

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def after_fork(self) -> None:
        # The sockets are the parent's too: forget them, do not speak on them.
        self._idle = []
