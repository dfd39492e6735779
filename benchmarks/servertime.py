"""The time of single calls in the server, by two clocks.

The slow log uses the wall clock, which runs on while other processes have the processor. The
kernel's processor time does not, but it includes reading the request and writing the reply, which
the slow log leaves out. Both are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.timing import p50
from tests.servers.embedded import EmbeddedServer

# With less, the log would fill with the commands inside the scripts and slow them down.
_FLOOR_MICROS = 100


@dataclass
class ServerTime:
    """Milliseconds of single calls; ``ran`` is empty if the kernel does not report it."""

    ran: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def longest(self) -> float:
        return max(self.ran or self.wall)

    def rows(self) -> list[tuple[str, float]]:
        return [
            ("server's processor time for one call, p50 ms", p50(self.ran or self.wall)),
            ("the longest call by processor time, with request and reply, ms", self.longest),
            ("the longest script by the wall clock, others' load included, ms", max(self.wall)),
        ]


class Watched:
    """A store or ``Locks`` whose calls are timed; it has only ``perform``."""

    def __init__(self, server: EmbeddedServer, perform: Callable[[Any], Any]) -> None:
        self._server = server
        self._perform = perform
        self.times = ServerTime()

    def perform(self, call: Any) -> Any:
        before = _ran_ms(self._server.pid)
        answer = self._perform(call)
        if before is not None:
            self.times.ran.append((_ran_ms(self._server.pid) or before) - before)
        return answer


def watch(server: EmbeddedServer, watched: Watched, work: Callable[[], object]) -> ServerTime:
    """Return the times of all calls that ``work`` makes through ``watched``."""
    server.ask("CONFIG", "SET", "slowlog-max-len", 10_000)
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", _FLOOR_MICROS)
    server.ask("SLOWLOG", "RESET")
    work()
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", -1)
    entries: Any = server.ask("SLOWLOG", "GET", -1)
    scripts = ("EVAL", "EVALSHA")
    watched.times.wall = [entry[2] / 1e3 for entry in entries if entry[3][0] in scripts]
    return watched.times


def script_calls(server: EmbeddedServer) -> int:
    """Return the script calls of clients; the server also counts commands that a script runs."""
    stats = server.info("commandstats")
    lines = [stats.get(f"cmdstat_{name}", "calls=0,") for name in ("eval", "evalsha")]
    return sum(int(line.split(",")[0].removeprefix("calls=")) for line in lines)


def used_memory(server: EmbeddedServer) -> int:
    return int(server.info("memory")["used_memory"])


def processor_ms(pid: int) -> float:
    """Return the processor time of the server's main thread; Linux only."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def _ran_ms(pid: int) -> float | None:
    try:
        return processor_ms(pid)
    except OSError:
        return None
