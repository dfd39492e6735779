"""``app.conf`` becomes frozen :class:`Settings`: the only place where setting names exist.

Nothing of Celery is imported: an app is anything with a ``conf``. A setting that was not made is
read with its default here and never written back, so the user's own value always wins.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_locks import options as lock_options
from celery_locks.errors import LockUsageError
from celery_locks.store.verbs import DEFAULT_PREFIX

PREFIX = "locks_"
_OWN = (
    "url",
    "prefix",
    "shards",
    "keep_invisible",
    "done_ttl",
    "events",
    "show_arguments",
    "url_options",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the app says about its locks; ``task`` are the defaults of every task's options."""

    url: str
    url_options: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = DEFAULT_PREFIX
    shards: int | None = None
    keep_invisible: bool = True
    done_ttl: float = 600.0
    events: bool = True
    show_arguments: bool = False
    task: Mapping[str, Any] = field(default_factory=dict)


def of(app: Any) -> Settings:
    said = {
        word: app.conf.get(PREFIX + word)
        for word in (*_OWN, *lock_options.WORDS)
        if app.conf.get(PREFIX + word) is not None
    }
    task = {word: said.pop(word) for word in lock_options.WORDS if word in said}
    task = lock_options.checked(task, f"app.conf.{PREFIX}…")
    if not isinstance(said.get("show_arguments", False), bool):
        raise LockUsageError(
            f"app.conf.{PREFIX}show_arguments is {said['show_arguments']!r}; write True or False"
        )
    if "url" not in said:
        said["url"], said["url_options"] = _server_of(app.conf)
    return Settings(task=task, **said)


def _server_of(conf: Any) -> tuple[str, dict[str, Any]]:
    """Without ``locks_url``: the broker's Redis, else the result backend's."""
    broker = _url(conf, "broker_url")
    if is_redis(broker):
        options = dict(conf.get("broker_transport_options") or {})
        return broker, _site_options(options, conf.get("broker_use_ssl"))
    backend = _url(conf, "result_backend")
    if is_redis(backend):
        options = dict(conf.get("result_backend_transport_options") or {})
        return backend, _site_options(options, conf.get("redis_backend_use_ssl"))
    raise LockUsageError(
        "no Redis to keep the locks in: set app.conf.locks_url = 'redis://…' "
        "(neither the broker nor the result backend is a Redis)"
    )


def _url(conf: Any, word: str) -> str:
    """Asked for as an attribute first: that way Celery heeds CELERY_BROKER_URL and its like."""
    return str(getattr(conf, word, None) or conf.get(word) or "")


def is_redis(url: str) -> bool:
    return url.startswith(
        ("redis://", "rediss://", "redis+socket://", "sentinel://", "sentinels://")
    )


def _site_options(transport: Mapping[str, Any], tls: Any) -> dict[str, Any]:
    """What of Celery's options says where and who the server is."""
    kept = {
        word: transport[word] for word in ("master_name", "sentinel_kwargs") if word in transport
    }
    if isinstance(tls, Mapping):
        kept |= {word: value for word, value in tls.items() if word.startswith("ssl_")}
    elif tls:
        kept["ssl_cert_reqs"] = ssl.CERT_REQUIRED
    return kept
