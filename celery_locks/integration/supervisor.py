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
from celery_locks.core.lease import BaseLease
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable
from celery_locks.forking import run_after_fork
from celery_locks.integration.app import AppLocks, locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.interrupt import SIGNAL
from celery_locks.store.effects import Call
from celery_locks.store.redis_store import RedisStore
from celery_locks.store.scripts import PlainCommand
from celery_locks.text import printable
from celery_locks.types import LockSpec, Revocation
from celery_locks.validation import MIN_TTL

logger = logging.getLogger("celery_locks")

# When a ward is first looked at: a third of the shortest ttl that it may have.
_FIRST_LOOK = MIN_TTL / 3
_SECOND_LOOK = 0.25
# After a failure that nobody foresaw.
_AGAIN = 1.0
_GIVEN_UP = 60.0


class SupervisedTask:
    """A task under way in a child (or, only for its message, in this process)."""

    locks: AppLocks
    ttl: float = 0.0  # and no locks, before the first look
    message: UnackedMessage | None = None
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


class SupervisedLease(BaseLease):
    """What the main process renews for a child.

    That the store no longer has it may mean that the child has just released it, so nothing is
    said here: the child is asked to look, and says it if it was a loss.
    """

    def lose(self, reason: str, revoked: Revocation | None = None) -> None:
        if self._is_lost_now(reason, revoked) and self._on_lost:
            self._on_lost(self, self.loss(reason))


class UnackedMessage:
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
    def of(cls, request: Any) -> UnackedMessage | None:
        channel = getattr(request.message, "channel", None)
        return cls(request) if hasattr(channel, "unacked_index_key") else None

    def keep_invisible(self) -> None:
        self.due = math.inf if self._request.acknowledged else now() + self.interval
        if not self._request.acknowledged:
            args = ("XX", str(time.time()), self._tag)
            self._store.perform(Call(_ZADD, self._key, args, bool, renewer.patience()))


_ZADD = PlainCommand("ZADD")


def _broker_store(channel: Any) -> RedisStore:
    store = getattr(channel, "_celery_locks_store", None)
    if store is None:
        store = channel._celery_locks_store = RedisStore.from_client(channel.client, "broker")
    assert isinstance(store, RedisStore)
    return store


