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
from dataclasses import dataclass, field, replace
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

_ASK_SENTINEL = (
    redis.sentinel.SentinelManagedConnection,
    redis.asyncio.sentinel.SentinelManagedConnection,
)
IN_PROCESS: Address = ("in this process", 0)

# Arguments of a user's client that we set ourselves, or that belong to its pool or client.
_REPLACED = {
    *("socket_timeout", "socket_connect_timeout", "retry", "retry_on_timeout", "retry_on_error"),
    *("health_check_interval", "decode_responses", "lib_name", "lib_version", "driver_info"),
    *("max_connections", "timeout", "ssl", "connection_class", "connection_pool"),
    *("event_dispatcher", "himport_registry", "oss_cluster_maint_notifications_handler"),
}
# Arguments that only fit connections of one kind, blocking or awaited.
_OF_ONE_KIND = ("redis_connect_func", "parser_class", "command_packer")


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
    # Whether the user's client is one of asyncio: its class is of no use to a blocking store.
    is_async: bool | None = None
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
        connection_class = self._class_for(address, asyncio)
        accepted = _parameters(connection_class)
        # Without its name and version a connection needs two round trips less.
        unsaid = ("driver_info",) if "driver_info" in accepted else ("lib_name", "lib_version")
        kwargs = {"protocol": 2, **self._kwargs_for(address, asyncio), **dict.fromkeys(unsaid)}
        kwargs |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        if not self.is_in_process:
            connection_class = (resetting if asyncio else bounded)(connection_class)
        connection = connection_class(**{key: kwargs[key] for key in kwargs if key in accepted})
        connection.state = ExchangeState()
        return connection

    def _kwargs_for(self, address: Address, asyncio: bool) -> dict[str, Any]:
        kwargs = dict(self.sentinel_kwargs if self._is_sentinel(address) else self.kwargs)
        if self.is_async not in (None, asyncio):
            kwargs = {key: value for key, value in kwargs.items() if key not in _OF_ONE_KIND}
        if self.transport != "unix" and not self.is_in_process:
            kwargs |= {"host": address[0], "port": address[1]}
        if kwargs.get("ssl_cert_reqs", "required") not in (None, "none", ssl.CERT_NONE):
            # redis-py before 6 checks the host of a certificate only if it is told so.
            kwargs.setdefault("ssl_check_hostname", True)
        return kwargs

    def _class_for(self, address: Address, asyncio: bool) -> Any:
        if self.connection_class and self.is_async == asyncio and not self._is_sentinel(address):
            return self.connection_class
        module: Any = async_connection if asyncio else sync_connection
        names = {"tcp": "Connection", "tls": "SSLConnection", "unix": "UnixDomainSocketConnection"}
        return getattr(module, names[self.transport_for(address)])

    def transport_for(self, address: Address) -> Transport:
        return self.sentinel_transport if self._is_sentinel(address) else self.transport

    def _is_sentinel(self, address: Address) -> bool:
        return self.topology == "sentinel" and address in self.addresses


def describe_address(address: Address) -> str:
    return f"{address[0]}:{address[1]}" if address[1] else address[0]


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
    return from_pool(pool)


def from_pool(pool: Any) -> ServerConfig:
    """Describe the one server of a pool."""
    kwargs, custom = pool.connection_kwargs, pool.connection_class
    if any(base.__module__.split(".")[0] == "fakeredis" for base in custom.__mro__):
        address = IN_PROCESS
    elif "path" in kwargs:
        address = (str(kwargs["path"]), 0)
    else:
        address = (kwargs.get("host", "localhost"), int(kwargs.get("port", 6379)))
    return ServerConfig(
        "single",
        (address,),
        usable(kwargs),
        "unix" if "path" in kwargs else _transport(custom),
        connection_class=custom,
        is_async=issubclass(custom, async_connection.AbstractConnection),
        max_connections=_limit(pool.max_connections),
    )


def _from_sentinel(pool: Any) -> ServerConfig:
    """Describe a server behind Sentinels; the router, not redis-py, looks up the primary."""
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    sentinels = [from_pool(of_sentinel) for of_sentinel in pools]
    asks_sentinel = issubclass(pool.connection_class, _ASK_SENTINEL)
    return replace(
        from_pool(pool),
        topology="sentinel",
        addresses=tuple(sentinel.addresses[0] for sentinel in sentinels),
        service=pool.service_name,
        sentinel_kwargs=sentinels[0].kwargs,
        sentinel_transport=sentinels[0].transport,
        connection_class=None if asks_sentinel else pool.connection_class,
    )


def _from_cluster(client: Any) -> ServerConfig:
    manager = client.nodes_manager
    kwargs = getattr(manager, "connection_kwargs", None) or client.connection_kwargs
    custom = kwargs.get("connection_class")
    tls = kwargs.get("ssl") or (custom and _transport(custom) == "tls")
    return ServerConfig(
        "cluster",
        tuple((node.host, int(node.port)) for node in manager.startup_nodes.values()),
        usable(kwargs),
        "tls" if tls else "tcp",
        connection_class=custom,
        is_async=isinstance(client, redis.asyncio.RedisCluster),
        max_connections=_limit(kwargs.get("max_connections")),
    )


def usable(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a user's pool, or of a URL, that a connection of ours gets too."""
    return {
        key: value
        for key, value in kwargs.items()
        if key not in _REPLACED and not key.startswith(("maint", "orig_")) and value is not None
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


def _transport(connection_class: type) -> Transport:
    tls = (sync_connection.SSLConnection, async_connection.SSLConnection)
    return "tls" if issubclass(connection_class, tls) else "tcp"
