"""The answers: each calls ``admin`` and gives JSON-safe values; what they are asked is checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from celery_locks import admin
from celery_locks.model import Holder, LockInfo
from celery_locks.web.fields import Asked
from celery_locks.web.replies import Refusal
from celery_locks.web.site import Site, arguments_of
from celery_locks.web.snapshot import Shot, server_time

# The order that each sort has where none is asked for: what an operator looks for comes first.
ORDERS = {"name": "asc", "held": "desc", "remaining": "asc", "waiting": "desc"}
SUSPECT = "suspect"
_PAST = 50
_LOOK_FOR = 5.0
# A request waits as long as the grace, and keeps a thread busy.
LONGEST_GRACE = 60.0


def me(site: Site, asked: Asked) -> dict[str, Any]:
    now, has_app = server_time(site.locks), site.app is not None
    return {"role": asked["role"], "now": now, "app": has_app, **site.where()}


def list_(site: Site, asked: Asked) -> dict[str, Any]:
    shot = site.snapshot.recent()
    got = site.workers.latest() if site.workers else None
    roll = got.value if got else None
    suspects = site.suspects(shot, roll)
    found, durations = _found(shot, suspects, asked), site.usual()
    usual = ORDERS[asked["sort"]]
    found.sort(key=admin.SORTS[asked["sort"]], reverse=(asked["order"] or usual) != usual)
    start = asked["offset"]
    return {
        "locks": [
            site.listed(lock, roll, durations) for lock in found[start : start + asked["limit"]]
        ],
        "total": len(found),
        **shot.counts,
        "suspect": len(suspects),
        "workers": site.workers.as_dict(got) if site.workers else None,
        "as_of": shot.as_of,
        "read_in": shot.read_in,
    }


def _found(shot: Shot, suspects: frozenset[str], asked: Asked) -> list[LockInfo]:
    filters = _filters(asked)
    wants_suspects = filters["state"] == SUSPECT
    if wants_suspects:
        filters["state"] = None
    is_wanted = admin.wanted(**filters)
    locks = (lock for lock in shot.locks if not wants_suspects or lock.name in suspects)
    return [lock for lock in locks if is_wanted(lock)]


def _filters(asked: Asked) -> Any:
    return {word: asked.get(word) for word in ("glob", "search", "task", "worker", "state")}


def info(site: Site, asked: Asked) -> dict[str, Any]:
    name = asked["name"]
    lock = site.locks.info(name)
    got = site.workers.about(lock) if site.workers and lock else None
    roll = got.value if got else None
    detail = admin.info(site.locks, name, site.app, roll=roll) if lock else None
    if detail is None:
        raise Refusal(404, f"Nobody holds lock {name!r} or waits for it.")
    said = detail.as_dict()
    for row, holder in zip(said["holders"], detail.lock.holders, strict=True):
        row["arguments"] = arguments_of(holder, roll)
    past = admin.history(site.locks, name, limit=_PAST)
    said["workers"] = site.workers.as_dict(got) if site.workers else None
    return {**said, "past": [act.as_dict() for act in past]}


def why(site: Site, asked: Asked) -> dict[str, Any]:
    got = site.workers.latest() if site.workers else None
    roll = got.value if got else None
    return admin.why(site.locks, asked["subject"], site.app, roll=roll).as_dict()


def history(site: Site, asked: Asked) -> dict[str, Any]:
    how = {word: asked[word] for word in ("limit", "only_acts")}
    acts = admin.history(site.locks, asked["name"], **how)
    return {"acts": [act.as_dict() for act in acts]}


def stale(site: Site, asked: Asked) -> dict[str, Any]:
    how = {word: asked[word] for word in ("times_usual", "queued_for")}
    found = admin.stale(site.locks, site.app, asked["older_than"], **how)
    return {"stale": [one.as_dict() for one in found], "doubt": found.doubt}


def check(site: Site, asked: Asked) -> dict[str, Any]:
    if site.app is None:
        found = admin.check_server(site.locks)
    else:
        found = admin.check(site.locks, site.app)
    return {"findings": [finding.as_dict() for finding in found]}


def done(site: Site, asked: Asked) -> dict[str, Any]:
    """As many as fit; a list of millions is not read to its end for a glob that fits few."""
    fits = admin.matcher(asked["glob"] or "*")
    ends, looked_at = time.monotonic() + _LOOK_FOR, 0
    found: list[dict[str, Any]] = []
    for work in admin.list_done(site.locks):
        if len(found) == asked["limit"] or time.monotonic() > ends:
            return {"done": found, "looked_at": looked_at, "complete": False}
        looked_at += 1
        if fits(work.key):
            found.append(work._asdict())
    return {"done": found, "looked_at": looked_at, "complete": True}


def reset_done(site: Site, asked: Asked) -> dict[str, Any]:
    key = asked["key"]
    if not admin.reset_done(site.locks, key, reason=asked["reason"], by=asked["by"]):
        raise Refusal(404, f"No work is marked as done for {key!r}.")
    return {"key": key, "reset": True}


def release(site: Site, asked: Asked) -> dict[str, Any]:
    name, token = asked["name"], asked["token"]
    if not any(token in (None, holder.token) for holder in site.locks.holders(name)):
        raise _nobody(name, token)
    grace = _grace(site, name, asked)
    how = {word: asked[word] for word in ("reason", "by")}
    freed = admin.force_release(site.locks, name, token, grace=grace, **how)
    site.snapshot.look_again([name])
    if not freed and not grace:
        raise _nobody(name, token)
    return {"freed": [holder.as_dict() for holder in freed]}


def release_many(site: Site, asked: Asked) -> dict[str, Any]:
    targets = asked["holders"]
    how = {word: asked[word] for word in ("reason", "by", "grace")}
    done = admin.force_release_many(site.locks, targets, **how)
    if not done.trouble:
        site.snapshot.look_again({target.name for target in targets})
    return {
        "freed": [{"name": name, **holder.as_dict()} for name, holder in done.released],
        "not_held": [target._asdict() for target in done.not_held],
        "unknown": [target._asdict() for target in done.unknown],
        "trouble": done.trouble,
    }


def _grace(site: Site, name: str, asked: Asked) -> float:
    """The seconds asked for, or the lock's default where that is null."""
    if asked["grace"] is not None:
        return float(asked["grace"])
    lock = site.locks.info(name)
    grace = lock.default_grace if lock else 0.0
    if grace > LONGEST_GRACE:
        raise Refusal(
            400,
            f"The holder of lock {name!r} needs up to {grace:g} s to stop, and a request may take "
            f"{LONGEST_GRACE:g} s: ask it to stop first, and release the lock later.",
        )
    return grace


