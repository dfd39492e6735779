"""Where the lock server is: a URL or a client becomes a :class:`Site`.

A site is data: how to open a connection (redis-py's classes and arguments, less its timeouts and
retries, which are ours to set) and which of three shapes the server has. ``router.py`` finds the
address to talk to from it.

URLs: ``redis://``, ``rediss://`` and ``unix://`` as redis-py reads them, and for the two shapes
that redis-py has no URL for, ``redis+sentinel://[user:password@]host:port,host:port/service/db``
and ``redis+cluster://[user:password@]host:port,host:port`` (``rediss+…`` for TLS).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection as aio_connection
import redis.connection as sync_connection

from celery_locks.errors import LockUsageError
from celery_locks.store.resp import pack

Address = tuple[str, int]
Shape = Literal["single", "sentinel", "cluster"]

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
# Said in ``Site.greetings``, so kept from redis-py.
_GREETED = ("username", "password", "client_name", "db")


def _lean() -> dict[str, Any]:
    """Spares each new connection the round trips in which redis-py would introduce itself."""
    takes = inspect.signature(sync_connection.AbstractConnection.__init__).parameters
    if "driver_info" in takes:  # its name since redis-py 7.1, which warns of the older two
        return {"protocol": 2, "driver_info": None}
    return {"protocol": 2, "lib_name": None, "lib_version": None}


_LEAN = _lean()


@dataclass(frozen=True, slots=True)
class Site:
    """One lock server, of whatever shape. ``kwargs`` open a connection to any of its nodes."""

    shape: Shape
    addresses: tuple[Address, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    transport: Literal["tcp", "tls", "unix"] = "tcp"
    service: str = ""
    sentinel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    # Nodes whose version was found good; all stores of a site share the knowledge.
    checked: set[Address] = field(default_factory=set, compare=False)

    @property
    def address(self) -> str:
        """Host and port, or the socket's path; of several nodes all that are known."""
        return ", ".join(f"{host}:{port}" if port else host for host, port in self.addresses)

    def __str__(self) -> str:
        return (
            f"{self.shape} lock server at {self.address}"
            if self.shape != "single"
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
        cls = module.SSLConnection if self.transport == "tls" else module.Connection
        return cls(**kwargs)

    def greetings(self, address: Address) -> list[bytes]:
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
        asks_sentinel = self.shape == "sentinel" and address in self.addresses
        return self.sentinel_kwargs if asks_sentinel else self.kwargs


def _text(value: str | bytes) -> str:
    """redis-py takes a login as bytes too."""
    return value.decode() if isinstance(value, bytes) else value


def from_url(url: str, options: Mapping[str, Any] | None = None) -> Site:
    """``options`` are those of Celery that no URL carries: master_name, sentinel_kwargs, ssl_…"""
    site = _from_url(_translated(url, options or {}))
    tls = {word: value for word, value in (options or {}).items() if word.startswith("ssl_")}
    return replace(
        site,
        kwargs=_lower_case_tls({**site.kwargs, **tls}) if site.transport == "tls" else site.kwargs,
        sentinel_kwargs=_kept((options or {}).get("sentinel_kwargs") or site.sentinel_kwargs),
    )


def _translated(url: str, options: Mapping[str, Any]) -> str:
    """Celery's ways of writing a unix socket and a Sentinel, in ours."""
    if url.startswith("redis+socket://"):
        return url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=")
    if not url.startswith(("sentinel://", "sentinels://")):
        return url
    parts = [urlsplit(part) for part in url.split(";")]
    login, at, _ = parts[0].netloc.rpartition("@")
    hosts = ",".join(part.netloc.rpartition("@")[2] for part in parts)
    base = "rediss" if parts[0].scheme == "sentinels" else "redis"
    service, db = options.get("master_name", ""), parts[0].path.strip("/") or "0"
    return f"{base}+sentinel://{login}{at}{hosts}/{service}/{db}"


def _lower_case_tls(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Celery also writes ``ssl_cert_reqs=CERT_REQUIRED`` where redis-py wants ``required``."""
    wanted = kwargs.get("ssl_cert_reqs")
    if isinstance(wanted, str):
        kwargs["ssl_cert_reqs"] = wanted.removeprefix("CERT_").lower()
    return kwargs


def _from_url(url: str) -> Site:
    base, _, shape = url.partition("://")[0].partition("+")
    shapes = ("",) if base == "unix" else ("", "sentinel", "cluster")
    if base not in ("redis", "rediss", "unix") or shape not in shapes:
        raise LockUsageError(
            f"{_hidden(url)!r} is no lock server URL; write redis://, rediss://, unix://, "
            "redis+sentinel:// or redis+cluster://"
        )
    if not shape:
        return _single(url)
    return _several(url, base, "sentinel" if shape == "sentinel" else "cluster")


def _hidden(url: str) -> str:
    """The URL for messages, without what may be a password: the login and the query."""
    head, at, tail = url.rpartition("@")
    scheme = head.split("://")[0] + "://" if "://" in head else ""
    place, query, _ = tail.partition("?")
    return (f"{scheme}…@" if at else "") + place + ("?…" if query else "")


def _single(url: str) -> Site:
    try:
        parsed = dict(sync_connection.parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError as error:
        # "Port could not be cast …" quotes what it read, half a password if that has a slash in it.
        why = "is its password percent-encoded?" if "@" in url else error
        raise LockUsageError(f"{_hidden(url)!r} is no lock server URL: {why}") from None
    kwargs = _kept(parsed)
    if "path" in kwargs:
        return Site("single", ((str(kwargs["path"]), 0),), kwargs, "unix")
    address = (kwargs.pop("host", "localhost"), int(kwargs.pop("port", 6379)))
    return Site("single", (address,), kwargs, "tls" if url.startswith("rediss:") else "tcp")


def _several(url: str, base: str, shape: Literal["sentinel", "cluster"]) -> Site:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise LockUsageError(f"{_hidden(url)!r} is no lock server URL") from None
    login, at, hosts = parts.netloc.rpartition("@")
    path = parts.path.strip("/").split("/")
    db = path[1] if shape == "sentinel" and len(path) > 1 else "0"
    query = f"?{parts.query}" if parts.query else ""
    sites = [
        _single(f"{base}://{login}{at}{host}/{db}{query}") for host in hosts.split(",") if host
    ]
    if not sites or (shape == "sentinel" and not path[0]):
        raise LockUsageError(f"{_hidden(url)!r} must name its hosts and, for Sentinel, the service")
    addresses = tuple(site.addresses[0] for site in sites)
    return Site(
        shape,
        addresses,
        sites[0].kwargs,
        sites[0].transport,
        service=path[0] if shape == "sentinel" else "",
        # The login is the servers'; how to trust a certificate is the sentinels' too.
        sentinel_kwargs={k: v for k, v in sites[0].kwargs.items() if k.startswith("ssl_")},
    )


def from_client(client: Any) -> Site | None:
    """The site of a redis-py client, sync or async; None for one without sockets (fakeredis)."""
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _from_cluster(client)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise LockUsageError(f"{client!r} is no redis-py client; give one, or a URL to from_url")
    if hasattr(pool, "sentinel_manager"):
        return _from_sentinel(pool)
    if not _has_socket(pool.connection_class):
        return None
    kwargs = _kept(pool.connection_kwargs)
    if "path" in kwargs:
        return Site("single", ((str(kwargs["path"]), 0),), kwargs, "unix")
    address = (kwargs.pop("host", "localhost"), int(kwargs.pop("port", 6379)))
    return Site("single", (address,), kwargs, _transport(pool.connection_class))


def _from_sentinel(pool: Any) -> Site:
    sentinels = [s.connection_pool.connection_kwargs for s in pool.sentinel_manager.sentinels]
    return Site(
        "sentinel",
        tuple((s["host"], int(s["port"])) for s in sentinels),
        _placeless(pool.connection_kwargs),
        _transport(pool.connection_class),
        service=pool.service_name,
        sentinel_kwargs=_placeless(sentinels[0]),
    )


def _from_cluster(client: Any) -> Site:
    manager = client.nodes_manager
    nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
    kwargs = getattr(manager, "connection_kwargs", None) or client.connection_kwargs
    tls = bool(kwargs.get("ssl")) or _transport(kwargs.get("connection_class")) == "tls"
    return Site("cluster", nodes, _placeless(kwargs), "tls" if tls else "tcp")


def _kept(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in kwargs.items()
        if (key in _KEPT or key.startswith("ssl_")) and value is not None
    }


def _placeless(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in _kept(kwargs).items() if key not in ("host", "port")}


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
