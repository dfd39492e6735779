"""The handlers of the REST endpoints: each calls ``admin`` and returns JSON-safe values.

More than 300 lines: one short function for each endpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from celery_locks import admin
from celery_locks.admin.connect import server_time
from celery_locks.types import Holder, LockInfo
from celery_locks.web.context import WebContext, arguments_of
from celery_locks.web.params import Params
from celery_locks.web.responses import HttpError
from celery_locks.web.snapshot import Snapshot

# The default order of each sort: what an operator looks for comes first.
DEFAULT_ORDERS = {"name": "asc", "held": "desc", "remaining": "asc", "waiting": "desc"}
SUSPECT = "suspect"
_PAST = 50
_MAX_SEARCH = 5.0
# The request waits for the whole grace period and occupies a thread.
MAX_GRACE = 60.0


def _pick(params: Params, *names: str) -> Any:
    return {name: params[name] for name in names}


def me(context: WebContext, params: Params) -> dict[str, Any]:
    now, has_app = server_time(context.locks), context.app is not None
    return {"role": params["role"], "now": now, "app": has_app, **context.location()}


def list_(context: WebContext, params: Params) -> dict[str, Any]:
    snapshot = context.snapshot.recent()
    loaded = context.workers.latest() if context.workers else None
    report = loaded.value if loaded else None
    suspects = context.suspects(snapshot, report)
    found, durations = _find(snapshot, suspects, params), context.usual_durations()
    default = DEFAULT_ORDERS[params["sort"]]
    found.sort(key=admin.SORTS[params["sort"]], reverse=(params["order"] or default) != default)
    start = params["offset"]
    return {
        "locks": [
            context.lock_row(lock, report, durations)
            for lock in found[start : start + params["limit"]]
        ],
        "total": len(found),
        **snapshot.counts,
        "suspect": len(suspects),
        "workers": context.workers.as_dict(loaded) if context.workers else None,
        "as_of": snapshot.as_of,
        "read_in": snapshot.read_in,
    }


def _find(snapshot: Snapshot, suspects: frozenset[str], params: Params) -> list[LockInfo]:
    filters = _filters(params)
    wants_suspects = filters["state"] == SUSPECT
    if wants_suspects:
        filters["state"] = None
    is_wanted = admin.wanted(**filters)
    locks = (lock for lock in snapshot.locks if not wants_suspects or lock.name in suspects)
    return [lock for lock in locks if is_wanted(lock)]


def _filters(params: Params) -> Any:
    return {name: params.get(name) for name in ("glob", "search", "task", "worker", "state")}


def info(context: WebContext, params: Params) -> dict[str, Any]:
    name = params["name"]
    lock = context.locks.info(name)
    loaded = context.workers.about(lock) if context.workers and lock else None
    report = loaded.value if loaded else None
    detail = admin.info(context.locks, name, context.app, report=report) if lock else None
    if detail is None:
        raise HttpError(404, f"Nobody holds lock {name!r} or waits for it.")
    answer = detail.as_dict()
    for row, holder in zip(answer["holders"], detail.lock.holders, strict=True):
        row["arguments"] = arguments_of(holder, report)
    past = admin.history(context.locks, name, limit=_PAST)
    answer["workers"] = context.workers.as_dict(loaded) if context.workers else None
    return {**answer, "past": [entry.as_dict() for entry in past]}


def why(context: WebContext, params: Params) -> dict[str, Any]:
    loaded = context.workers.latest() if context.workers else None
    report = loaded.value if loaded else None
    return admin.why(context.locks, params["subject"], context.app, report=report).as_dict()


def history(context: WebContext, params: Params) -> dict[str, Any]:
    entries = admin.history(
        context.locks, params["name"], limit=params["limit"], only_actions=params["only_acts"]
    )
    return {"acts": [entry.as_dict() for entry in entries]}


def stale(context: WebContext, params: Params) -> dict[str, Any]:
    options = _pick(params, "times_usual", "queued_for")
    found = admin.stale(context.locks, context.app, params["older_than"], **options)
    return {"stale": [lock.as_dict() for lock in found], "doubt": found.inconclusive}


def check(context: WebContext, params: Params) -> dict[str, Any]:
    if context.app is None:
        found = admin.check_server(context.locks)
    else:
        found = admin.check(context.locks, context.app)
    return {"findings": [finding.as_dict() for finding in found]}


def done(context: WebContext, params: Params) -> dict[str, Any]:
    """Search for a bounded time: a list of millions is not read to its end for a rare match."""
    matches = admin.matcher(params["glob"] or "*")
    deadline, looked_at = time.monotonic() + _MAX_SEARCH, 0
    found: list[dict[str, Any]] = []
    for work in admin.list_done(context.locks):
        if len(found) == params["limit"] or time.monotonic() > deadline:
            return {"done": found, "looked_at": looked_at, "complete": False}
        looked_at += 1
        if matches(work.key):
            found.append(work._asdict())
    return {"done": found, "looked_at": looked_at, "complete": True}


def reset_done(context: WebContext, params: Params) -> dict[str, Any]:
    key = params["key"]
    if not admin.reset_done(context.locks, key, reason=params["reason"], by=params["by"]):
        raise HttpError(404, f"No work is marked as done for {key!r}.")
    return {"key": key, "reset": True}


def release(context: WebContext, params: Params) -> dict[str, Any]:
    name, token = params["name"], params["token"]
    if not admin.find_holders(context.locks, name, token):
        raise _not_held(name, token)
    grace = _grace(context, name, params)
    options = _pick(params, "reason", "by")
    freed = admin.force_release(context.locks, name, token, grace=grace, **options)
    context.snapshot.reload([name])
    if not freed and not grace:
        raise _not_held(name, token)
    return {"freed": [holder.as_dict() for holder in freed]}


def release_many(context: WebContext, params: Params) -> dict[str, Any]:
    targets = params["holders"]
    options = _pick(params, "reason", "by", "grace")
    result = admin.force_release_many(context.locks, targets, **options)
    if not result.trouble:
        context.snapshot.reload({target.name for target in targets})
    return {
        "freed": [{"name": name, **holder.as_dict()} for name, holder in result.released],
        "not_held": [target._asdict() for target in result.not_held],
        "unknown": [target._asdict() for target in result.unknown],
        "trouble": result.trouble,
    }


def _grace(context: WebContext, name: str, params: Params) -> float:
    """Return the requested grace period, or the lock's default if it is null."""
    if params["grace"] is not None:
        return float(params["grace"])
    lock = context.locks.info(name)
    grace = lock.default_grace if lock else 0.0
    if grace > MAX_GRACE:
        raise HttpError(
            400,
            f"The holder of lock {name!r} needs up to {grace:g} s to stop, and a request may wait "
            f"at most {MAX_GRACE:g} s: ask it to stop first, and release the lock later.",
        )
    return grace