def stop(site: Site, asked: Asked) -> dict[str, Any]:
    name, token = asked["name"], asked["token"]
    asked_ones = admin.stop(site.locks, name, token, reason=asked["reason"], by=asked["by"])
    if not asked_ones:
        raise _nobody(name, token)
    return {"asked": [holder.as_dict() for holder in asked_ones]}


def _nobody(name: str, token: str | None) -> Refusal:
    holding = f" with token {token!r}" if token else ""
    return Refusal(404, f"Nobody holds lock {name!r}{holding}.")


def sweep(site: Site, asked: Asked) -> dict[str, Any]:
    if site.app is None:
        raise Refusal(409, "Only Celery knows which workers live, and no Celery app is known here.")
    how = {word: asked[word] for word in ("dry_run", "wait", "by", "queued_for")}
    swept = admin.sweep(site.locks, site.app, **how)
    if not asked["dry_run"]:
        site.snapshot.look_again({one.name for one in swept.freed})
    return swept.as_dict()


def task_locks(site: Site, asked: Asked) -> dict[str, Any]:
    shot = site.snapshot.exact()
    is_wanted = admin.wanted(**_filters(asked))
    found = [
        _row(lock, holder)
        for lock in shot.locks
        for holder in lock.holders
        if holder.task_id and is_wanted(_only(lock, holder))
    ]
    return {"locks": found[: asked["limit"]], "total": len(found), "as_of": shot.as_of}


def _only(lock: LockInfo, holder: Holder) -> LockInfo:
    return LockInfo(lock.name, lock.limit, (holder,), (), lock.as_of)


def _row(lock: LockInfo, holder: Holder) -> dict[str, Any]:
    return {"name": lock.name, **holder.as_dict(), "as_of": lock.as_of}


def _locks_of(site: Site, shot: Shot, task_id: str) -> Iterator[tuple[LockInfo, Holder]]:
    """What this task holds: found in the list, and then seen to be so."""
    listed = (
        lock.name
        for lock in shot.locks
        if any(holder.task_id == task_id for holder in lock.holders)
    )
    for name in listed:
        lock = site.locks.info(name)
        for holder in lock.holders if lock else ():
            if lock and holder.task_id == task_id:
                yield lock, holder


def task_lock(site: Site, asked: Asked) -> dict[str, Any]:
    task_id, shot = asked["id"], site.snapshot.exact()
    found = [_row(lock, holder) for lock, holder in _locks_of(site, shot, task_id)]
    return {"task_id": task_id, "locked": bool(found), "locks": found, "as_of": shot.as_of}


def release_task(site: Site, asked: Asked) -> dict[str, Any]:
    task_id = asked["id"]
    held = list(_locks_of(site, site.snapshot.fresh(), task_id))
    if not held:
        raise Refusal(404, f"Task {task_id!r} holds no lock.")
    how = {word: asked[word] for word in ("reason", "by")}
    graces = {lock.name: _grace(site, lock.name, asked) for lock, _ in held}
    freed = [
        _row(lock, taken)
        for lock, holder in held
        for taken in admin.force_release(
            site.locks, lock.name, holder.token, grace=graces[lock.name], **how
        )
    ]
    site.snapshot.look_again({lock.name for lock, _ in held})
    return {"task_id": task_id, "freed": freed}
