"""Checks of the setup: the server, the broker's settings, each task's options.

``error``: locks do not work, or may be lost. ``warning``: jobs may be lost, delayed or run twice.
``note``: works as configured, but is good to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from celery_locks import settings
from celery_locks.admin.humanize import join_names
from celery_locks.admin.listing import list_locks
from celery_locks.core.locks import Locks
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.integration.app_locks import broker_trouble
from celery_locks.integration.lock_name import BY_ARGUMENTS, parameters_of
from celery_locks.integration.task import LockedTask
from celery_locks.integration.worker_inspection import inspect_messages
from celery_locks.options import LockOptions
from celery_locks.store.commands.admin import AdminCommands

OLDEST_REDIS = (6, 2)
_SHOWN = 5
_VISIBILITY = 3600.0  # kombu's default for Redis


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about ``where``: a task's name, "server", "broker", "settings" or a lock."""

    level: Literal["error", "warning", "note"]
    where: str
    sentence: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def check(locks: Locks, app: Any) -> list[Finding]:
    """Check everything that this process can see: the lock server, the broker and the app."""
    app.finalize()
    app.loader.import_default_modules()
    return [
        *check_server(locks),
        *_stored_messages(locks, app),
        *_connection(app),
        *_unread_wake_queues(app),
        *_broker(app),
        *_tasks(app),
        *_shared_keys(app),
        *_different_limits(locks),
        *_examined(app),
    ]


def check_server(locks: Locks) -> list[Finding]:
    """Check the server alone; shards with the same finding give one."""
    commands = AdminCommands(locks.commands)
    infos = [locks.perform(commands.server(root)) for root in locks.commands.roots]
    return list(dict.fromkeys(finding for info in infos for finding in _server(info)))


def _server(info: dict[str, str]) -> Iterator[Finding]:
    version = info.get("redis_version", "")
    if (numbers := re.match(r"(\d+)\.(\d+)", version)) is None:
        yield Finding("note", "server", "It does not report its version.")
    elif tuple(map(int, numbers.groups())) < OLDEST_REDIS:
        oldest = ".".join(map(str, OLDEST_REDIS))
        yield Finding(
            "error", "server", f"It is version {version}; the oldest supported is {oldest}."
        )
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        sentence = f"maxmemory-policy is {policy}: under memory pressure held locks are evicted."
        yield Finding("error", "server", f"{sentence} Set noeviction or a volatile policy.")
    yield from _memory(info, policy)
    if info.get("role") == "slave":
        yield Finding("error", "server", "It is a replica: point locks_url at the primary.")


def _memory(info: dict[str, str], policy: str) -> Iterator[Finding]:
    used, most = int(info.get("used_memory") or 0), int(info.get("maxmemory") or 0)
    if most and used >= most and policy == "noeviction":
        sentence = f"It is full: {used:,} bytes are used and maxmemory is {most:,}, so it grants"
        yield Finding("error", "server", f"{sentence} no lock. Raise maxmemory, or remove data.")


def _stored_messages(locks: Locks, app: Any) -> Iterator[Finding]:
    """Check that the server keeps its data, if messages of any task are stored there."""
    names = [name for name in locked_tasks(app) if _stores_message(app.tasks[name])]
    if not names:
        return
    commands = AdminCommands(locks.commands)
    shown = join_names(names, "and")
    found: dict[str, None] = {}
    for root in locks.commands.roots:
        info = locks.perform(commands.server(root))
        found |= dict.fromkeys(_may_evict(info))
        if info.get("aof_enabled") == "0":
            found |= dict.fromkeys(_without_aof(_save_points(locks, root)))
    for sentence in found:
        yield Finding("warning", "server", f"Messages of {shown} are stored on it. {sentence}")


def _stores_message(task: Any) -> bool:
    try:
        options: LockOptions = task.lock_options()
    except LockUsageError:
        return False  # reported by _task
    return options.enabled and (options.parks or options.keep_message)


def _may_evict(info: dict[str, str]) -> Iterator[str]:
    policy = info.get("maxmemory_policy") or "noeviction"
    if not int(info.get("maxmemory") or 0) or policy == "noeviction":
        return
    what = "the messages are evicted and their tasks never run"
    if policy.startswith("volatile-"):  # these delete only keys that expire: the marks
        what = "the marks of tasks that have run are evicted, and a message may run twice"
    yield f"maxmemory-policy is {policy}: under memory pressure {what}. Set noeviction."


def _without_aof(save_points: str | None) -> Iterator[str]:
    if save_points is None:
        yield (
            "It has no append-only file, and does not say whether it saves snapshots: a restart "
            "loses the messages since the last one. Set appendonly yes."
        )
    elif not save_points:
        yield "It does not persist: a restart loses the messages. Set appendonly yes."


def _save_points(locks: Locks, root: str) -> str | None:
    """Return the setting ``save``; None if the server does not tell it to this user."""
    try:
        found: str | None = locks.perform(AdminCommands(locks.commands).config(root, "save"))
    except LockUnavailable:  # managed servers have no CONFIG, and an ACL may forbid it
        return None
    return found


def _connection(app: Any) -> Iterator[Finding]:
    if trouble := broker_trouble(app):
        sentence = "It cannot be reached, so nothing can be published and no worker gets a task"
        yield Finding("error", "broker", f"{sentence}: {trouble}")


