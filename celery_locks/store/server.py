"""Where the lock server is: a :class:`Site`, made of a client here and of a URL in ``url.py``.

A site is data: how to open a connection (redis-py's classes and arguments, less its timeouts and
retries, which are ours to set) and which of three shapes the server has. ``router.py`` finds the
address to talk to from it.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import redis
import redis.asyncio
import redis.asyncio.connection as aio_connection
import redis.connection as sync_connection

from celery_locks.errors import LockUsageError
from celery_locks.store.resp import pack

Address = tuple[str, int]
Topology = Literal["single", "sentinel", "cluster"]
Transport = Literal["tcp", "tls", "unix"]

# What says where and who; a user's timeouts, retries and decoding are not taken over.
_KEPT = (
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
)
# Said in ``Site.handshake``, so kept from redis-py.
_GREETED = ("username", "password", "client_name", "db")


def _lean() -> dict[str, Any]:
    """Spares each new connection the round trips in which redis-py would introduce itself."""
    takes = inspect.signature(sync_connection.AbstractConnection.__init__).parameters
    if "driver_info" in takes:  # its name since redis-py 7.1, which warns of the older two
        return {"protocol": 2, "driver_info": None}
    return {"protocol": 2, "lib_name": None, "lib_version": None}


_LEAN = _lean()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One lock server, of whatever shape. ``kwargs`` open a connection to any of its nodes."""

    topology: Topology
    addresses: tuple[Address, ...]
    # Not shown: they have the password.
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    transport: Transport = "tcp"
    service: str = ""
    sentinel_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_transport: Transport = "tcp"
    # Nodes whose version was found good; all stores of a site share the knowledge.
    checked: set[Address] = field(default_factory=set, compare=False)

    @property
    def url(self) -> str:
        """Where it is, as a URL without user, password and options."""
        if self.transport == "unix":
            return f"unix://{self.addresses[0][0]}?db={self.kwargs.get('db') or 0}"
        scheme = "rediss" if self.transport == "tls" else "redis"
        hosts = ",".join(f"{host}:{port}" if port else host for host, port in self.addresses)
        path = {"cluster": "", "sentinel": f"{self.service}/{self.kwargs.get('db') or 0}"}
        kind = "" if self.topology == "single" else f"+{self.topology}"
        return f"{scheme}{kind}://{hosts}/{path.get(self.topology, self.kwargs.get('db') or 0)}"

    @property
    def address(self) -> str:
        """Host and port, or the socket's path; of several nodes all that are known."""
        return ", ".join(f"{host}:{port}" if port else host for host, port in self.addresses)

    def __str__(self) -> str:
        return (
            f"{self.topology} lock server at {self.address}"
            if self.topology != "single"
            else f"lock server at {self.address}"
        )

    def connection(self, address: Address, timeout: float, *, asyncio: bool = False) -> Any:
        """An unconnected redis-py connection; each step of connecting may take ``timeout``."""
        module: Any = aio_connection if asyncio else sync_connection
        kwargs = {**_LEAN, **self._kwargs_for(address)}
        kwargs |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        for said_by_us in () if "credential_provider" in kwargs else _GREETED:
            kwargs.pop(said_by_us, None)
        if self.transport == "unix":
            return module.UnixDomainSocketConnection(**kwargs)
        kwargs |= {"host": address[0], "port": address[1]}
        if self.transport_for(address) == "tls":
            return module.SSLConnection(**_with_hostname_check(kwargs))
        return module.Connection(**kwargs)

    def handshake(self, address: Address) -> list[bytes]:
        """What a new connection says first, all at once and under our own deadline.

        redis-py would wait for each answer, and bounds the pauses in it rather than the whole: a
        server that drips would hold us for seconds. Only a credential provider is left to it.
        """
        kwargs = self._kwargs_for(address)
        if "credential_provider" in kwargs:
            return []
        login = [_text(kwargs[word]) for word in ("username", "password") if kwargs.get(word)]
        said = [pack("AUTH", *login)] if login else []
        if name := kwargs.get("client_name"):
            said.append(pack("CLIENT", "SETNAME", _text(name)))
        if db := kwargs.get("db"):
            said.append(pack("SELECT", db))
        return said

    def _kwargs_for(self, address: Address) -> Mapping[str, Any]:
        return self.sentinel_kwargs if self._is_sentinel(address) else self.kwargs

    def transport_for(self, address: Address) -> Transport:
        return self.sentinel_transport if self._is_sentinel(address) else self.transport

    def _is_sentinel(self, address: Address) -> bool:
        return self.topology == "sentinel" and address in self.addresses


def _with_hostname_check(kwargs: dict[str, Any]) -> dict[str, Any]:
    """redis-py before 6 accepts any trusted certificate, of whatever host, unless it is told so."""
    if kwargs.get("ssl_cert_reqs", "required") in (None, "none", ssl.CERT_NONE):
        return kwargs
    return {"ssl_check_hostname": True, **kwargs}


def _text(value: str | bytes) -> str:
    """redis-py takes a login as bytes too."""
    return value.decode() if isinstance(value, bytes) else value


def from_client(client: Any) -> ServerConfig | None:
    """The site of a redis-py client, sync or async; None for one without sockets (fakeredis)."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _from_cluster(client)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        what = "a text" if isinstance(client, str | bytes) else repr(client)  # it has the password
        raise LockUsageError(f"{what} is no redis-py client; give one, or a URL to from_url")
    if hasattr(pool, "sentinel_manager"):
        return _from_sentinel(pool)
    if not _has_socket(pool.connection_class):
        return None
    kwargs = kept(pool.connection_kwargs)
    if "path" in kwargs:
        return ServerConfig("single", ((str(kwargs["path"]), 0),), kwargs, "unix")
    address = (kwargs.pop("host", "localhost"), int(kwargs.pop("port", 6379)))
    return ServerConfig("single", (address,), kwargs, _transport(pool.connection_class))


def _from_sentinel(pool: Any) -> ServerConfig:
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    sentinels = [of_sentinel.connection_kwargs for of_sentinel in pools]
    return ServerConfig(
        "sentinel",
        tuple((s["host"], int(s["port"])) for s in sentinels),
        _placeless(pool.connection_kwargs),
        _transport(pool.connection_class),
        service=pool.service_name,
        sentinel_kwargs=_placeless(sentinels[0]),
        sentinel_transport=_transport(pools[0].connection_class),
    )


def _from_cluster(client: Any) -> ServerConfig:
    manager = client.nodes_manager
    nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
    kwargs = getattr(manager, "connection_kwargs", None) or client.connection_kwargs
    tls = bool(kwargs.get("ssl")) or _transport(kwargs.get("connection_class")) == "tls"
    return ServerConfig("cluster", nodes, _placeless(kwargs), "tls" if tls else "tcp")


def kept(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in kwargs.items()
        if (key in _KEPT or key.startswith("ssl_")) and value is not None
    }


def _placeless(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kept(kwargs).items() if key not in ("host", "port")}


def _transport(connection_class: Any) -> Literal["tcp", "tls"]:
    tls = (sync_connection.SSLConnection, aio_connection.SSLConnection)
    return (
        "tls" if isinstance(connection_class, type) and issubclass(connection_class, tls) else "tcp"
    )


def _has_socket(connection_class: type) -> bool:
    """fakeredis' connections are subclasses of redis-py's that read no socket."""
    base: Any = (
        aio_connection.AbstractConnection
        if issubclass(connection_class, aio_connection.AbstractConnection)
        else sync_connection.AbstractConnection
    )
    return getattr(connection_class, "read_response", None) is base.read_response
