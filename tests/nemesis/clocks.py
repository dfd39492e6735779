"""Wall clocks that jump: processes under libfaketime, from Debian's package ``faketime``.

Only the wall clock is changed, as by an operator or by ntpd: no system has a call that sets the
monotonic clock.
"""

from __future__ import annotations

from pathlib import Path

from tests.servers.embedded import EmbeddedServer, valkey_binary
from tests.support.worker import ROOT

PACKAGE = "faketime"
_SITE = Path(__file__).parent / "faketime"


def library() -> Path | None:
    """Return the library for programs with threads, if it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class FakeClock:
    """The clock of the processes that were started with its ``environment``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "offset"
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Set the clock this far from the true time."""
        written = self._directory / "written"
        written.write_text(f"{seconds:+d}\n")
        written.rename(self._file)  # never half a file

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "PYTHONPATH": f"{_SITE}:{ROOT}",
        }

    def wrap(self, binary: str) -> str:
        """Return a program that starts ``binary`` with this clock."""
        words = " ".join(f"{name}='{value}'" for name, value in self.environment.items())
        script = self._directory / "start"
        script.write_text(f'#!/bin/sh\nexec env {words} {binary} "$@"\n')
        script.chmod(0o700)
        return str(script)


def clocked_server(clock: FakeClock) -> EmbeddedServer:
    return EmbeddedServer(binary=clock.wrap(valkey_binary()))
