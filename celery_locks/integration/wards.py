"""The worker's main process looks after the locks that its children hold.

A ward is one task under way, known by the token that the main process gave it. When it has run for
a third of its ttl, the keeper looks the token up in the store (the child chose the name) and from
then on renews the lease like its own. Each child's death is seen through a pidfd, and everything it
held is freed at once. While a task with ``acks_late`` runs, its unacknowledged message is kept
invisible on a Redis broker, so that it is not redelivered.

The main thread is what limits a worker with short tasks, so it only notes a ward down; what options
and ttl it has is asked in the keeper's thread, of those that are still there after a moment.

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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery_locks import events
from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.interrupt import SIGNAL
from celery_locks.keeper import keeper
from celery_locks.lease import BaseLease
from celery_locks.model import MIN_TTL, LockSpec, Revocation
from celery_locks.store.base import Call
from celery_locks.store.redis import RedisStore
from celery_locks.store.scripts import Command
from celery_locks.text import printable

logger = logging.getLogger("celery_locks")

# When a ward is first looked at: a third of the shortest ttl that it may have.
_FIRST_LOOK = MIN_TTL / 3
_SECOND_LOOK = 0.25
# After a failure that nobody foresaw.
_AGAIN = 1.0
_GIVEN_UP = 60.0


class Ward:
    """A task under way in a child (or, only for its message, in this process)."""

    locks: AppLocks
    ttl: float = 0.0  # and no locks, before the first look
    message: Message | None = None
    name: str | None = None
    task: str | None = None
    task_id: str | None = None
    is_dead: bool = False
    is_revoked: bool = False  # before the store was asked for its name; the child is told
    looks: int = 0  # how often the store knew nothing of it since it died
    died_at: float = math.inf
    found_pid: int | None = None

    def __init__(self, request: Any, in_child: bool) -> None:
        self.request = request
        self.token: str = request.lock_token
        self.in_child = in_child
        self.due = now() + _FIRST_LOOK

    @property
    def pid(self) -> int | None:
        """Of the child that has it, as far as Celery or the store has said so."""
        pid: int | None = self.request.worker_pid
        return pid or self.found_pid

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead, self.looks = True, 0
            self.due = self.died_at = now()

    def rest(self, until: float) -> None:
        """The keeper has nothing to do for it before; unless the main thread just said it died."""
        self.due = until
        if self.is_dead:
            self.due = self.died_at


class WardLease(BaseLease):
    """What the main process renews for a child.

    That the store no longer has it may mean that the child has just released it, so nothing is
    said here: the child is asked to look, and says it if it was a loss.
    """

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        if self._is_lost_now(reason, revoked) and self._on_lost:
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
        acks_late = request.task.acks_late
        if not children and not acks_late:
            return  # the lock is this process's own, and its message is acknowledged
        ward = Ward(request, children)
        if acks_late or not self._is_taken_on:
            self._prepare(ward, acks_late)
        self._wards[ward.token] = ward
        keeper.wake_by(ward.due)

    def _prepare(self, ward: Ward, acks_late: bool) -> None:
        """What is not for the keeper's thread, as it imports modules and takes locks of kombu's.

        A child that is forked meanwhile would wait for these for ever.
        """
        with suppress(ValueError):  # the task itself says so, in its result
            keeps = locks_of(ward.request.task.app).settings.keep_invisible
            ward.message = Message.of(ward.request) if keeps and acks_late else None
        if not self._is_taken_on:
            self._is_taken_on = True
            keeper.take_on(self)

    def accepted(self, token: str, pid: int) -> None:
        """The request has the pid already: the child may die at any moment from now on."""
        if pid not in self._pidfds:
            ward = self._wards.get(token)
            if ward and ward.in_child:
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
            if ward.due <= moment and not ward.ttl:
                self._try(self._get_to_know, ward)
            if ward.message and ward.message.due <= moment:
                self._keep_invisible(ward.message)
        due = [ward for ward in list(self._wards.values()) if ward.due <= moment and ward.ttl]
        self._locate([ward for ward in due if ward.name is None])
        for ward in due:
            self._try(self._settle, ward)

    def _try(self, step: Callable[[Ward], None], ward: Ward) -> None:
        """One task that cannot be looked after must not cost the others their supervision."""
        try:
            step(ward)
        except Exception:  # noqa: BLE001
            keeper.reports.failure("the lock of task %r is not looked after", ward.request.id)
            ward.due = now() + _AGAIN
            if now() > ward.died_at + _GIVEN_UP:
                self.ended(ward.token)

    def _get_to_know(self, ward: Ward) -> None:
        task = ward.request.task
        try:
            header = LockHeader.read_request(ward.request.request_dict)
            options, locks = task.lock_options(header.options), locks_of(task.app)
        except ValueError:
            options = None  # the task itself says so, in its result
        if not options or not options.enabled:
            self._wards.pop(ward.token, None)
            return
        ward.locks, ward.ttl = locks, options.ttl
        if not ward.is_dead:
            more = options.ttl / 3 - _FIRST_LOOK
            ward.rest(ward.due + more if ward.in_child else math.inf)

    def _keep_invisible(self, message: Message) -> None:
        try:
            message.keep_invisible()
        except Exception as error:  # noqa: BLE001
            message.due = now() + min(1.0, message.interval)
            sentence = "a running task's message could not be kept invisible: %s"
            if isinstance(error, LockUnavailable):
                logger.warning(sentence, printable(str(error)))
            else:
                keeper.reports.failure(sentence, printable(str(error)))

    def _locate(self, wards: list[Ward]) -> None:
        """Ask the store which locks these tokens have; usually one call."""
        for locks in {id(ward.locks): ward.locks for ward in wards}.values():
            tokens = {ward.token: ward for ward in wards if ward.locks is locks}
            answers = [self._look_in(root, locks, tokens) for root in locks.verbs.roots]
            for ward in tokens.values():
                ward.looks += all(answers)

    def _look_in(self, root: str, locks: AppLocks, tokens: dict[str, Ward]) -> bool:
        try:
            call = locks.verbs.locate(root, list(tokens), keeper.patience())
            found = locks.keeper_store.perform(call)
        except LockUnavailable as error:
            about = (len(tokens), printable(str(error)))
            logger.warning("the locks of %d tasks are not known yet: %s", *about)
            return False
        except Exception:  # noqa: BLE001
            if len(tokens) == 1:
                keeper.reports.failure("the lock of task %r is not known", *_ids_of(tokens))
                return False
            alone = [{token: ward} for token, ward in tokens.items()]
            return all(list(map(partial(self._look_in, root, locks), alone)))
        for token, (name, holder) in found.items():
            self._try(partial(self._found, name=name, holder=holder), tokens[token])
        for token in found.revoked:
            tokens[token].is_revoked = True
            self._try(self._tell, tokens[token])
        return True

    def _found(self, ward: Ward, name: str, holder: Any) -> None:
        if holder.fence == 0 and not ward.is_dead:
            return  # it still waits for the lock
        ward.name, ward.task, ward.task_id = name, holder.task, holder.task_id
        if ward.pid is None:
            ward.found_pid = holder.pid
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
            ward.rest(math.inf)
        else:
            ward.rest(now() + ward.ttl / 3)

    def _bury(self, ward: Ward) -> None:
        """Looked for twice: its last question may have reached the store after our first look."""
        if ward.name is None and ward.looks < 2 and now() < ward.died_at + ward.ttl:
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


def _ids_of(tokens: dict[str, Ward]) -> list[str]:
    return [ward.request.id for ward in tokens.values()]


def _is_alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return pid is not None


wards = Wards()
atexit.register(wards.last_look)
os.register_at_fork(after_in_child=wards.after_fork)
