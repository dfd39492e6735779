"""How long the server itself worked on single calls, by its slow log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_locks.testing.servers import EmbeddedServer

# Lower, and the log would fill with the commands inside the scripts and slow them down.
_FLOOR_MICROS = 100


def call_times_ms(server: EmbeddedServer, work: Callable[[], object]) -> list[float]:
    """The milliseconds of every script call that ``work`` makes, ascending, from 0.1 ms on."""
    server.ask("CONFIG", "SET", "slowlog-max-len", 10_000)
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", _FLOOR_MICROS)
    server.ask("SLOWLOG", "RESET")
    work()
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", -1)
    entries: Any = server.ask("SLOWLOG", "GET", -1)
    return sorted(entry[2] / 1e3 for entry in entries if entry[3][0] in ("EVAL", "EVALSHA"))