def _unread_wake_queues(app: Any) -> Iterator[Finding]:
    """Report the queues for woken messages that no worker reads, if any worker replies."""
    tasks: dict[str, list[str]] = {}
    for name in locked_tasks(app):
        if queue := _wake_queue_of(app.tasks[name]):
            tasks.setdefault(queue, []).append(name)
    workers = inspect_messages(app, []).queues if tasks else {}
    unread = tasks.keys() - {queue["name"] for queues in workers.values() for queue in queues}
    for queue in sorted(unread if workers else ()):
        names = join_names(tasks[queue], "and")
        sentence = (
            f"No worker that replies reads it, and woken messages of {names} go there "
            "(wake_queue). Start a worker with it in -Q."
        )
        yield Finding("warning", f"queue {queue!r}", sentence)


def _wake_queue_of(task: Any) -> str | None:
    try:
        options: LockOptions = task.lock_options()
    except LockUsageError:
        return None  # reported by _task
    return options.wake_queue if options.enabled and options.parks else None


def locked_tasks(app: Any) -> list[str]:
    """Return the names of the app's tasks that have a lock, if their modules are imported."""
    return sorted(name for name, task in app.tasks.items() if isinstance(task, LockedTask))


def _examined(app: Any) -> Iterator[Finding]:
    """List the tasks that were checked: one that is missing was not imported."""
    names = {name for name in app.tasks if not name.startswith("celery.")}
    locked = [name for name in locked_tasks(app) if name in names]
    unlocked = sorted(names - set(locked))
    groups = [f"{len(locked)} locked ({', '.join(locked)})" if locked else "none locked"]
    groups += [f"{len(unlocked)} without a lock ({', '.join(unlocked)})"] if unlocked else []
    yield Finding("note", "settings", f"Tasks examined: {'; '.join(groups)}.")


def _broker(app: Any) -> Iterator[Finding]:
    conf = app.conf
    if conf.task_always_eager:
        yield Finding("warning", "settings", "task_always_eager is on: no worker runs anything.")
    if not conf.worker_enable_remote_control:
        sentence = (
            "worker_enable_remote_control is off: workers cannot say whether a holder is alive."
        )
        yield Finding("note", "settings", sentence)
    if conf.task_acks_late and not conf.task_reject_on_worker_lost:
        sentence = (
            "task_acks_late without task_reject_on_worker_lost: the job of a pool child that is "
            "killed fails and is not run again."
        )
        yield Finding("note", "broker", sentence)


def _visibility_timeout(app: Any) -> float | None:
    """Return that of a Redis or SQS broker; others redeliver when the connection ends."""
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
    """Report tasks with the same key: they share their locks, which may not be intended."""
    tasks: dict[str, list[str]] = {}
    limits: dict[str, set[int]] = {}
    has_once = set()
    for name in sorted(app.tasks):
        task = app.tasks[name]
        key = task._lock_values.get("key") if isinstance(task, LockedTask) else None
        if isinstance(key, str) and key != BY_ARGUMENTS:
            key = parameters_of(task).without_task(key)
            tasks.setdefault(key, []).append(name)
            limit = task._lock_values.get("limit", 1)
            limits.setdefault(key, set()).update(() if callable(limit) else (limit,))
            has_once |= {key} if task._lock_values.get("once") else set()
    for key, names in tasks.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(other for other in names if other != name)
            sentence = f"It has the same key {key!r} as {others}: they share their locks"
            if key in has_once:
                sentence += " and the results that once stores"
            if len(limits[key]) > 1:
                sentence += f", but have different limits ({_either(limits[key])})"
            advice = "If that is not intended, add {task} to the key."
            is_wrong = key in has_once or len(limits[key]) > 1
            level: Literal["warning", "note"] = "warning" if is_wrong else "note"
            yield Finding(level, name, f"{sentence}. {advice}")


def _different_limits(locks: Locks) -> Iterator[Finding]:
    """Report locks in use whose callers have different limits: each is granted by its own."""
    found = [lock for lock in list_locks(locks) if lock.other_limits]
    for lock in found[:_SHOWN]:
        limits = _either((lock.limit, *lock.other_limits))
        sentence = (
            f"Its holders and waiters have different limits ({limits}): each gets a slot if fewer "
            "than its own limit hold the lock. Use one limit, or set it with `locks limit`."
        )
        yield Finding("warning", f"lock {lock.name!r}", sentence)
    if len(found) > _SHOWN:
        sentence = f"{len(found) - _SHOWN} more locks have callers with different limits."
        yield Finding("warning", "locks", sentence)


def _either(limits: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(limits)))


def _times(app: Any, task: Any, options: LockOptions) -> Iterator[Finding]:
    hard = _first_limit(task.time_limit, app.conf.task_time_limit)
    soft = _first_limit(task.soft_time_limit, app.conf.task_soft_time_limit)
    limit = min((seconds for seconds in (soft, hard) if seconds), default=None)
    if limit is None:
        sentence = "It has no time limit: if it hangs, it renews its lock and holds it for ever."
        yield Finding("note", task.name, sentence)
        return
    if options.ttl > limit:
        sentence = (
            f"Its ttl of {options.ttl:g} s is longer than its time limit of {limit:g} s. The lock "
            "is renewed anyway; with a shorter ttl it is free sooner after a machine dies."
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
        hard = _first_limit(task.time_limit, app.conf.task_time_limit)
        if hard is None or hard > visible:
            sentence = (
                "locks_keep_invisible is off, and it may run longer than visibility_timeout "
                f"({visible:g} s): its message is then delivered again and again."
            )
            yield Finding("warning", task.name, sentence)
    if options.ttl >= visible:
        sentence = (
            f"Its ttl of {options.ttl:g} s is not below visibility_timeout ({visible:g} s): after "
            "a worker dies, the message is delivered again before the lock is free."
        )
        yield Finding("warning", task.name, sentence)


def _first_limit(*limits: Any) -> float | None:
    """Return the first limit that is set."""
    return next((float(limit) for limit in limits if limit), None)
