"""Where the lock server is and how to connect to it: a :class:`ServerConfig`.

It is made from a client here and from a URL in ``url.py``. It is data: redis-py's connection class
and the arguments for it, and which of three topologies the server has. ``routing.py`` finds the
address to talk to.

A user's connection class, credentials, TLS options, ``redis_connect_func`` and ``max_connections``
hold, and the protocol if it names one; else it is RESP2, whose handshake is shorter. Timeouts,
retries and health checks are replaced: one deadline bounds each of our calls, and the router
decides about another try.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import redis
import redis.asyncio
import redis.asyncio.connection as async_connection
import redis.asyncio.sentinel
import redis.connection as sync_connection
import redis.sentinel

from celery_locks.errors import LockUsageError
from celery_locks.store.bounded_connection import ExchangeState, bounded, resetting

Address = tuple[str, int]
Topology = Literal["single", "sentinel", "cluster"]
Transport = Literal["tcp", "tls", "unix"]

IN_PROCESS: Address = ("in this process", 0)

# Arguments that any connection class of redis-py takes, with ``ssl_…`` beside them.
_COMMON = (
    "host",
    "port",
    "path",
    "db",
    "username",
    "password",
    "credential_provider",
    "client_name",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_type",
    "protocol",
)
# Arguments of a user's client that we set ourselves, or that belong to its own pool.
_REPLACED = (
    *("socket_timeout", "socket_connect_timeout"),
    *("retry", "retry_on_timeout", "retry_on_error"),
    "health_check_interval",
    "decode_responses",
    "lib_name",
    "lib_version",
    "driver_info",
    "connection_pool",
    "event_dispatcher",
    "himport_registry",
    "oss_cluster_maint_notifications_handler",
)


def _shortest_handshake() -> dict[str, Any]:
    """Return the arguments that save a new connection the round trips of CLIENT SETINFO."""
    parameters = inspect.signature(sync_connection.AbstractConnection.__init__).parameters
    if "driver_info" in parameters:  # since redis-py 7.1, which warns of the two older names
        return {"protocol": 2, "driver_info": None}
    return {"protocol": 2, "lib_name": None, "lib_version": None}


_SHORTEST_HANDSHAKE = _shortest_handshake()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One lock server of any topology. ``kwargs`` open a connection to any of its nodes."""

    topology: Topology
    addresses: tuple[Address, ...]
    # Not shown: they have the password.
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    transport: Transport = "tcp"
    service: str = ""
    sentinel_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_transport: Transport = "tcp"
    # The class of the user's client; None for redis-py's own.
    connection_class: type | None = None
    # How many connections the user's pool may open; 0 if it has no limit.
    max_connections: int = 0
    # Nodes whose version was checked; all stores of a server share the knowledge.
    checked: set[Address] = field(default_factory=set, compare=False)

    @property
    def is_in_process(self) -> bool:
        """True for fakeredis, which has neither sockets nor timeouts."""
        return self.addresses == (IN_PROCESS,)

    @property
    def url(self) -> str:
        """Its address as a URL without user, password and options."""
        if self.transport == "unix":
            return f"unix://{self.addresses[0][0]}?db={self.kwargs.get('db') or 0}"
        scheme = "rediss" if self.transport == "tls" else "redis"
        hosts = ",".join(map(describe_address, self.addresses))
        path = {"cluster": "", "sentinel": f"{self.service}/{self.kwargs.get('db') or 0}"}
        kind = "" if self.topology == "single" else f"+{self.topology}"
        return f"{scheme}{kind}://{hosts}/{path.get(self.topology, self.kwargs.get('db') or 0)}"

    @property
    def address(self) -> str:
        """Host and port, or the socket's path; of several nodes all that are known."""
        return ", ".join(map(describe_address, self.addresses))

    def __str__(self) -> str:
        kind = "" if self.topology == "single" else f"{self.topology} "
        return f"{kind}lock server at {self.address}"

    def connection(self, address: Address, timeout: float | None, *, asyncio: bool = False) -> Any:
        """Make an unconnected redis-py connection; each step of connecting may take ``timeout``."""
        kwargs = {**_SHORTEST_HANDSHAKE, **self._kwargs_for(address, asyncio)}
        kwargs |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        if self.transport != "unix" and not self.is_in_process:
            kwargs |= {"host": address[0], "port": address[1]}
        if self.transport_for(address) == "tls":
            kwargs = _with_hostname_check(kwargs)
        connection_class = self._class_for(address, asyncio)
        accepted = _parameters(connection_class)
        if not self.is_in_process:
            connection_class = (resetting if asyncio else bounded)(connection_class)
        connection = connection_class(**{key: kwargs[key] for key in kwargs if key in accepted})
        if self.is_in_process:
            connection.state = ExchangeState()
        return connection

    def _class_for(self, address: Address, asyncio: bool) -> Any:
        module: Any = async_connection if asyncio else sync_connection
        if self.connection_class and self._is_for(asyncio) and not self._is_sentinel(address):
            return self.connection_class
        transport = self.transport_for(address)
        if transport == "unix":
            return module.UnixDomainSocketConnection
        return module.SSLConnection if transport == "tls" else module.Connection

    def _kwargs_for(self, address: Address, asyncio: bool) -> Mapping[str, Any]:
        kwargs = self.sentinel_kwargs if self._is_sentinel(address) else self.kwargs
        return kwargs if self._is_for(asyncio) else common(kwargs)

    def _is_for(self, asyncio: bool) -> bool:
        """Return False if the user's client is of the other kind: its class is of no use."""
        custom = self.connection_class
        return custom is None or _is_async(custom) == asyncio

    def transport_for(self, address: Address) -> Transport:
        return self.sentinel_transport if self._is_sentinel(address) else self.transport

    def _is_sentinel(self, address: Address) -> bool:
        return self.topology == "sentinel" and address in self.addresses


