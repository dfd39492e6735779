"""One call from first try to answer: which node, when to try again, what an error means. No I/O.

Written once as a generator of :class:`Exchange` and :class:`Pause` steps, so that the sync and the
async store only differ in how they take a step. Every verb may be repeated (the token makes it
idempotent), so an on_no_reply try is followed by another one until the call's budget is used up;
where the server has one address only and refuses the connection, twice is enough.

A slot that is being migrated (ASK, TRYAGAIN) is waited for rather than followed: a lock's keys are
few, and a script cannot run with half of them.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, NamedTuple

from redis.crc import key_slot

from celery_locks.clock import now
from celery_locks.errors import (
    ForeignData,
    LockUnavailable,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
)
from celery_locks.store.connect_errors import ConnectionFailed, refused_because
from celery_locks.store.effects import Call
from celery_locks.store.resp import ErrorReply, Reply, pack
from celery_locks.store.server import Address, ServerConfig


class Exchange(NamedTuple):
    """Send this to that node and return its reply; ``ConnectionFailed`` if none comes in time."""

    address: Address
    data: bytes
    deadline: float


class Pause(NamedTuple):
    seconds: float


Steps = Generator[Exchange | Pause, Any, Any]

# What a first try leaves of the time for a second: its connection may have died while it idled.
FIRST_LEAVES = 0.5

_FINAL = {
    "OOM": (ServerOutOfMemory, "is out of memory, so it grants nothing new; raise its maxmemory"),
    "WRONGTYPE": (
        ForeignData,
        "holds data of another type under one of our keys; it was left alone",
    ),
    "MISCONF": (ServerReadOnly, "refuses writes because it cannot persist them"),
    "NOREPLICAS": (ServerReadOnly, "refuses writes because it has too few replicas"),
}
_PASSING = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED", "BUSY"}
# Redis 6.2 wraps a command's error in "ERR Error running script …": look for the word anywhere.
_CODE = re.compile(r"\b(" + "|".join([*_FINAL, *_PASSING, "NOSCRIPT"]) + r")\b")


class Router:
    """Knows the addresses of one site, as far as it has had to ask."""

    def __init__(self, server: ServerConfig) -> None:
        self._server = server
        # Where every call goes; None where that has to be asked for, or depends on the shard.
        self.primary: Address | None = server.addresses[0] if server.topology == "single" else None
        self._slots: list[tuple[int, int, Address]] = []

    def conversation(
        self, call: Call, deadline: float = 0.0, failed: ErrorReply | ConnectionFailed | None = None
    ) -> Steps:
        """The steps of one call; returns ``call.parse(reply)`` or raises one of our errors.

        ``failed`` is what came of a first try that the store has made already.
        """
        deadline = deadline or now() + call.budget
        data = call.packed
        tries, in_doubt = 0, False
        while True:
            tries += 1
            try:
                reply = failed or (yield from self._try(call.root, data, tries, deadline))
            except LockUnavailable as error:  # refused when it connected again
                error.in_doubt = in_doubt
                raise
            failed = None
            if isinstance(reply, ConnectionFailed):
                trouble, in_doubt = str(reply), True
            elif isinstance(reply, ErrorReply):
                code = code_of(reply)
                if code == "NOSCRIPT":
                    tries -= 1  # it answered, and well
                    data = call.script.by_text(call.root, call.args)
                    continue
                self._raise_if_final(code, reply, call, in_doubt)
                trouble = reply.text
            else:
                return call.parse(reply)
            self.forget()
            pause = min(0.01 * 2**tries, 0.25)
            if now() + pause >= deadline or (self._server.topology == "single" and tries > 1):
                raise self._given_up(trouble, tries)
            if tries > 1:
                yield Pause(pause)

    def _try(self, root: str, data: bytes, tries: int, deadline: float) -> Steps:
        """The reply, or the ``ConnectionFailed`` that there was none."""
        try:
            address = self.primary or (yield from self.address(root, deadline))
            left_over = (deadline - now()) * FIRST_LEAVES if tries == 1 else 0.0
            return (yield Exchange(address, data, deadline - left_over))
        except ConnectionFailed as error:
            return error

    def _raise_if_final(self, code: str, reply: ErrorReply, call: Call, in_doubt: bool) -> None:
        if code in _PASSING:
            return
        refused = refused_because(reply.text)
        cls, what = _FINAL.get(code, (LockUnavailable, f"failed on {call.script.verb}"))
        if refused:
            cls, what = ServerRefused, refused
        error = cls(f"the {self._server} {what}: {reply.text}")
        error.in_doubt = in_doubt
        raise error

    def _given_up(self, trouble: str, tries: int) -> LockUnavailable:
        if "READONLY" in trouble:
            return ServerReadOnly(
                f"the {self._server} is read-only; point at the primary: {trouble}"
            )
        return LockUnavailable(f"the {self._server} gave no answer in {tries} tries: {trouble}")

    def address(self, root: str, deadline: float) -> Steps:
        """The node that has this shard; asks Sentinel or the Cluster when not known."""
        if self._server.topology == "cluster":
            return (yield from self._cluster_node(root, deadline))
        if self.primary is None:
            reply, _ = yield from self._ask_any(
                pack("SENTINEL", "get-master-addr-by-name", self._server.service), deadline
            )
            self.primary = (reply[0].decode(), int(reply[1]))
        return self.primary

    def forget(self) -> None:
        """What we knew led nowhere: ask again next time."""
        self._slots = []
        if self._server.topology == "sentinel":
            self.primary = None

    def _cluster_node(self, root: str, deadline: float) -> Steps:
        if not self._slots:
            reply, source = yield from self._ask_any(pack("CLUSTER", "SLOTS"), deadline)
            # A node that does not say its host (NULL or empty) has that of the one we asked.
            self._slots = [
                (first, last, (node[0].decode() if node[0] else source[0], node[1]))
                for first, last, node, *_ in reply
            ]
        slot = key_slot(root.encode())
        for first, last, address in self._slots:
            if first <= slot <= last:
                return address
        self._slots = []
        raise ConnectionFailed(f"no node of the {self._server} serves slot {slot}")

    def _ask_any(self, question: bytes, deadline: float) -> Steps:
        """The first usable answer of the known addresses; each gets a share of the time."""
        trouble: str = "no address"
        refused: LockUnavailable | None = None
        for position, address in enumerate(self._server.addresses):
            share = (deadline - now()) / (len(self._server.addresses) - position + 1)
            try:
                reply: Reply = yield Exchange(address, question, now() + share)
            except ConnectionFailed as error:
                trouble = str(error)
                continue
            except LockUnavailable as error:
                refused = error
                continue
            if isinstance(reply, list) and reply:
                return reply, address
            if isinstance(reply, ErrorReply) and (why := refused_because(reply.text)):
                refused = ServerRefused(f"the {self._server} {why}: {reply.text}")
            trouble = f"{address[0]}:{address[1]} answered {reply!r}"
        if refused:
            raise refused
        raise ConnectionFailed(f"nobody of the {self._server} says where the primary is: {trouble}")


def code_of(reply: ErrorReply) -> str:
    """Which of the known errors it is; "" for any other."""
    found = _CODE.search(reply.text)
    return found.group(1) if found else ""
