"""What is set up wrongly, or may surprise: the server, the broker's settings, each task's options.

``error``: locks do not work, or may be lost. ``warning``: jobs may be lost, doubled or delayed.
``note``: as it was asked for, but good to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from celery_locks import settings
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUsageError
from celery_locks.integration.app import broker_trouble
from celery_locks.integration.naming import BY_ARGUMENTS, parameters_of
from celery_locks.integration.task import LockedTask
from celery_locks.options import LockOptions
from celery_locks.store.commands.admin import AdminCommands

OLDEST_REDIS = (6, 2)
_VISIBILITY = 3600.0  # kombu's default for Redis


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found, about ``where``: a task's name, "server", "broker" or "settings"."""

    level: Literal["error", "warning", "note"]
    where: str
    sentence: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def check(locks: Locks, app: Any) -> list[Finding]:
    """Everything that can be seen from here; asks the lock server and the broker, not workers."""
    app.finalize()
    app.loader.import_default_modules()
    return [
        *check_server(locks),
        *_connection(app),
        *_broker(app),
        *_tasks(app),
        *_shared_keys(app),
        *_examined(app),
    ]


def check_server(locks: Locks) -> list[Finding]:
    """The server alone, one finding for all shards that say the same."""
    said = [
        locks.perform(AdminCommands(locks.commands).server(root)) for root in locks.commands.roots
    ]
    found = (finding for answer in said for finding in _server(answer))
    return list(dict.fromkeys(found))


def _server(said: dict[str, str]) -> Iterator[Finding]:
    version = said.get("redis_version", "")
    if (numbers := re.match(r"(\d+)\.(\d+)", version)) is None:
        yield Finding("note", "server", "It does not say which version it is.")
    elif tuple(map(int, numbers.groups())) < OLDEST_REDIS:
        oldest = ".".join(map(str, OLDEST_REDIS))
        yield Finding("error", "server", f"It is version {version}; {oldest} is the oldest.")
    policy = said.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        sentence = f"maxmemory-policy is {policy}: under memory pressure held locks are evicted."
        yield Finding("error", "server", f"{sentence} Set noeviction or a volatile policy.")
    yield from _memory(said, policy)
    if said.get("role") == "slave":
        yield Finding("error", "server", "It is a replica: point locks_url at the primary.")


def _memory(said: dict[str, str], policy: str) -> Iterator[Finding]:
    used, most = int(said.get("used_memory") or 0), int(said.get("maxmemory") or 0)
    if most and used >= most and policy == "noeviction":
        sentence = f"It is full: {used:,} bytes are used and maxmemory is {most:,}, so it grants"
        yield Finding("error", "server", f"{sentence} no lock. Raise maxmemory, or remove data.")


def _connection(app: Any) -> Iterator[Finding]:
    if trouble := broker_trouble(app):
        sentence = "It cannot be reached, so nothing can be published and no worker gets a task"
        yield Finding("error", "broker", f"{sentence}: {trouble}")


def _examined(app: Any) -> Iterator[Finding]:
    """Which tasks were seen: one that is missing was not imported."""
    ours = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    locked = sorted(name for name, task in ours.items() if isinstance(task, LockedTask))
    unlocked = sorted(ours.keys() - set(locked))
    said = [f"{len(locked)} locked ({', '.join(locked)})" if locked else "none locked"]
    said += [f"{len(unlocked)} without a lock ({', '.join(unlocked)})"] if unlocked else []
    yield Finding("note", "settings", f"Tasks examined: {'; '.join(said)}.")


def _broker(app: Any) -> Iterator[Finding]:
    conf = app.conf
    if conf.task_always_eager:
        yield Finding("warning", "settings", "task_always_eager is on: no worker runs anything.")
    if not conf.worker_enable_remote_control:
        sentence = "worker_enable_remote_control is off: whether a holder lives cannot be asked."
        yield Finding("note", "settings", sentence)
    if conf.task_acks_late and not conf.task_reject_on_worker_lost:
        sentence = (
            "task_acks_late without task_reject_on_worker_lost: the job of a child that is killed "
            "counts as failed and is not run again."
        )
        yield Finding("note", "broker", sentence)


