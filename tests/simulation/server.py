"""The server of a simulation: a real Valkey that executes one call at a time at a virtual time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_locks.store.effects import Call
from celery_locks.store.scripts import Script, pack
from tests.servers.embedded import EmbeddedServer
from tests.support.clocked_server import CLOCK, PREFIX, ROOT, ClockedScript

# Microseconds: a date of the server's clock, to which virtual time is added.
START = 1_800_000_000_000_000
# What a simulation may leave behind: the last fence, the history, and what expires by itself.
_LASTING = ("fence", "epoch", "past", "usual", "clock", "e:", "p:", "g:", "log")

ChangeText = Callable[[str, str], str]


class Executed(NamedTuple):
    """What one call did: its reply, the messages it published, and the holders of each lock."""

    reply: Any
    messages: list[tuple[str, str]]  # channel, text
    holders: list[dict[str, float]]  # token -> expiry in ms, for each of the names


class _ChangedScript(ClockedScript):
    """A script with the virtual clock, whose text a broken variant may change."""

    def __init__(self, name: str, change: ChangeText) -> None:
        super().__init__(name)
        self._change = change

    def _read(self) -> str:
        return self._change(self.name, super()._read())


def _unchanged(name: str, text: str) -> str:
    return text


class SimulatedServer:
    """One connection to a server; RESP3, so that published messages come on it too."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._socket = socket.create_connection((server.host, server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._messages: list[tuple[str, str]] = []
        self._scripts: dict[str, Script] = {}
        self._change: ChangeText = _unchanged
        self._ask("HELLO", 3)

    def reset(self, names: list[str], change: ChangeText | None = None) -> None:
        """Delete everything and start with these locks; ``change`` makes the scripts wrong."""
        self._change = change or _unchanged
        self._scripts.clear()
        self._micros = START
        self._ask("UNSUBSCRIBE")
        self._ask("FLUSHALL")
        self._views = b"".join(
            pack("ZRANGE", f"{ROOT}h:{name}", 0, -1, "WITHSCORES") for name in names
        )
        self._count = len(names)

    def subscribe(self, channel: str) -> None:
        self._ask("SUBSCRIBE", channel)

    def unsubscribe(self, channel: str) -> None:
        """Drop a channel, as the end of its process does."""
        self._ask("UNSUBSCRIBE", channel)

    def execute(self, call: Call, micros: int) -> Executed:
        """Execute a call at a time of the server's clock, and look at the holders afterwards."""
        self._micros = max(self._micros + 1, START + micros)  # no script takes less than 1 µs
        seconds, rest = divmod(self._micros, 1_000_000)
        clock = pack("HSET", CLOCK, "s", seconds, "us", rest)
        # The reply to PING comes after all messages that the script has published.
        self._socket.sendall(clock + self._packed(call) + self._views + pack("PING"))
        self._read()
        reply = self._read()
        holders = [_scores(self._read()) for _ in range(self._count)]
        self._read()
        messages, self._messages = self._messages, []
        return Executed(reply, messages, holders)

    def _packed(self, call: Call) -> bytes:
        if not isinstance(call.script, Script):
            return call.packed
        name = call.script.name
        if name not in self._scripts:
            script = _ChangedScript(name, self._change)
            self._ask("SCRIPT", "LOAD", script.text)
            self._scripts[name] = script
        return self._scripts[name].by_sha(call.root, call.keys, call.args)

    @property
    def milliseconds(self) -> int:
        """The server's clock at the last call."""
        return self._micros // 1000

    def fence_of(self, token: str) -> int:
        """Return the fence in the record of a holder."""
        record = self._ask("HGET", f"{ROOT}records", token)
        return int(record.split(b" ", 1)[0]) if record else 0

    def forget(self) -> None:
        """Lose all data, as a restart without persistence does."""
        self._ask("FLUSHALL")

    def remaining(self) -> list[str]:
        """Return the keys that should not exist once everybody has left."""
        found = [key.decode().removeprefix(ROOT) for key in self._ask("KEYS", f"{PREFIX}:*")]
        return sorted(key for key in found if not key.startswith(_LASTING))

    def _ask(self, *words: str | int) -> Any:
        self._socket.sendall(pack(*words) + pack("PING"))
        reply = self._read()
        # SUBSCRIBE is answered by a message only, so its PING is the first reply.
        if reply != b"PONG":
            self._read()
        return reply

    def _read(self) -> Any:
        """Read one reply; keep the messages that come before it."""
        while True:
            line = self._stream.readline()
            kind, rest = line[:1], line[1:-2]
            if kind == b">":
                self._keep([self._read() for _ in range(int(rest))])
                continue
            if kind == b"-":
                raise AssertionError(f"the server answered {rest.decode()}")
            return self._value(kind, rest)

    def _value(self, kind: bytes, rest: bytes) -> Any:
        if kind == b"$":
            return self._stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        if kind == b"%":
            return [self._read() for _ in range(2 * int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b",":
            return float(rest)
        return None if kind == b"_" else rest

    def _keep(self, message: list[Any]) -> None:
        if message[0] == b"message":
            self._messages.append((message[1].decode(), message[2].decode()))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def _scores(pairs: list[Any]) -> dict[str, float]:
    return {token.decode(): score for token, score in pairs}
