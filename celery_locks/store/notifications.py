"""How a waiter is woken: one pub/sub connection per process and node, read by whoever waits.

There is no listener thread. Of the threads that wait, one reads the socket for all of them and
wakes those that a message is for; when it leaves, it asks another to read on. A lone waiter, the
usual case, is thus woken by its own read without a thread switch. A lost message costs latency
only: every waiter asks the store again by itself within a second. ``async_notifications.py`` has
the awaited version.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import Any, Literal

import redis.exceptions

from celery_locks.clock import now
from celery_locks.store.connect_errors import ConnectionFailed, refused_because
from celery_locks.store.connection import FAILURES, ConnectionPool, exchange_on
from celery_locks.store.resp import ErrorReply, Reply, pack

logger = logging.getLogger("celery_locks")

PING = pack("PING")

# A connection that was silent this long gets a PING.
_SILENCE = 5.0
# After a refusal that is not final, the next attempt to subscribe comes this much later.
_RETRY = 3.0


def token_and_fence(reply: Reply) -> tuple[str, int]:
    """Return the token and fence of a message; empty for other replies on a subscription."""
    if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
        token, _, fence = bytes(reply[2]).partition(b" ")  # type: ignore[arg-type]
        return token.decode(), int(fence)
    return "", 0


class Keepalive:
    """Decides whether a silent connection still lives: after long silence it gets one PING."""

    def __init__(self) -> None:
        self.on_message()

    def on_message(self) -> None:
        self._last_message_at, self._ping_sent = now(), False

    def next_step(self) -> Literal["wait", "ping", "close"]:
        if now() - self._last_message_at < _SILENCE:
            return "wait"
        if self._ping_sent:
            return "close"
        self._ping_sent = True
        return "ping"


class SubscriptionHealth:
    """Whether the server lets us subscribe; while it does not, waiters poll instead."""

    def __init__(self) -> None:
        self._refused_until = 0.0

    @property
    def is_refused(self) -> bool:
        return now() < self._refused_until

    def on_refused(self, reply: ErrorReply) -> None:
        """Stop trying: for good without the permission to subscribe, else for a while."""
        if not self._refused_until:
            logger.warning(
                "waiting for locks is slow: the server refuses a subscription: %s", reply.text
            )
        self._refused_until = math.inf if refused_because(reply.text) else now() + _RETRY

    def on_subscribed(self) -> None:
        self._refused_until = 0.0


class _Waiter:
    """One waiting thread: ``fence`` is what it was handed, ``wakeup`` makes it look around."""

    __slots__ = ("fence", "is_waiting", "wakeup")

    def __init__(self) -> None:
        self.fence = 0
        self.is_waiting = False
        self.wakeup = threading.Event()


class Notifications:
    """The subscription to one channel on one node, and the threads that wait for its messages."""

    def __init__(self, channel: str, pool: ConnectionPool) -> None:
        self.channel = channel
        self._pool = pool
        self._connection: Any = None
        self._waiters: dict[str, _Waiter] = {}
        self._reading = threading.Lock()
        self._keepalive = Keepalive()
        self._health = SubscriptionHealth()
        self._failures = 0

    def expect(self, token: str, *, connect: bool, deadline: float) -> str | None:
        """Keep messages for ``token``; return the channel, None if not connected, "-" to poll.

        Raise ``ConnectionFailed`` if an attempt to subscribe fails.
        """
        if self._connection is None and not connect:
            return None
        if self._connection is None and not self._health.is_refused:
            self._connect(deadline)
        if self._connection is None:
            self.unexpect(token)
            return "-"
        self._waiters.setdefault(token, _Waiter())
        return self.channel

    def _connect(self, deadline: float) -> None:
        """Subscribe, or wait by the deadline while another thread does, and share its result."""
        failures = self._failures
        if not self._reading.acquire(timeout=max(0.0, deadline - now())):
            return
        try:
            is_needed = self._connection is None and not self._health.is_refused
            if is_needed and self._failures == failures:
                self._subscribe(deadline)
        except ConnectionFailed:
            self._failures += 1
            raise
        finally:
            self._reading.release()

    def expects(self, token: str) -> bool:
        return token in self._waiters

    def unexpect(self, token: str) -> None:
        self._waiters.pop(token, None)

    def _subscribe(self, deadline: float) -> None:
        connection = self._pool.open(deadline)
        try:
            reply = exchange_on(connection, pack("SUBSCRIBE", self.channel), deadline)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, FAILURES):
                raise ConnectionFailed(f"cannot subscribe: {error}") from error
            raise
        if isinstance(reply, ErrorReply):
            connection.disconnect()
            self._health.on_refused(reply)
            return
        self._connection = connection
        self._health.on_subscribed()
        self._keepalive.on_message()

    def wait(self, token: str, seconds: float) -> int:
        """Return the fence that came for ``token``; 0 if the connection breaks or time is over."""
        deadline = now() + seconds
        waiter = self._waiters.get(token) or _Waiter()
        waiter.is_waiting = True
        try:
            while not waiter.fence and now() < deadline and self._read_or_sleep(waiter, deadline):
                pass
            return waiter.fence
        finally:
            waiter.fence, waiter.is_waiting = 0, False
            self._wake_next_reader()

    def _read_or_sleep(self, waiter: _Waiter, deadline: float) -> bool:
        """Read for all, or sleep while another thread does; False if the connection broke."""
        if self._reading.acquire(blocking=False):
            try:
                return bool(waiter.fence) or self._read(waiter, deadline)
            finally:
                self._reading.release()
        waiter.wakeup.wait(deadline - now())
        waiter.wakeup.clear()
        return True

    def _read(self, waiter: _Waiter, deadline: float) -> bool:
        """Deliver messages until one is for ``waiter``; False if the connection broke."""
        connection = self._connection
        if connection is None:
            return False
        try:
            while not waiter.fence and self._connection is connection:
                connection.deadline.at = deadline
                # After a timeout the part of a message that has come already is kept.
                self._deliver(
                    connection.read_response(disable_decoding=True, disconnect_on_error=False)
                )
            return True
        except redis.exceptions.TimeoutError:
            return self._keep_alive(connection)
        except FAILURES:
            self._drop(connection)
            return False
        except BaseException:
            self._drop(connection)  # interrupted, perhaps between two parts of a message
            raise
        finally:
            if self._connection is not connection:
                connection.disconnect()  # closed meanwhile

    def _deliver(self, reply: Reply) -> None:
        self._keepalive.on_message()
        token, fence = token_and_fence(reply)
        waiter = self._waiters.get(token)
        if waiter:
            waiter.fence = fence
            waiter.wakeup.set()

    def _keep_alive(self, connection: Any) -> bool:
        """Ping a silent connection; drop it, and return False, if it did not reply to the last."""
        step = self._keepalive.next_step()
        try:
            if step == "ping":
                connection.deadline.at = now() + 0.1
                connection.send_packed_command([PING], check_health=False)
        except FAILURES:
            step = "close"
        if step == "close":
            self._drop(connection)
        return step != "close"

    def _wake_next_reader(self) -> None:
        """Ask a thread that still waits, and not one that is about to leave, to read on."""
        if self._reading.locked():
            return
        for waiter in list(self._waiters.values()):
            if waiter.is_waiting and not waiter.fence:
                waiter.wakeup.set()
                return

    def _drop(self, connection: Any) -> None:
        if self._connection is connection:
            self._connection = None
        connection.disconnect()

    def close(self) -> None:
        """Close the connection; a thread that reads it just now closes it when it stops."""
        connection, self._connection = self._connection, None
        if connection is not None and self._reading.acquire(blocking=False):
            try:
                connection.disconnect()
            finally:
                self._reading.release()
