"""The worker's main process looks after the locks that its children hold.

A ward is one task under way, known by the token that the main process gave it. When it has run for
a third of its ttl, the keeper looks the token up in the store (the child chose the name) and from
then on renews the lease like its own; a short task costs nothing here. Each child's death is seen
through a pidfd, and everything it held is freed at once. While a task with ``acks_late`` runs, its
unacknowledged message is kept invisible on a Redis broker, so that it is not redelivered.

All methods but ``run`` are called by the worker's main thread; ``run`` and what it calls by the
keeper's. Where the system has no pidfd, Celery's own word that a worker was lost does instead.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import time
from typing import Any

from celery_locks import events
from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.header import HEADER
from celery_locks.integration.interrupt import SIGNAL
from celery_locks.keeper import keeper
from celery_locks.lease import BaseLease, State
from celery_locks.model import LockSpec, Revocation
from celery_locks.store.base import Call
from celery_locks.store.redis import RedisStore
from celery_locks.store.scripts import Command

logger = logging.getLogger("celery_locks")

_SECOND_LOOK = 0.25


class Ward:
    """A task under way in a child (or, only for its message, in this process)."""

    pid: int | None = None
    name: str | None = None
    task: str | None = None
    task_id: str | None = None
    is_dead: bool = False
    is_revoked: bool = False  # before the store was asked for its name; the child is told
    looks: int = 0  # how often the store knew nothing of it since it died
    until: float = math.inf  # then whatever a dead one held has lapsed

    def __init__(
        self,
        token: str,
        locks: AppLocks,
        ttl: float,
        in_child: bool,
        due: float,
        message: Message | None,
    ) -> None:
        self.token = token
        self.locks = locks
        self.ttl = ttl
        self.in_child = in_child
        self.due = due
        self.message = message

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead, self.looks = True, 0
            self.due, self.until = now(), now() + self.ttl


class WardLease(BaseLease):
    """What the main process renews for a child.

    That the store no longer has it may mean that the child has just released it, so nothing is
    said here: the child is asked to look, and says it if it was a loss.
    """

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        if self._finish(State.LOST, reason, revoked) and self._on_lost:
            self._on_lost(self, self.loss(reason))


class Message:
    """The unacknowledged message of a running task on a Redis broker."""

    def __init__(self, request: Any) -> None:
        channel = request.message.channel
        self._request = request
        self._store = _broker_store(channel)
        self._key = (getattr(channel, "global_keyprefix", "") or "") + channel.unacked_index_key
        self._tag = request.message.delivery_tag
        self.interval = max(0.2, channel.visibility_timeout / 3)
        self.due = now() + self.interval

    @classmethod
    def of(cls, request: Any) -> Message | None:
        channel = getattr(request.message, "channel", None)
        return cls(request) if hasattr(channel, "unacked_index_key") else None

    def keep_invisible(self) -> None:
        self.due = math.inf if self._request.acknowledged else now() + self.interval
        if not self._request.acknowledged:
            args = ("XX", str(time.time()), self._tag)
            self._store.perform(Call(_ZADD, self._key, args, bool, keeper.patience()))


_ZADD = Command("ZADD")


def _broker_store(channel: Any) -> RedisStore:
    store = getattr(channel, "_celery_locks_store", None)
    if store is None:
        store = channel._celery_locks_store = RedisStore.from_client(channel.client, "broker")
    assert isinstance(store, RedisStore)
    return store


class Wards:
    """All wards of this worker."""

    sees_deaths = hasattr(os, "pidfd_open")

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self._wards: dict[str, Ward] = {}
        self._pidfds: dict[int, int] = {}
        self._is_taken_on = False

    @property
    def tokens(self) -> frozenset[str]:
        """Of the tasks under way."""
        return frozenset(self._wards)

    @property
    def due(self) -> float:
        wards = list(self._wards.values())
        lookups = [ward.due for ward in wards]
        return min(lookups + [w.message.due for w in wards if w.message], default=math.inf)

    def add(self, request: Any, *, children: bool) -> None:
        """A task is about to be given to the pool."""
        task = request.task
        if not children and not task.acks_late:
            return  # the lock is this process's own, and its message is acknowledged
        note = request.request_dict.get(HEADER) or {}
        try:
            options, locks = task.lock_options(note.get("options")), locks_of(task.app)
        except ValueError:
            return  # the task itself will say so, in its result
        if not options.enabled:
            return
        keeps = task.acks_late and locks.settings.keep_invisible
        message = Message.of(request) if keeps else None
        if not children and not message:
            return
        due = now() + options.ttl / 3 if children else math.inf
        ward = Ward(request.lock_token, locks, options.ttl, children, due, message)
        self._wards[ward.token] = ward
        if not self._is_taken_on:
            self._is_taken_on = True
            keeper.take_on(self)
        keeper.wake_by(min(due, message.due if message else math.inf))

    def accepted(self, token: str, pid: int) -> None:
        ward = self._wards.get(token)
        if ward and ward.in_child:
            ward.pid = pid
            if pid not in self._pidfds:
                self._watch(ward)

    def ended(self, token: str) -> None:
        """The task ended in a way that ran its ``finally``: the child has released."""
        ward = self._wards.pop(token, None)
        if ward and ward.name:  # else the keeper has not got it, or looks once more (_found)
            keeper.discard(token)

    def died(self, token: str) -> None:
        """Celery says that the process is gone; the pidfd usually said so before."""
        ward = self._wards.get(token)
        if ward and ward.in_child:
            ward.die()
            keeper.wake_by(ward.due)

    def last_look(self) -> None:
        """The worker exits: free what children held that were killed with it."""
        for ward in list(self._wards.values()):
            if ward.in_child and not _is_alive(ward.pid):
                self.died(ward.token)
        keeper.settle(1.0)

    # From here on in the keeper's thread, but for _watch.

    def _watch(self, ward: Ward) -> None:
        pid = ward.pid
        if pid is None or pid in self._pidfds or not self.sees_deaths:
            return
        try:
            self._pidfds[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self.died(ward.token)
            return
        keeper.watch(self._pidfds[pid], lambda: self._child_died(pid))

    def _child_died(self, pid: int) -> None:
        os.close(self._pidfds.pop(pid))
        dead = [ward for ward in list(self._wards.values()) if ward.pid == pid]
        for ward in dead:
            ward.die()
        self.run()

    def run(self) -> None:
        moment = now()
        for ward in list(self._wards.values()):
            if ward.message and ward.message.due <= moment:
                self._keep_invisible(ward.message)
        due = [ward for ward in list(self._wards.values()) if ward.due <= moment]
        self._locate([ward for ward in due if ward.name is None])
        for ward in due:
            self._settle(ward)

    def _keep_invisible(self, message: Message) -> None:
        try:
            message.keep_invisible()
        except LockUnavailable as error:
            message.due = now() + min(1.0, message.interval)
            logger.warning("a running task's message could not be kept invisible: %s", error)

    def _locate(self, wards: list[Ward]) -> None:
        """Ask the store which locks these tokens have; usually one call."""
        for locks in {id(ward.locks): ward.locks for ward in wards}.values():
            tokens = {ward.token: ward for ward in wards if ward.locks is locks}
            answers = [self._look_in(root, locks, tokens) for root in locks.verbs.roots]
            for ward in tokens.values():
                ward.looks += all(answers)

    def _look_in(self, root: str, locks: AppLocks, tokens: dict[str, Ward]) -> bool:
        call = locks.verbs.locate(root, list(tokens), keeper.patience())
        try:
            found = locks.keeper_store.perform(call)
        except LockUnavailable as error:
            logger.warning("the locks of %d tasks are not known yet: %s", len(tokens), error)
            return False
        for token, (name, holder) in found.items():
            self._found(tokens[token], name, holder)
        for token in found.revoked:
            tokens[token].is_revoked = True
            self._tell(tokens[token])
        return True

    def _found(self, ward: Ward, name: str, holder: Any) -> None:
        if holder.fence == 0 and not ward.is_dead:
            return  # it still waits for the lock
        ward.name, ward.task, ward.task_id = name, holder.task, holder.task_id
        if ward.pid is None:
            ward.pid = holder.pid
            self._watch(ward)
        if not ward.is_dead:
            spec = LockSpec(name, ward.ttl)
            lease = WardLease(spec, ward.token, holder.fence, now(), lambda *_: self._tell(ward))
            lease.on_stop = lambda *_: self._tell(ward)
            lease.task, lease.task_id = holder.task, holder.task_id
            keeper.keep(lease, ward.locks.keeper_store, ward.locks.verbs, due=now())
            if ward.token not in self._wards:  # it ended meanwhile, in the main thread
                keeper.discard(ward.token)

    def _settle(self, ward: Ward) -> None:
        """What comes next for it: to be freed, nothing more, or another look."""
        if ward.is_dead:
            self._bury(ward)
        elif ward.name or ward.is_revoked:
            ward.due = math.inf
        else:
            ward.due = now() + ward.ttl / 3

    def _bury(self, ward: Ward) -> None:
        """Looked for twice: its last question may have reached the store after our first look."""
        if ward.name is None and ward.looks < 2 and now() < ward.until:
            ward.due = now() + _SECOND_LOOK
            return
        self.ended(ward.token)
        if ward.name:
            self._free(ward, ward.name)

    def _free(self, ward: Ward, name: str) -> None:
        events.emit("freed", name, ward.token, pid=ward.pid, task=ward.task, task_id=ward.task_id)
        store, past = ward.locks.keeper_store, f"process {ward.pid} died"
        until = now() + ward.ttl
        keeper.give_back(name, ward.token, store, ward.locks.verbs, until, past=past)

    def _tell(self, ward: Ward) -> None:
        """The lease ended while the child runs: have it look, and raise or mark a loss there."""
        if ward.token not in self._wards or not SIGNAL:
            return
        pidfd = self._pidfds.get(ward.pid or 0)
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, SIGNAL)


def _is_alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return pid is not None


wards = Wards()
atexit.register(wards.last_look)
os.register_at_fork(after_in_child=wards.after_fork)