def describe_address(address: Address) -> str:
    return f"{address[0]}:{address[1]}" if address[1] else address[0]


def _with_hostname_check(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Check the host of a certificate, which redis-py before 6 does only if it is told so."""
    if kwargs.get("ssl_cert_reqs", "required") in (None, "none", ssl.CERT_NONE):
        return kwargs
    return {"ssl_check_hostname": True, **kwargs}


def from_client(client: Any) -> ServerConfig:
    """Describe the server of a redis-py client, sync or async."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _from_cluster(client)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        what = "a text" if isinstance(client, str | bytes) else repr(client)  # it has the password
        raise LockUsageError(f"{what} is no redis-py client; give one, or a URL to from_url")
    if hasattr(pool, "sentinel_manager"):
        return _from_sentinel(pool)
    kwargs = _usable(pool.connection_kwargs)
    custom, limit = pool.connection_class, _limit(pool.max_connections)
    if _is_fake(custom):
        return ServerConfig("single", (IN_PROCESS,), kwargs, connection_class=custom)
    if "path" in kwargs:
        addresses: tuple[Address, ...] = ((str(kwargs["path"]), 0),)
        transport: Transport = "unix"
    else:
        addresses = ((kwargs.pop("host", "localhost"), int(kwargs.pop("port", 6379))),)
        transport = _transport(custom)
    return ServerConfig(
        "single", addresses, kwargs, transport, connection_class=custom, max_connections=limit
    )


def _from_sentinel(pool: Any) -> ServerConfig:
    """Describe a server behind Sentinels; the router, not redis-py, looks up the primary."""
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    sentinels = [of_sentinel.connection_kwargs for of_sentinel in pools]
    return ServerConfig(
        "sentinel",
        tuple((s["host"], int(s["port"])) for s in sentinels),
        _without_address(pool.connection_kwargs),
        _transport(pool.connection_class),
        service=pool.service_name,
        sentinel_kwargs=_without_address(sentinels[0]),
        sentinel_transport=_transport(pools[0].connection_class),
        connection_class=_without_lookup(pool.connection_class),
        max_connections=_limit(pool.max_connections),
    )


def _from_cluster(client: Any) -> ServerConfig:
    manager = client.nodes_manager
    nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
    kwargs = getattr(manager, "connection_kwargs", None) or client.connection_kwargs
    custom = kwargs.get("connection_class")
    tls = bool(kwargs.get("ssl")) or _transport(custom) == "tls"
    module: Any = (
        async_connection if isinstance(client, redis.asyncio.RedisCluster) else sync_connection
    )
    return ServerConfig(
        "cluster",
        nodes,
        _without_address(kwargs),
        "tls" if tls else "tcp",
        connection_class=custom or (module.SSLConnection if tls else module.Connection),
        max_connections=_limit(kwargs.get("max_connections")),
    )


def _without_lookup(connection_class: Any) -> Any:
    """Return the connection class, or redis-py's plain one for those that ask a Sentinel first."""
    managed = (
        redis.sentinel.SentinelManagedConnection,
        redis.asyncio.sentinel.SentinelManagedConnection,
    )
    if not issubclass(connection_class, managed):
        return connection_class
    module: Any = async_connection if _is_async(connection_class) else sync_connection
    return module.SSLConnection if _transport(connection_class) == "tls" else module.Connection


def _usable(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a user's pool that a connection of ours gets too."""
    return {
        key: value
        for key, value in kwargs.items()
        if key not in _REPLACED and not key.startswith(("maint", "orig_")) and value is not None
    }


def _without_address(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _usable(kwargs).items() if key not in ("host", "port")}


def common(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a URL or an option of Celery may give to a connection."""
    return {
        key: value
        for key, value in kwargs.items()
        if (key in _COMMON or key.startswith("ssl_")) and value is not None
    }


def _limit(max_connections: int | None) -> int:
    """Return the limit of a pool, or 0; redis-py before 8 writes "no limit" as 2 ** 31."""
    return max_connections if max_connections and max_connections < 2**31 else 0


@cache
def _parameters(connection_class: type) -> frozenset[str]:
    """Return the names of all arguments that a connection class and its bases take."""
    return frozenset(
        name
        for base in connection_class.__mro__
        if "__init__" in vars(base)
        for name in inspect.signature(vars(base)["__init__"]).parameters
    )


def _transport(connection_class: Any) -> Literal["tcp", "tls"]:
    tls = (sync_connection.SSLConnection, async_connection.SSLConnection)
    return (
        "tls" if isinstance(connection_class, type) and issubclass(connection_class, tls) else "tcp"
    )


def _is_async(connection_class: type) -> bool:
    return issubclass(connection_class, async_connection.AbstractConnection)


def _is_fake(connection_class: type) -> bool:
    return any(base.__module__.split(".")[0] == "fakeredis" for base in connection_class.__mro__)
