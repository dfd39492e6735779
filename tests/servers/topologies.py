"""Several servers that work together: a Cluster, and a pair with its sentinels."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from tests.servers.embedded import (
    HOST,
    EmbeddedServer,
    Running,
    ServerNotReady,
    fields,
    free_port,
    wait_for,
)
from tests.servers.plain_client import Reply

if TYPE_CHECKING:
    from redis.cluster import RedisCluster
    from redis.sentinel import Sentinel

SLOTS = 16384


class EmbeddedCluster(Running):
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
        self.bus_port = free_port()
        return super()._defaults() | {
            "cluster-enabled": "yes",
            "cluster-port": self.bus_port,
            "cluster-node-timeout": 1500,
            "cluster-replica-validity-factor": 0,
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }


class EmbeddedSentinel(Running):
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


def _addresses(servers: Sequence[EmbeddedServer]) -> str:
    return ",".join(f"{server.host}:{server.port}" for server in servers)


def _pairs(reply: Reply) -> dict[str, str]:
    """A flat list of names and values, as Sentinel answers."""
    assert isinstance(reply, list), reply
    words = [str(word) for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def _cluster_info(node: EmbeddedServer) -> dict[str, str]:
    return fields(node.ask("CLUSTER", "INFO"))


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
def _stopping_on_error(servers: Running) -> Iterator[None]:
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
