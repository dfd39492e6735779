"""A real server whose scripts read the time from a key that the test sets: exact, and no sleep.

Two things are changed in the scripts: the line that asks for the time, and the times after which
keys expire, which are longer than any test. The server expires keys by its own clock; on a busy
machine it would delete what counts by the clock of the test.
"""

import re
from typing import Any

from celery_locks.store.effects import Call
from celery_locks.store.redis_store import RedisStore
from celery_locks.store.scripts import Script
from tests.servers.embedded import EmbeddedServer

PREFIX = "m"
ROOT = f"{PREFIX}:{{0}}:"
CLOCK = f"{ROOT}clock"
_EXPIRES_AFTER = re.compile(r"('PX', |'PEXPIRE', \w+, )")


class ClockedScript(Script):
    """A script that reads the time from a key, and whose keys do not expire meanwhile."""

    def _read(self) -> str:
        asks, reads = "redis.call('TIME')", f"redis.call('HMGET', '{CLOCK}', 's', 'us')"
        text = super()._read()
        assert text.count(asks) <= 1  # some scripts need no time
        # An hour more, not a multiple: a script compares the time that a key has left.
        return _EXPIRES_AFTER.sub(r"\g<1>3600000 + ", text.replace(asks, reads))


class ClockedServer:
    """A store on a real server, and a plain client that sees what it holds."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.store = RedisStore.from_url(server.url, PREFIX)
        self.raw = server.client()
        self._scripts: dict[str, ClockedScript] = {}
        self.forget()

    def forget(self) -> None:
        """Delete all data but the clock, as a restart without persistence does."""
        for key in self._keys():
            self.raw.delete(key)

    def dump(self) -> dict[bytes, bytes]:
        """Return all data but the clock; keys that expire are kept without their expiry."""
        return {key: self.raw.dump(key) for key in self._keys()}

    def restore(self, dumped: dict[bytes, bytes]) -> None:
        self.forget()
        for key, value in dumped.items():
            self.raw.restore(key, 0, value)

    def _keys(self) -> list[bytes]:
        return [key for key in self.raw.scan_iter(match=f"{PREFIX}:*") if key != CLOCK.encode()]

    def set_clock(self, micros: int) -> None:
        seconds, rest = divmod(micros, 1_000_000)
        self.raw.hset(CLOCK, mapping={"s": seconds, "us": rest})

    def perform(self, call: Call) -> Any:
        if isinstance(call.script, Script):
            name, parts = call.script.name, (call.root, call.keys, call.args)
            script = self._scripts.setdefault(name, ClockedScript(name))
            call = Call(script, *parts, call.parse, call.budget)
        return self.store.perform(call)

    def close(self) -> None:
        self.raw.close()
        self.store.close()
