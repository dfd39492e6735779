"""A RabbitMQ of the tests' own: free ports, its own node, its own directory, gone with us.

Debian's ``rabbitmq-server`` switches to a system user; the script behind it does not, and runs as
anybody with a home of its own. Erlang's name server (epmd) is started here too, on a port of its
own, as the node would otherwise leave one running behind it.
"""

from __future__ import annotations

import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Self

from tests.servers.subprocesses import Child, new_directory

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START = 90.0


def is_installed() -> bool:
    return SCRIPT.exists() and shutil.which("epmd") is not None


class RabbitMQ:
    """``with RabbitMQ() as broker: broker.url``."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.port, self._dist_port, self._names_port = _free_ports(3)
        self._children: list[Child] = []

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The same broker by way of a proxy."""
        return f"amqp://guest:guest@{self.host}:{port}//"

    def __enter__(self) -> Self:
        directory = new_directory()
        (directory / "plugins").write_text("[].")
        try:
            names = ["epmd", "-port", str(self._names_port), "-address", self.host]
            self._start([shutil.which("epmd") or "epmd", *names[1:]], new_directory())
            self._start(["/usr/bin/env", *self._environment(directory), str(SCRIPT)], directory)
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Nothing in it is worth an orderly end, which takes seconds.
        for child in reversed(self._children):
            child.kill()

    def _start(self, command: list[str], directory: Path) -> None:
        self._children.append(Child(command, directory))

    def _environment(self, directory: Path) -> list[str]:
        settings = {
            "HOME": directory,
            "ERL_EPMD_PORT": self._names_port,
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": f"celery-locks-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._dist_port,
            "RABBITMQ_MNESIA_BASE": directory / "data",
            "RABBITMQ_LOG_BASE": directory / "logs",
            "RABBITMQ_PID_FILE": directory / "pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": directory / "generated",
            "RABBITMQ_CONFIG_FILE": directory / "none",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        return [f"{name}={value}" for name, value in settings.items()]

    def _wait_ready(self) -> None:
        ends = time.monotonic() + _START
        node = self._children[-1]
        while not self._answers():
            if not node.is_running or time.monotonic() > ends:
                raise AssertionError(f"RabbitMQ did not start:\n{node.log()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        """It greets who speaks AMQP; an open port alone comes earlier."""
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as end:
                end.sendall(b"AMQP\x00\x00\x09\x01")
                return end.recv(1) == b"\x01"
        except OSError:
            return False


def _free_ports(count: int) -> list[int]:
    ends = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [end.getsockname()[1] for end in ends]
    for end in ends:
        end.close()
    return ports


if __name__ == "__main__":
    began = time.monotonic()
    with RabbitMQ() as broker:
        sys.stdout.write(f"{broker.url} after {time.monotonic() - began:.1f} s\n")
