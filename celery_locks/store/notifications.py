"""How a waiter is woken: one pub/sub connection per process and node, read by whoever waits.

There is no listener thread. Of the threads that wait, one reads the socket for all of them and
wakes those it gets mail for; when it leaves, it asks another to read on. A lone waiter, the usual
case, is thus woken by its own ``recv`` without a thread switch. A lost message costs latency only:
every waiter asks the store again by itself within a second. Awaited: ``aio_mailbox.py``.
"""

from __future__ import annotations

import logging
import math
import threading
from contextlib import suppress
from typing import Literal

from celery_locks.clock import now
from celery_locks.store.connect_errors import ConnectionFailed, refused_because
from celery_locks.store.connection import Connection, ConnectionPool
from celery_locks.store.resp import ErrorReply, Reply, pack

logger = logging.getLogger("celery_locks")

# A connection that was silent this long is asked whether it still lives.
_SILENCE = 5.0
# A server that refused a subscription, but not for good, is asked again after this long.
_RETRY = 3.0


def mail_in(reply: Reply) -> tuple[str, int]:
    """Token and fence of a message; empty for what else a subscription hears."""
    if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
        token, _, fence = bytes(reply[2]).partition(b" ")  # type: ignore[arg-type]
        return token.decode(), int(fence)
    return "", 0


class Keepalive:
    """Whether a silent connection still lives: after long silence it is asked, once."""

    def __init__(self) -> None:
        self.heard()

    def heard(self) -> None:
        self._heard_at, self._asked = now(), False

    def verdict(self) -> Literal["fine", "ask", "dead"]:
        if now() - self._heard_at < _SILENCE:
            return "fine"
        if self._asked:
            return "dead"
        self._asked = True
        return "ask"


class SubscriptionHealth:
    """Whether the server lets us listen; while it does not, waiters ask again and again instead."""

    def __init__(self) -> None:
        self._deaf_until = 0.0

    @property
    def is_deaf(self) -> bool:
        return now() < self._deaf_until

    def refused(self, reply: ErrorReply) -> None:
        """For good without the right to listen; else, as by a server that is full, for now."""
        if not self._deaf_until:
            logger.warning(
                "waiting for locks is slow: the server refuses a subscription: %s", reply.text
            )
        self._deaf_until = math.inf if refused_because(reply.text) else now() + _RETRY

    def hears(self) -> None:
        self._deaf_until = 0.0


class _Ticket:
    """One waiter: ``mail`` is the fence it was handed, ``look`` says that it should look around."""

    __slots__ = ("look", "mail", "waits")

    def __init__(self) -> None:
        self.mail = 0
        self.waits = False
        self.look = threading.Event()


class Notifications:
    """That of one channel."""

    def __init__(self, channel: str, wire: ConnectionPool) -> None:
        self.channel = channel
        self._wire = wire
        self._link: Connection | None = None
        self._tickets: dict[str, _Ticket] = {}
        self._reading = threading.Lock()
        self._pulse = Keepalive()
        self._ear = SubscriptionHealth()
        self._failures = 0

    def expect(self, token: str, *, connect: bool, deadline: float) -> str | None:
        """Keep mail for ``token``; answers the channel, None if not connected, "-" if it must poll.

        ``ConnectionFailed`` if it tried to subscribe and could not.
        """
        if self._link is None and not connect:
            return None
        if self._link is None and not self._ear.is_deaf:
            self._connect(deadline)
        if self._link is None:
            self.unexpect(token)
            return "-"
        self._tickets.setdefault(token, _Ticket())
        return self.channel

    def _connect(self, deadline: float) -> None:
        """Subscribe, or wait while another does: what comes of it, by the deadline, is ours too."""
        failures = self._failures
        if not self._reading.acquire(timeout=max(0.0, deadline - now())):
            return
        try:
            if self._link is None and not self._ear.is_deaf and self._failures == failures:
                self._subscribe(deadline)
        except ConnectionFailed:
            self._failures += 1
            raise
        finally:
            self._reading.release()

    def expects(self, token: str) -> bool:
        return token in self._tickets

    def unexpect(self, token: str) -> None:
        self._tickets.pop(token, None)

    def _subscribe(self, deadline: float) -> None:
        link = self._wire.open(deadline)
        try:
            reply = link.exchange(pack("SUBSCRIBE", self.channel), deadline)
        except (OSError, ValueError) as error:
            link.close()
            raise ConnectionFailed(f"cannot subscribe: {error}") from error
        if isinstance(reply, ErrorReply):
            link.close()
            self._ear.refused(reply)
            return
        self._link = link
        self._ear.hears()
        self._pulse.heard()

    def wait(self, token: str, seconds: float) -> int:
        """The fence that came for ``token``; 0 if the connection breaks or time is over."""
        deadline = now() + seconds
        ticket = self._tickets.get(token) or _Ticket()
        ticket.waits = True
        try:
            while not ticket.mail and now() < deadline and self._look(ticket, deadline):
                pass
            return ticket.mail
        finally:
            ticket.mail, ticket.waits = 0, False
            self._ask_another()

    def _look(self, ticket: _Ticket, deadline: float) -> bool:
        """Read for all, or sleep while another does; False if the connection broke."""
        if self._reading.acquire(blocking=False):
            try:
                return bool(ticket.mail) or self._read(ticket, deadline)
            finally:
                self._reading.release()
        ticket.look.wait(deadline - now())
        ticket.look.clear()
        return True

    def _read(self, ticket: _Ticket, deadline: float) -> bool:
        """Deliver mail until there is some for ``ticket``; False if the connection broke."""
        if self._link is None:
            return False
        while not ticket.mail:
            try:
                self._deliver(self._link.receive(deadline))
            except TimeoutError:
                return self._is_alive()
            except (OSError, ValueError):
                self._disconnect()
                return False
        return True

    def _deliver(self, reply: Reply) -> None:
        self._pulse.heard()
        token, fence = mail_in(reply)
        ticket = self._tickets.get(token)
        if ticket:
            ticket.mail = fence
            ticket.look.set()

    def _is_alive(self) -> bool:
        verdict = self._pulse.verdict()
        if verdict == "ask" and self._link:
            with suppress(OSError):
                self._link.send(pack("PING"), now() + 0.1)
        if verdict == "dead":
            self._disconnect()
        return verdict != "dead"

    def _disconnect(self) -> None:
        if self._link:
            self._link.close()
        self._link = None

    def _ask_another(self) -> None:
        """Who leaves asks one who still waits, not one who is on its way out, to read on."""
        if self._reading.locked():
            return
        for ticket in list(self._tickets.values()):
            if ticket.waits and not ticket.mail:
                ticket.look.set()
                return

    def close(self) -> None:
        self._disconnect()
