"""Make a :class:`ServerConfig` from a URL and Celery's options that go with it.

URLs: ``redis://``, ``rediss://`` and ``unix://`` as redis-py reads them, and for the two
topologies that redis-py has no URL for, ``redis+sentinel://[user:password@]host:port,host:port/service/db``
and ``redis+cluster://[user:password@]host:port,host:port`` (``rediss+…`` for TLS).

TLS is never dropped: where it is asked for beside a URL (``ssl`` and ``ssl_…`` in the options) the
connection has it, and options that only TLS can use are refused without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

import redis

from celery_locks.errors import LockUsageError
from celery_locks.store.server_config import ServerConfig, Transport, from_pool, usable


def from_url(url: str, options: Mapping[str, Any] | None = None) -> ServerConfig:
    """Describe the server of a URL; ``options`` are those of Celery that no URL carries.

    ``ssl`` and ``ssl_…`` are about the server, and not about the sentinels that know its address:
    kombu and Celery's result backend speak TLS to those only if ``sentinel_kwargs`` say so.
    """
    options = options or {}
    server = _from_url(_translated(url, options))
    tls = {key: value for key, value in options.items() if key.startswith("ssl")}
    kwargs, transport = _with_options(server.kwargs, server.transport, tls)
    sentinel_kwargs, sentinel_transport = _with_options(
        server.sentinel_kwargs, server.sentinel_transport, options.get("sentinel_kwargs") or {}
    )
    return replace(
        server,
        kwargs=kwargs,
        transport=transport,
        sentinel_kwargs=sentinel_kwargs,
        sentinel_transport=sentinel_transport,
    )


def _with_options(
    of_url: Mapping[str, Any], transport: Transport, options: Mapping[str, Any]
) -> tuple[dict[str, Any], Transport]:
    """Add options to the arguments that a URL gives, and TLS if they ask for it."""
    kwargs = {**of_url, **usable(options)}
    wanted = kwargs.get("ssl_cert_reqs")
    if isinstance(wanted, str):  # Celery's CERT_REQUIRED is redis-py's "required"
        kwargs["ssl_cert_reqs"] = wanted.removeprefix("CERT_").lower()
    if transport == "tls" or (transport == "tcp" and options.get("ssl")):
        return kwargs, "tls"
    given = [key for key in kwargs if key.startswith("ssl_")]
    if given or options.get("ssl"):
        what = "a unix socket" if transport == "unix" else "the lock server's URL"
        raise LockUsageError(
            f"{', '.join(given) or 'ssl'} is an option of TLS, and {what} has none; write "
            "rediss:// (rediss+sentinel://, rediss+cluster://), or leave it out"
        )
    return kwargs, transport


def _translated(url: str, options: Mapping[str, Any]) -> str:
    """Rewrite Celery's URLs of a unix socket and of Sentinels as ours."""
    if url.startswith("redis+socket://"):
        return url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=")
    if not url.startswith(("sentinel://", "sentinels://")):
        return url
    try:
        parts = [urlsplit(part) for part in url.split(";")]
    except ValueError:
        raise _unreadable(url) from None
    if not all(part.netloc for part in parts) or any(map(_may_be_cut, url.split(";"))):
        raise _unreadable(url)
    login, at, _ = parts[0].netloc.rpartition("@")
    hosts = ",".join(part.netloc.rpartition("@")[2] for part in parts)
    base = "rediss" if parts[0].scheme == "sentinels" else "redis"
    service, db = options.get("master_name", ""), parts[0].path.strip("/") or "0"
    return f"{base}+sentinel://{login}{at}{hosts}/{service}/{db}"


def _from_url(url: str) -> ServerConfig:
    base, _, topology = url.partition("://")[0].partition("+")
    topologies = ("",) if base == "unix" else ("", "sentinel", "cluster")
    if base not in ("redis", "rediss", "unix") or topology not in topologies:
        raise LockUsageError(
            f"{_scheme(url)} is no lock server URL; write redis://, rediss://, unix://, "
            "redis+sentinel:// or redis+cluster://"
        )
    if _may_be_cut(url):
        raise _unreadable(url)
    if not topology:
        return _single(url, url)
    return _several(url, base, "sentinel" if topology == "sentinel" else "cluster")


def _scheme(url: str) -> str:
    """Return all that an error may show of a URL: if it cannot be read, any part may be secret.

    A password with a slash in it, or one without the @ behind it, looks like a host, port or path.
    """
    found = re.match(r"[a-z]+(\+[a-z]+)?://", url)
    return f"'{found[0]}…'" if found else "a text that does not begin with redis:// or the like"


def _may_be_cut(url: str) -> bool:
    """Return True if a password that is not percent-encoded may have cut the URL short."""
    _, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    is_unix = url.startswith("unix:")
    has_stray_at = "@" in rest[len(authority) :] and not (is_unix and not authority)
    return has_stray_at or (is_unix and bool(authority) and "@" not in authority)


def _unreadable(url: str) -> LockUsageError:
    return LockUsageError(
        f"the lock server URL {_scheme(url)} cannot be read: a port must be a number, and a "
        "password or user name must be percent-encoded (/ is %2F, @ is %40, # is %23, ? is %3F) "
        "and followed by @"
    )


def _single(url: str, original: str) -> ServerConfig:
    """Read a URL of one server; ``original`` is what the user wrote."""
    try:
        pool = redis.ConnectionPool.from_url(url, max_connections=2**31)  # as if without
    except ValueError:
        raise _unreadable(original) from None
    if "ssl" in pool.connection_kwargs:
        raise LockUsageError(f"the lock server URL {_scheme(original)} has ssl=; write rediss://")
    return replace(from_pool(pool), connection_class=None, is_async=None)


def _several(url: str, base: str, topology: Literal["sentinel", "cluster"]) -> ServerConfig:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(url) from None
    login, at, hosts = parts.netloc.rpartition("@")
    path = parts.path.strip("/").split("/")
    db = path[1] if topology == "sentinel" and len(path) > 1 else "0"
    query = f"?{parts.query}" if parts.query else ""
    servers = [
        _single(f"{base}://{login}{at}{host}/{db}{query}", url) for host in hosts.split(",") if host
    ]
    if not servers or (topology == "sentinel" and not path[0]):
        raise LockUsageError(
            f"the lock server URL {_scheme(url)} must name its hosts and, for Sentinel, the "
            "service: redis+sentinel://host:26379,host:26379/service/0"
        )
    first = servers[0]
    return replace(
        first,
        topology=topology,
        addresses=tuple(server.addresses[0] for server in servers),
        service=path[0] if topology == "sentinel" else "",
        # The login is the servers'; how to trust a certificate is the sentinels' too.
        sentinel_kwargs={k: v for k, v in first.kwargs.items() if k.startswith("ssl_")},
        sentinel_transport=first.transport,
    )
