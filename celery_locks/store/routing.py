"""One call from first try to reply: which node, when to try again, what an error means.

Every command may be repeated (the token makes it idempotent), so a try without a reply is followed
by another until the call's budget is used up; for a server with a single address two tries are
enough.

Nodes of a Cluster and the primary behind Sentinels are found here and not by redis-py: its clients
for them discover nodes with timeouts and retries of their own, which no deadline bounds.

A slot that is being migrated (ASK, TRYAGAIN) is waited for rather than followed: a lock's keys are
few, and a script cannot run with half of them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from redis.crc import key_slot

from celery_locks.clock import now
from celery_locks.errors import (
    ForeignData,
    LockUnavailable,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
)
from celery_locks.store.connect_errors import ConnectionFailed, ErrorReply, Reply, refused_because
from celery_locks.store.connection_config import Address, ServerConfig
from celery_locks.store.effects import Call
from celery_locks.store.scripts import pack

# Sends to a node and returns its reply; ConnectionFailed if none comes by the deadline.
Exchange = Callable[[Address, bytes, float], Awaitable[Reply]]
Sleep = Callable[[float], Awaitable[None]]


_FINAL = {
    "OOM": (ServerOutOfMemory, "is out of memory, so it grants nothing new; raise its maxmemory"),
    "WRONGTYPE": (ForeignData, "holds data of another type under one of our keys; left alone"),
    "MISCONF": (ServerReadOnly, "refuses writes because it cannot persist them"),
    "NOREPLICAS": (ServerReadOnly, "refuses writes because it has too few replicas"),
}
_PASSING = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED", "BUSY"}
# Redis 6.2 wraps a command's error in "ERR Error running script …": look for the word anywhere.
_CODE = re.compile(r"\b(" + "|".join([*_FINAL, *_PASSING, "NOSCRIPT"]) + r")\b")


class Router:
    """The addresses of one server, as far as they are known, and the steps of a call to it."""

    def __init__(self, server: ServerConfig, exchange: Exchange, sleep: Sleep) -> None:
        self._server = server
        self._exchange = exchange
        self._sleep = sleep
        # The node for every call; None if it is not known yet, or depends on the shard.
        self.primary = server.addresses[0] if server.topology == "single" else None
        self._slots: list[tuple[int, int, Address]] = []

    async def perform(self, call: Call) -> Any:
        """Take one call to its end: return ``call.parse(reply)`` or raise one of our errors."""
        deadline = now() + call.budget
        data, tries, may_have_executed = call.packed, 0, False
        while True:
            tries += 1
            try:
                address = self.primary or await self.address(call.root, deadline)
                until = now() + first_share(deadline - now()) if tries == 1 else deadline
                reply = await self._exchange(address, data, until)
            except ConnectionFailed as error:
                trouble, may_have_executed = str(error), True
            except LockUnavailable as error:  # refused at the second connection
                error.may_have_executed = may_have_executed
                raise
            else:
                if not isinstance(reply, ErrorReply):
                    return call.parse(reply)
                code = code_of(reply)
                if code == "NOSCRIPT":
                    tries -= 1  # the server replied and can be asked
                    data = call.script.by_text(call.root, call.keys, call.args)
                    continue
                self._raise_if_final(code, reply, call, may_have_executed)
                trouble = reply.text
            self.forget()
            pause = min(0.01 * 2**tries, 0.25)
            if now() + pause >= deadline or (self._server.topology == "single" and tries > 1):
                raise self._given_up(trouble, tries)
            if tries > 1:
                await self._sleep(pause)

    def _raise_if_final(
        self, code: str, reply: ErrorReply, call: Call, may_have_executed: bool
    ) -> None:
        if code in _PASSING:
            return
        refused = refused_because(reply.text)
        cls, what = _FINAL.get(code, (LockUnavailable, f"failed on {call.script.name}"))
        if refused:
            cls, what = ServerRefused, refused
        error = cls(f"the {self._server} {what}: {reply.text}")
        error.may_have_executed = may_have_executed
        raise error

    def _given_up(self, trouble: str, tries: int) -> LockUnavailable:
        if "READONLY" in trouble:
            return ServerReadOnly(
                f"the {self._server} is read-only; point at the primary: {trouble}"
            )
        return LockUnavailable(f"the {self._server} gave no answer in {tries} tries: {trouble}")

    async def address(self, root: str, deadline: float) -> Address:
        """Find the node that has this shard; ask Sentinel or the Cluster if it is not known."""
        if self._server.topology == "cluster":
            return await self._cluster_node(root, deadline)
        if self.primary is None:
            reply, _ = await self._ask_any_node(
                pack("SENTINEL", "get-master-addr-by-name", self._server.service), deadline
            )
            self.primary = (reply[0].decode(), int(reply[1]))
        return self.primary

    def forget(self) -> None:
        """Forget the addresses after a failure: ask for them again next time."""
        self._slots = []
        if self._server.topology == "sentinel":
            self.primary = None

    async def _cluster_node(self, root: str, deadline: float) -> Address:
        if not self._slots:
            reply, source = await self._ask_any_node(pack("CLUSTER", "SLOTS"), deadline)
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

    async def _ask_any_node(self, command: bytes, deadline: float) -> tuple[Any, Address]:
        """Return the first usable reply of the known addresses; each gets a share of the time."""
        trouble: str = "no address"
        refused: LockUnavailable | None = None
        for position, address in enumerate(self._server.addresses):
            share = (deadline - now()) / (len(self._server.addresses) - position + 1)
            try:
                reply = await self._exchange(address, command, now() + share)
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


def first_share(seconds: float) -> float:
    """Return the time of a first try; it leaves some for a second: a connection may have died."""
    return seconds / 2


def code_of(reply: ErrorReply) -> str:
    """Return the code of a known error; "" for any other."""
    found = _CODE.search(reply.text)
    return found.group(1) if found else ""