def _visibility_timeout(app: Any) -> float | None:
    """Of a Redis or SQS broker; others redeliver when the connection ends."""
    url = str(app.conf.broker_url or "")
    if not settings.is_redis(url) and not url.startswith("sqs"):
        return None
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout", _VISIBILITY))


def _tasks(app: Any) -> Iterator[Finding]:
    for name in sorted(app.tasks):
        task = app.tasks[name]
        if isinstance(task, LockedTask) and not name.startswith("celery."):
            yield from _task(app, task)


def _task(app: Any, task: Any) -> Iterator[Finding]:
    try:
        options: LockOptions = task.lock_options()
        if isinstance(options.key, str) and options.key != BY_ARGUMENTS:
            parameters_of(task).check(options.key, f"task {task.name}")
    except LockUsageError as error:
        yield Finding("error", task.name, str(error))
        return
    if options.enabled:
        yield from _times(app, task, options)
        yield from _redelivery(app, task, options)


def _shared_keys(app: Any) -> Iterator[Finding]:
    """Tasks with the same key have the same locks, which is not always meant."""
    tasks: dict[str, list[str]] = {}
    has_once = set()
    for name in sorted(app.tasks):
        task = app.tasks[name]
        key = task._lock_values.get("key") if isinstance(task, LockedTask) else None
        if isinstance(key, str) and key != BY_ARGUMENTS:
            key = parameters_of(task).without_task(key)
            tasks.setdefault(key, []).append(name)
            has_once |= {key} if task._lock_values.get("once") else set()
    for key, names in tasks.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(other for other in names if other != name)
            sentence = f"Its key {key!r} is also that of {others}: they share their locks"
            if key in has_once:
                sentence += " and the results that once saves"
            advice = "If that is not meant, write {task} in the key."
            level: Literal["warning", "note"] = "warning" if key in has_once else "note"
            yield Finding(level, name, f"{sentence}. {advice}")


def _times(app: Any, task: Any, options: LockOptions) -> Iterator[Finding]:
    hard = _seconds(task.time_limit, app.conf.task_time_limit)
    soft = _seconds(task.soft_time_limit, app.conf.task_soft_time_limit)
    limit = min((seconds for seconds in (soft, hard) if seconds), default=None)
    if limit is None:
        sentence = "It has no time limit: if it hangs it holds its lock, renewed, for ever."
        yield Finding("note", task.name, sentence)
        return
    if options.ttl > limit:
        sentence = (
            f"Its ttl of {options.ttl:g} s is longer than its time limit of {limit:g} s; it is "
            "renewed anyway, so a shorter one only frees it sooner when a machine dies."
        )
        yield Finding("note", task.name, sentence)
    if options.on_conflict == "wait" and options.patience >= limit:
        patience = "for ever" if options.wait == "forever" else f"{options.patience:g} s"
        sentence = f"It may wait {patience} for its lock, but its time limit is {limit:g} s."
        yield Finding("warning", task.name, sentence)


def _redelivery(app: Any, task: Any, options: LockOptions) -> Iterator[Finding]:
    visible = _visibility_timeout(app)
    if visible is None or not task.acks_late:
        return
    if not settings.of(app).keep_invisible:
        hard = _seconds(task.time_limit, app.conf.task_time_limit)
        if hard is None or hard > visible:
            sentence = (
                f"With locks_keep_invisible off it may run longer than visibility_timeout "
                f"({visible:g} s), and its message is then redelivered over and over."
            )
            yield Finding("warning", task.name, sentence)
    if options.ttl >= visible:
        sentence = (
            f"Its ttl of {options.ttl:g} s is not below visibility_timeout ({visible:g} s): the "
            "message of a worker that died comes back before the lock does, and waits for it."
        )
        yield Finding("warning", task.name, sentence)


def _seconds(*said: Any) -> float | None:
    """The first that was said."""
    return next((float(one) for one in said if one), None)