class ChildSupervisor:
    """All wards of this worker."""

    sees_deaths = hasattr(os, "pidfd_open")

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self._supervised: dict[str, SupervisedTask] = {}
        self._pidfds: dict[int, int] = {}
        self._is_added = False

    @property
    def tokens(self) -> frozenset[str]:
        """Of the tasks under way."""
        return frozenset(self._supervised)

    @property
    def due(self) -> float:
        supervisor = list(self._supervised.values())
        lookups = [supervised.due for supervised in supervisor]
        return min(lookups + [w.message.due for w in supervisor if w.message], default=math.inf)

    def add(self, request: Any, *, children: bool) -> None:
        """A task is about to be given to the pool."""
        acks_late = request.task.acks_late
        if not children and not acks_late:
            return  # the lock is this process's own, and its message is acknowledged
        supervised = SupervisedTask(request, children)
        if acks_late or not self._is_added:
            self._prepare(supervised, acks_late)
        self._supervised[supervised.token] = supervised
        renewer.wake_by(supervised.due)

    def _prepare(self, supervised: SupervisedTask, acks_late: bool) -> None:
        """What is not for the keeper's thread, as it imports modules and takes locks of kombu's.

        A child that is forked meanwhile would wait for these for ever.
        """
        with suppress(ValueError):  # the task itself says so, in its result
            keeps = locks_of(supervised.request.task.app).settings.keep_invisible
            supervised.message = (
                UnackedMessage.of(supervised.request) if keeps and acks_late else None
            )
        if not self._is_added:
            self._is_added = True
            renewer.add_job(self)

    def accepted(self, token: str, pid: int) -> None:
        """The request has the pid already: the child may die at any moment from now on."""
        if pid not in self._pidfds:
            supervised = self._supervised.get(token)
            if supervised and supervised.in_child:
                self._watch(supervised)

    def ended(self, token: str) -> None:
        """The task ended in a way that ran its ``finally``: the child has released."""
        supervised = self._supervised.pop(token, None)
        if (
            supervised and supervised.name
        ):  # else the keeper has not got it, or looks once more (_found)
            renewer.discard(token)

    def died(self, token: str) -> None:
        """Celery says that the process is gone; the pidfd usually said so before."""
        supervised = self._supervised.get(token)
        if supervised and supervised.in_child:
            supervised.die()
            renewer.wake_by(supervised.due)

    def last_look(self) -> None:
        """The worker exits: free what children held that were killed with it."""
        for supervised in list(self._supervised.values()):
            if supervised.in_child and not _is_alive(supervised.pid):
                self.died(supervised.token)
        renewer.wait_idle(1.0)

    # From here on in the keeper's thread, but for _watch.

    def _watch(self, supervised: SupervisedTask) -> None:
        pid = supervised.pid
        if pid is None or pid in self._pidfds or not self.sees_deaths:
            return
        try:
            self._pidfds[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self.died(supervised.token)
            return
        renewer.watch(self._pidfds[pid], lambda: self._child_died(pid))

    def _child_died(self, pid: int) -> None:
        os.close(self._pidfds.pop(pid))
        dead = [
            supervised for supervised in list(self._supervised.values()) if supervised.pid == pid
        ]
        for supervised in dead:
            supervised.die()
        self.run()

    def run(self) -> None:
        moment = now()
        for supervised in list(self._supervised.values()):
            if supervised.due <= moment and not supervised.ttl:
                self._try(self._load_options, supervised)
            if supervised.message and supervised.message.due <= moment:
                self._keep_invisible(supervised.message)
        due = [
            supervised
            for supervised in list(self._supervised.values())
            if supervised.due <= moment and supervised.ttl
        ]
        self._locate([supervised for supervised in due if supervised.name is None])
        for supervised in due:
            self._try(self._settle, supervised)

    def _try(self, step: Callable[[SupervisedTask], None], supervised: SupervisedTask) -> None:
        """One task that cannot be looked after must not cost the others their supervision."""
        try:
            step(supervised)
        except Exception:  # noqa: BLE001
            renewer.reports.failure(
                "the lock of task %r is not looked after", supervised.request.id
            )
            supervised.due = now() + _AGAIN
            if now() > supervised.died_at + _GIVEN_UP:
                self.ended(supervised.token)

    def _load_options(self, supervised: SupervisedTask) -> None:
        task = supervised.request.task
        try:
            header = LockHeader.read_request(supervised.request.request_dict)
            options, locks = task.lock_options(header.options), locks_of(task.app)
        except ValueError:
            options = None  # the task itself says so, in its result
        if not options or not options.enabled:
            self._supervised.pop(supervised.token, None)
            return
        supervised.locks, supervised.ttl = locks, options.ttl
        if not supervised.is_dead:
            more = options.ttl / 3 - _FIRST_LOOK
            supervised.rest(supervised.due + more if supervised.in_child else math.inf)

    def _keep_invisible(self, message: UnackedMessage) -> None:
        try:
            message.keep_invisible()
        except Exception as error:  # noqa: BLE001
            message.due = now() + min(1.0, message.interval)
            sentence = "a running task's message could not be kept invisible: %s"
            if isinstance(error, LockUnavailable):
                logger.warning(sentence, printable(str(error)))
            else:
                renewer.reports.failure(sentence, printable(str(error)))

    def _locate(self, supervisor: list[SupervisedTask]) -> None:
        """Ask the store which locks these tokens have; usually one call."""
        for locks in {id(supervised.locks): supervised.locks for supervised in supervisor}.values():
            tokens = {
                supervised.token: supervised
                for supervised in supervisor
                if supervised.locks is locks
            }
            answers = [self._look_in(root, locks, tokens) for root in locks.commands.roots]
            for supervised in tokens.values():
                supervised.looks += all(answers)

    def _look_in(self, root: str, locks: AppLocks, tokens: dict[str, SupervisedTask]) -> bool:
        try:
            call = locks.commands.locate(root, list(tokens), renewer.patience())
            found = locks.background_store.perform(call)
        except LockUnavailable as error:
            about = (len(tokens), printable(str(error)))
            logger.warning("the locks of %d tasks are not known yet: %s", *about)
            return False
        except Exception:  # noqa: BLE001
            if len(tokens) == 1:
                renewer.reports.failure("the lock of task %r is not known", *_ids_of(tokens))
                return False
            alone = [{token: supervised} for token, supervised in tokens.items()]
            return all(list(map(partial(self._look_in, root, locks), alone)))
        for token, (name, holder) in found.items():
            self._try(partial(self._found, name=name, holder=holder), tokens[token])
        for token in found.revoked:
            tokens[token].is_revoked = True
            self._try(self._tell, tokens[token])
        return True

    def _found(self, supervised: SupervisedTask, name: str, holder: Any) -> None:
        if holder.fence == 0 and not supervised.is_dead:
            return  # it still waits for the lock
        supervised.name, supervised.task, supervised.task_id = name, holder.task, holder.task_id
        if supervised.pid is None:
            supervised.found_pid = holder.pid
            self._watch(supervised)
        if not supervised.is_dead:
            spec = LockSpec(name, supervised.ttl)
            lease = SupervisedLease(
                spec, supervised.token, holder.fence, now(), lambda *_: self._tell(supervised)
            )
            lease.on_stop = lambda *_: self._tell(supervised)
            lease.task, lease.task_id = holder.task, holder.task_id
            renewer.add(
                lease, supervised.locks.background_store, supervised.locks.commands, due=now()
            )
            if supervised.token not in self._supervised:  # it ended meanwhile, in the main thread
                renewer.discard(supervised.token)

    def _settle(self, supervised: SupervisedTask) -> None:
        """What comes next for it: to be freed, nothing more, or another look."""
        if supervised.is_dead:
            self._release_dead(supervised)
        elif supervised.name or supervised.is_revoked:
            supervised.rest(math.inf)
        else:
            supervised.rest(now() + supervised.ttl / 3)

    def _release_dead(self, supervised: SupervisedTask) -> None:
        """Looked for twice: its last question may have reached the store after our first look."""
        if (
            supervised.name is None
            and supervised.looks < 2
            and now() < supervised.died_at + supervised.ttl
        ):
            supervised.due = now() + _SECOND_LOOK
            return
        self.ended(supervised.token)
        if supervised.name:
            self._free(supervised, supervised.name)

    def _free(self, supervised: SupervisedTask, name: str) -> None:
        events.emit(
            "freed",
            name,
            supervised.token,
            pid=supervised.pid,
            task=supervised.task,
            task_id=supervised.task_id,
        )
        store, past = supervised.locks.background_store, f"process {supervised.pid} died"
        until = now() + supervised.ttl
        renewer.release_later(
            name, supervised.token, store, supervised.locks.commands, until, past=past
        )

    def _tell(self, supervised: SupervisedTask) -> None:
        """The lease ended while the child runs: have it look, and raise or mark a loss there."""
        if supervised.token not in self._supervised or not SIGNAL:
            return
        pidfd = self._pidfds.get(supervised.pid or 0)
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, SIGNAL)


def _ids_of(tokens: dict[str, SupervisedTask]) -> list[str]:
    return [supervised.request.id for supervised in tokens.values()]


def _is_alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return pid is not None


supervisor = ChildSupervisor()
atexit.register(supervisor.last_look)
run_after_fork(supervisor.after_fork, "integration")