def stop(context: WebContext, params: Params) -> dict[str, Any]:
    name, token = params["name"], params["token"]
    holders = admin.stop(context.locks, name, token, **_pick(params, "reason", "by"))
    if not holders:
        raise _not_held(name, token)
    return {"asked": [holder.as_dict() for holder in holders]}


def patterns(context: WebContext, params: Params) -> dict[str, Any]:
    return {"patterns": [each.as_dict() for each in admin.list_patterns(context.locks)]}


def pause(context: WebContext, params: Params) -> dict[str, Any]:
    options = _pick(params, "seconds", "reason", "by", "exact")
    return _overridden(context, admin.pause(context.locks, params["name"], **options))


def resume(context: WebContext, params: Params) -> dict[str, Any]:
    name, options = params["name"], _pick(params, "reason", "by", "exact")
    done = admin.resume(context.locks, name, **options)
    if not done.was_set:
        raise HttpError(404, f"Nobody paused {name!r}.")
    return _overridden(context, done)


def set_limit(context: WebContext, params: Params) -> dict[str, Any]:
    options = _pick(params, "limit", "seconds", "reason", "by")
    return _overridden(context, admin.set_limit(context.locks, params["name"], **options))


def reset_limit(context: WebContext, params: Params) -> dict[str, Any]:
    name = params["name"]
    done = admin.reset_limit(context.locks, name, **_pick(params, "reason", "by"))
    if not done.was_set:
        raise HttpError(404, f"No limit is set for lock {name!r}.")
    return _overridden(context, done)


def purge(context: WebContext, params: Params) -> dict[str, Any]:
    name, options = params["name"], _pick(params, "reason", "by", "task_id")
    purged = admin.purge(context.locks, name, app=context.app, **options)
    context.snapshot.reload([name])
    if not purged.messages:
        of_task = f" of task {params['task_id']!r}" if params["task_id"] else ""
        raise HttpError(404, f"No message{of_task} is parked for lock {name!r}.")
    return purged.as_dict()


def _overridden(context: WebContext, done: admin.Overridden) -> dict[str, Any]:
    own = set() if admin.is_glob(done.name) else {done.name}
    context.snapshot.reload(own | {lock.name for lock in done.locks})
    locks = [lock.as_dict() for lock in done.locks]
    return {"name": done.name, "was_set": done.was_set, "locks": locks}


