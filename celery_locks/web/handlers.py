"""The answers: each calls ``admin`` and gives JSON-safe values; what they are asked is checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from celery_locks import admin
from celery_locks.types import Holder, LockInfo
from celery_locks.web.context import WebContext, arguments_of
from celery_locks.web.params import Params
from celery_locks.web.responses import HttpError
from celery_locks.web.snapshot import Snapshot, server_time

# The order that each sort has where none is asked for: what an operator looks for comes first.
ORDERS = {"name": "asc", "held": "desc", "remaining": "asc", "waiting": "desc"}
SUSPECT = "suspect"
_PAST = 50
_LOOK_FOR = 5.0
# A request waits as long as the grace, and keeps a thread busy.
LONGEST_GRACE = 60.0


def me(context: WebContext, asked: Params) -> dict[str, Any]:
    now, has_app = server_time(context.locks), context.app is not None
    return {"role": asked["role"], "now": now, "app": has_app, **context.where()}


def list_(context: WebContext, asked: Params) -> dict[str, Any]:
    snapshot = context.snapshot.recent()
    got = context.workers.latest() if context.workers else None
    roll = got.value if got else None
    suspects = context.suspects(snapshot, roll)
    found, durations = _found(snapshot, suspects, asked), context.usual()
    usual = ORDERS[asked["sort"]]
    found.sort(key=admin.SORTS[asked["sort"]], reverse=(asked["order"] or usual) != usual)
    start = asked["offset"]
    return {
        "locks": [
            context.listed(lock, roll, durations) for lock in found[start : start + asked["limit"]]
        ],
        "total": len(found),
        **snapshot.counts,
        "suspect": len(suspects),
        "workers": context.workers.as_dict(got) if context.workers else None,
        "as_of": snapshot.as_of,
        "read_in": snapshot.read_in,
    }


def _found(snapshot: Snapshot, suspects: frozenset[str], asked: Params) -> list[LockInfo]:
    filters = _filters(asked)
    wants_suspects = filters["state"] == SUSPECT
    if wants_suspects:
        filters["state"] = None
    is_wanted = admin.wanted(**filters)
    locks = (lock for lock in snapshot.locks if not wants_suspects or lock.name in suspects)
    return [lock for lock in locks if is_wanted(lock)]


def _filters(asked: Params) -> Any:
    return {word: asked.get(word) for word in ("glob", "search", "task", "worker", "state")}


def info(context: WebContext, asked: Params) -> dict[str, Any]:
    name = asked["name"]
    lock = context.locks.info(name)
    got = context.workers.about(lock) if context.workers and lock else None
    roll = got.value if got else None
    detail = admin.info(context.locks, name, context.app, report=roll) if lock else None
    if detail is None:
        raise HttpError(404, f"Nobody holds lock {name!r} or waits for it.")
    said = detail.as_dict()
    for row, holder in zip(said["holders"], detail.lock.holders, strict=True):
        row["arguments"] = arguments_of(holder, roll)
    past = admin.history(context.locks, name, limit=_PAST)
    said["workers"] = context.workers.as_dict(got) if context.workers else None
    return {**said, "past": [act.as_dict() for act in past]}


def why(context: WebContext, asked: Params) -> dict[str, Any]:
    got = context.workers.latest() if context.workers else None
    roll = got.value if got else None
    return admin.why(context.locks, asked["subject"], context.app, report=roll).as_dict()


def history(context: WebContext, asked: Params) -> dict[str, Any]:
    limits = {"limit": asked["limit"], "only_actions": asked["only_acts"]}
    acts = admin.history(context.locks, asked["name"], **limits)
    return {"acts": [act.as_dict() for act in acts]}


def stale(context: WebContext, asked: Params) -> dict[str, Any]:
    how = {word: asked[word] for word in ("times_usual", "queued_for")}
    found = admin.stale(context.locks, context.app, asked["older_than"], **how)
    return {"stale": [one.as_dict() for one in found], "doubt": found.inconclusive}


def check(context: WebContext, asked: Params) -> dict[str, Any]:
    if context.app is None:
        found = admin.check_server(context.locks)
    else:
        found = admin.check(context.locks, context.app)
    return {"findings": [finding.as_dict() for finding in found]}


def done(context: WebContext, asked: Params) -> dict[str, Any]:
    """As many as fit; a list of millions is not read to its end for a glob that fits few."""
    fits = admin.matcher(asked["glob"] or "*")
    ends, looked_at = time.monotonic() + _LOOK_FOR, 0
    found: list[dict[str, Any]] = []
    for work in admin.list_done(context.locks):
        if len(found) == asked["limit"] or time.monotonic() > ends:
            return {"done": found, "looked_at": looked_at, "complete": False}
        looked_at += 1
        if fits(work.key):
            found.append(work._asdict())
    return {"done": found, "looked_at": looked_at, "complete": True}


def reset_done(context: WebContext, asked: Params) -> dict[str, Any]:
    key = asked["key"]
    if not admin.reset_done(context.locks, key, reason=asked["reason"], by=asked["by"]):
        raise HttpError(404, f"No work is marked as done for {key!r}.")
    return {"key": key, "reset": True}


def release(context: WebContext, asked: Params) -> dict[str, Any]:
    name, token = asked["name"], asked["token"]
    if not any(token in (None, holder.token) for holder in context.locks.holders(name)):
        raise _nobody(name, token)
    grace = _grace(context, name, asked)
    how = {word: asked[word] for word in ("reason", "by")}
    freed = admin.force_release(context.locks, name, token, grace=grace, **how)
    context.snapshot.look_again([name])
    if not freed and not grace:
        raise _nobody(name, token)
    return {"freed": [holder.as_dict() for holder in freed]}


def release_many(context: WebContext, asked: Params) -> dict[str, Any]:
    targets = asked["holders"]
    how = {word: asked[word] for word in ("reason", "by", "grace")}
    done = admin.force_release_many(context.locks, targets, **how)
    if not done.trouble:
        context.snapshot.look_again({target.name for target in targets})
    return {
        "freed": [{"name": name, **holder.as_dict()} for name, holder in done.released],
        "not_held": [target._asdict() for target in done.not_held],
        "unknown": [target._asdict() for target in done.unknown],
        "trouble": done.trouble,
    }


def _grace(context: WebContext, name: str, asked: Params) -> float:
    """The seconds asked for, or the lock's default where that is null."""
    if asked["grace"] is not None:
        return float(asked["grace"])
    lock = context.locks.info(name)
    grace = lock.default_grace if lock else 0.0
    if grace > LONGEST_GRACE:
        raise HttpError(
            400,
            f"The holder of lock {name!r} needs up to {grace:g} s to stop, and a request may take "
            f"{LONGEST_GRACE:g} s: ask it to stop first, and release the lock later.",
        )
    return grace


