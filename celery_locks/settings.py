"""Settings: reads ``app.conf`` into :class:`Settings`. Only this module knows setting names.

It does not import Celery: an app is anything with a ``conf``. The default of a setting is applied
here and never written back, so the user's own value always wins.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_locks import options as lock_options
from celery_locks.errors import LockUsageError
from celery_locks.types import DEFAULT_PREFIX

PREFIX = "locks_"
# Celery's own settings for a Redis: the URL, its options, and TLS.
_CELERY_SERVERS = (
    ("broker_url", "broker_transport_options", "broker_use_ssl"),
    ("result_backend", "result_backend_transport_options", "redis_backend_use_ssl"),
)
_OWN = (
    *("url", "url_options", "prefix", "shards", "guard_after_loss"),
    *("keep_invisible", "done_ttl", "recover_after", "events", "show_arguments"),
    *("beat_scheduler", "beat_name", "beat_ttl"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The lock settings of an app; ``task`` has the default options of every task.

    ``url``: the lock server; by default the broker if it is a Redis, else the result backend.
    ``url_options``: options of the connection to ``url``, as redis-py names them; for a Sentinel
    ``master_name`` and ``sentinel_kwargs``. ``prefix``: begins every redis key. ``shards``: hash
    slots over which the locks are spread; by default 16 on a Cluster, else 1. Processes that share
    locks need the same prefix and shards.

    ``keep_invisible``: while a task with ``acks_late`` runs, keep its message invisible on a Redis
    broker, so that ``visibility_timeout`` need not be longer than the task. ``done_ttl``: seconds
    for which the end of a run is remembered, so that a copy of its message is dropped.
    ``recover_after``: seconds after which a message that is kept (``keep_message``) is searched
    for, and between two searches. ``events``: workers with ``-E`` send Celery events about locks.
    ``show_arguments``: the page and the REST API show the arguments of running tasks.

    ``beat_scheduler``: the scheduler of which ``celery_locks.beat:SingleBeat`` runs one at a time,
    such as ``"django_celery_beat.schedulers:DatabaseScheduler"``; by default Celery's own, without
    its file. ``beat_name``: the name of its lock, by default ``beat:`` and the name of the app.
    ``beat_ttl``: seconds within which another beat takes over from one that died.

    ``guard_after_loss``: if the lock server lost its data, grant no lock until those who held it
    before have asserted it again, or for one ttl.
    """

    url: str = field(repr=False)  # it contains the password
    url_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    prefix: str = DEFAULT_PREFIX
    shards: int | None = None
    keep_invisible: bool = True
    done_ttl: float = 600.0
    recover_after: float = 60.0
    events: bool = True
    show_arguments: bool = False
    beat_scheduler: str | None = None
    beat_name: str | None = None
    beat_ttl: float = 15.0
    guard_after_loss: bool = True
    task: Mapping[str, Any] = field(default_factory=dict)


def of(app: Any) -> Settings:
    values = {
        name: app.conf.get(PREFIX + name)
        for name in (*_OWN, *lock_options.WORDS)
        if app.conf.get(PREFIX + name) is not None
    }
    task = {name: values.pop(name) for name in lock_options.WORDS if name in values}
    task = _checked(task)
    if not isinstance(values.get("show_arguments", False), bool):
        raise LockUsageError(
            f"app.conf.{PREFIX}show_arguments is {values['show_arguments']!r}; write True or False"
        )
    if "url" not in values:
        values["url"], values["url_options"] = _server_of(app.conf)
    elif "ssl" not in (given := values.get("url_options", {})):
        values["url_options"] = {**_tls_of_same_server(app.conf, values["url"]), **given}
    return Settings(task=task, **values)


def task_options(app: Any) -> dict[str, Any]:
    """Return the default options of every task; it needs no server."""
    values = {name: app.conf.get(PREFIX + name) for name in lock_options.WORDS}
    return _checked({name: value for name, value in values.items() if value is not None})


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    return lock_options.checked(values, f"app.conf.{PREFIX}…")


def _server_of(conf: Any) -> tuple[str, dict[str, Any]]:
    """Return the server to use without ``locks_url``: the broker's, else the result backend's."""
    for url_setting, options_setting, tls_setting in _CELERY_SERVERS:
        url = _url(conf, url_setting)
        if is_redis(url):
            options = conf.get(options_setting) or {}
            return url, _server_options(options, conf.get(tls_setting), url, tls_setting)
    raise LockUsageError(
        "no Redis to keep the locks in: set app.conf.locks_url = 'redis://…' "
        "(neither the broker nor the result backend is a Redis)"
    )


def _tls_of_same_server(conf: Any, url: str) -> dict[str, Any]:
    """Return the TLS options of the broker or result backend at the same host and port.

    Without them, a ``locks_url`` that differs only in its database would send the password in
    clear.
    """
    for url_setting, _, tls_setting in _CELERY_SERVERS:
        other = _url(conf, url_setting)
        if is_redis(other) and _host_and_port(other) == _host_and_port(url):
            return _tls_options(conf.get(tls_setting), other, tls_setting)
    return {}


def _host_and_port(url: str) -> tuple[str, str]:
    """Return the first host and port as written, without login and database."""
    hosts = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    host, _, port = re.split("[,;]", hosts, maxsplit=1)[0].partition(":")
    return host or "localhost", port or "6379"


def _url(conf: Any, name: str) -> str:
    """Read it as an attribute first: then Celery applies CELERY_BROKER_URL and similar ones."""
    return str(getattr(conf, name, None) or conf.get(name) or "")


def is_redis(url: str) -> bool:
    return url.startswith(
        ("redis://", "rediss://", "redis+socket://", "sentinel://", "sentinels://")
    )


def _server_options(
    transport: Mapping[str, Any], tls: Any, url: str, setting: str
) -> dict[str, Any]:
    """Return those of Celery's options that identify the server."""
    kept = {
        name: transport[name] for name in ("master_name", "sentinel_kwargs") if name in transport
    }
    return kept | _tls_options(tls, url, setting)


def _tls_options(tls: Any, url: str, setting: str) -> dict[str, Any]:
    """Return the TLS options; a mapping that is not empty means TLS, as for kombu and Celery."""
    if isinstance(tls, Mapping):
        ours = {name: value for name, value in tls.items() if name.startswith("ssl_")}
        return {"ssl": True, **ours} if tls else {}
    if tls and not url.startswith(("rediss://", "sentinels://")):
        raise LockUsageError(
            f"{setting} is {tls!r}, which kombu ignores for a Redis: it connects without TLS. "
            f"Write a mapping such as {setting} = {{'ssl_cert_reqs': ssl.CERT_REQUIRED}}, or "
            "leave it out"
        )
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED} if tls else {}