def rates(context: WebContext, params: Params) -> dict[str, Any]:
    found = admin.list_rates(context.locks)
    return {"rates": [rate.as_dict() for rate in found[: params["limit"]]], "total": len(found)}


def rate_info(context: WebContext, params: Params) -> dict[str, Any]:
    rate = admin.rate_info(context.locks, params["name"])
    if rate is None:
        raise HttpError(404, f"Nothing has started at rate {params['name']!r} in its last period.")
    return rate.as_dict()


def pause_rate(context: WebContext, params: Params) -> dict[str, Any]:
    options = _pick(params, "seconds", "reason", "by")
    return _overridden_rate(admin.pause_rate(context.locks, params["name"], **options))


def resume_rate(context: WebContext, params: Params) -> dict[str, Any]:
    name = params["name"]
    done = admin.resume_rate(context.locks, name, **_pick(params, "reason", "by"))
    if not done.was_set:
        raise HttpError(404, f"Nobody paused the rate {name!r}.")
    return _overridden_rate(done)


def set_rate(context: WebContext, params: Params) -> dict[str, Any]:
    options = _pick(params, "rate", "seconds", "reason", "by")
    return _overridden_rate(admin.set_rate(context.locks, params["name"], **options))


def reset_rate(context: WebContext, params: Params) -> dict[str, Any]:
    name = params["name"]
    done = admin.reset_rate(context.locks, name, **_pick(params, "reason", "by"))
    if not done.was_set:
        raise HttpError(404, f"No operator set the rate {name!r}.")
    return _overridden_rate(done)


def _overridden_rate(done: admin.Overridden) -> dict[str, Any]:
    rate = done.rate.as_dict() if done.rate else None
    return {"name": done.name, "was_set": done.was_set, "rate": rate}


def _not_held(name: str, token: str | None) -> HttpError:
    with_token = f" with token {token!r}" if token else ""
    return HttpError(404, f"Nobody holds lock {name!r}{with_token}.")


def sweep(context: WebContext, params: Params) -> dict[str, Any]:
    if context.app is None:
        raise HttpError(
            409,
            "A sweep asks Celery which workers are alive, and no Celery app is configured here.",
        )
    options = _pick(params, "dry_run", "wait", "by", "queued_for")
    swept = admin.sweep(context.locks, context.app, **options)
    if not params["dry_run"]:
        context.snapshot.reload({lock.name for lock in swept.freed})
    return swept.as_dict()


def task_locks(context: WebContext, params: Params) -> dict[str, Any]:
    snapshot = context.snapshot.exact()
    is_wanted = admin.wanted(**_filters(params))
    found = [
        _row(lock, holder)
        for lock in snapshot.locks
        for holder in lock.holders
        if holder.task_id and is_wanted(_with_only(lock, holder))
    ]
    return {"locks": found[: params["limit"]], "total": len(found), "as_of": snapshot.as_of}


def _with_only(lock: LockInfo, holder: Holder) -> LockInfo:
    return LockInfo(lock.name, lock.limit, (holder,), (), lock.as_of)


def _row(lock: LockInfo, holder: Holder) -> dict[str, Any]:
    return {"name": lock.name, **holder.as_dict(), "as_of": lock.as_of}


def _locks_of(
    context: WebContext, snapshot: Snapshot, task_id: str
) -> Iterator[tuple[LockInfo, Holder]]:
    """Yield the locks of a task: found in the list, then each read again."""
    listed = (
        lock.name
        for lock in snapshot.locks
        if any(holder.task_id == task_id for holder in lock.holders)
    )
    for name in listed:
        lock = context.locks.info(name)
        for holder in lock.holders if lock else ():
            if lock and holder.task_id == task_id:
                yield lock, holder


def task_lock(context: WebContext, params: Params) -> dict[str, Any]:
    task_id, snapshot = params["id"], context.snapshot.exact()
    found = [_row(lock, holder) for lock, holder in _locks_of(context, snapshot, task_id)]
    return {"task_id": task_id, "locked": bool(found), "locks": found, "as_of": snapshot.as_of}


def release_task(context: WebContext, params: Params) -> dict[str, Any]:
    task_id = params["id"]
    held = list(_locks_of(context, context.snapshot.fresh(), task_id))
    if not held:
        raise HttpError(404, f"Task {task_id!r} holds no lock.")
    options = _pick(params, "reason", "by")
    graces = {lock.name: _grace(context, lock.name, params) for lock, _ in held}
    freed = [
        _row(lock, released)
        for lock, holder in held
        for released in admin.force_release(
            context.locks, lock.name, holder.token, grace=graces[lock.name], **options
        )
    ]
    context.snapshot.reload({lock.name for lock, _ in held})
    return {"task_id": task_id, "freed": freed}