def stop(context: WebContext, asked: Params) -> dict[str, Any]:
    name, token = asked["name"], asked["token"]
    asked_ones = admin.stop(context.locks, name, token, reason=asked["reason"], by=asked["by"])
    if not asked_ones:
        raise _nobody(name, token)
    return {"asked": [holder.as_dict() for holder in asked_ones]}


def _nobody(name: str, token: str | None) -> HttpError:
    holding = f" with token {token!r}" if token else ""
    return HttpError(404, f"Nobody holds lock {name!r}{holding}.")


def sweep(context: WebContext, asked: Params) -> dict[str, Any]:
    if context.app is None:
        raise HttpError(
            409, "Only Celery knows which workers live, and no Celery app is known here."
        )
    how = {word: asked[word] for word in ("dry_run", "wait", "by", "queued_for")}
    swept = admin.sweep(context.locks, context.app, **how)
    if not asked["dry_run"]:
        context.snapshot.look_again({one.name for one in swept.freed})
    return swept.as_dict()


def task_locks(context: WebContext, asked: Params) -> dict[str, Any]:
    snapshot = context.snapshot.exact()
    is_wanted = admin.wanted(**_filters(asked))
    found = [
        _row(lock, holder)
        for lock in snapshot.locks
        for holder in lock.holders
        if holder.task_id and is_wanted(_only(lock, holder))
    ]
    return {"locks": found[: asked["limit"]], "total": len(found), "as_of": snapshot.as_of}


def _only(lock: LockInfo, holder: Holder) -> LockInfo:
    return LockInfo(lock.name, lock.limit, (holder,), (), lock.as_of)


def _row(lock: LockInfo, holder: Holder) -> dict[str, Any]:
    return {"name": lock.name, **holder.as_dict(), "as_of": lock.as_of}


def _locks_of(
    context: WebContext, snapshot: Snapshot, task_id: str
) -> Iterator[tuple[LockInfo, Holder]]:
    """What this task holds: found in the list, and then seen to be so."""
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


def task_lock(context: WebContext, asked: Params) -> dict[str, Any]:
    task_id, snapshot = asked["id"], context.snapshot.exact()
    found = [_row(lock, holder) for lock, holder in _locks_of(context, snapshot, task_id)]
    return {"task_id": task_id, "locked": bool(found), "locks": found, "as_of": snapshot.as_of}


def release_task(context: WebContext, asked: Params) -> dict[str, Any]:
    task_id = asked["id"]
    held = list(_locks_of(context, context.snapshot.fresh(), task_id))
    if not held:
        raise HttpError(404, f"Task {task_id!r} holds no lock.")
    how = {word: asked[word] for word in ("reason", "by")}
    graces = {lock.name: _grace(context, lock.name, asked) for lock, _ in held}
    freed = [
        _row(lock, taken)
        for lock, holder in held
        for taken in admin.force_release(
            context.locks, lock.name, holder.token, grace=graces[lock.name], **how
        )
    ]
    context.snapshot.look_again({lock.name for lock, _ in held})
    return {"task_id": task_id, "freed": freed}
