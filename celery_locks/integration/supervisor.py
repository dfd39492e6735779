"""The worker's main process supervises the locks that its children hold.

A supervised task is known by the token that the main process gave it. When the task has run for a
third of its ttl, the background thread looks the token up in the store (the child chose the lock's
name) and from then on renews the lease. A pidfd reports the death of each child, and everything
that the child held is released at once. While a task with ``acks_late`` runs, its message is kept
invisible (``visibility_extension.py``).

The main thread limits the throughput of a worker with short tasks, so it only adds an entry. The
background thread reads the task's options and ttl, and only of tasks that still run after a moment.

The main thread adds and ends tasks, and prepares the first one (``_prepare``). The background
thread calls ``run`` and the other private methods. ``remove``, ``on_child_lost`` and ``_watch`` are
called by both, and may be. On a system without pidfd, Celery reports the loss of a child.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery_locks import events
from celery_locks.clock import now
from celery_locks.core.renewer import renewer
from celery_locks.errors import LockUnavailable
from celery_locks.forking import run_after_fork
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.headers import LockHeader
from celery_locks.integration.interrupt import SIGNAL
from celery_locks.integration.supervised_task import (
    FIRST_LOOKUP,
    SupervisedLease,
    SupervisedTask,
)
from celery_locks.integration.visibility_extension import (
    BROKER_THREAD,
    UnackedMessage,
    VisibilityJob,
)
from celery_locks.printable_text import printable
from celery_locks.types import LockSpec

_SECOND_LOOKUP = 0.25
# Seconds until the next try after an unexpected error.
_RETRY_AFTER = 1.0
# Seconds after the death of its process until a task whose release keeps failing is given up.
_GIVE_UP_AFTER = 60.0


class ChildSupervisor:
    """All supervised tasks of this worker, as a background job."""

    sees_deaths = hasattr(os, "pidfd_open")

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        self._supervised: dict[str, SupervisedTask] = {}
        self._pidfds: dict[int, int] = {}
        self._has_job = False

    @property
    def tokens(self) -> frozenset[str]:
        """The tokens of the running tasks."""
        return frozenset(self._supervised)

    @property
    def due(self) -> float:
        return min((entry.due for entry in list(self._supervised.values())), default=math.inf)

    def _messages(self) -> list[UnackedMessage]:
        return [entry.message for entry in list(self._supervised.values()) if entry.message]

    def add(self, request: Any, *, in_child: bool) -> None:
        """Supervise a task that is about to be given to the pool; ``in_child``: it runs there."""
        acks_late = request.task.acks_late
        if not in_child and not acks_late:
            return  # this process renews the lock itself, and the message is acknowledged
        entry = SupervisedTask(request, in_child)
        if acks_late or not self._has_job:
            self._prepare(entry, acks_late)
        self._supervised[entry.token] = entry
        renewer.wake_by(entry.due)
        if entry.message:
            renewer.wake_by(entry.message.due, BROKER_THREAD)

    def _prepare(self, entry: SupervisedTask, acks_late: bool) -> None:
        """Do in the main thread what imports modules or takes locks of kombu.

        A child forked while the background thread holds such a lock would wait for it for ever.
        """
        with suppress(ValueError):  # the task itself reports wrong settings, in its result
            keeps = locks_of(entry.request.task.app).settings.keep_invisible
            entry.message = UnackedMessage.of(entry.request) if keeps and acks_late else None
        if not self._has_job:
            self._has_job = True
            renewer.add_job(self)
            renewer.add_job(VisibilityJob(self._messages), BROKER_THREAD)

    def on_accepted(self, token: str, pid: int) -> None:
        """Watch the child that accepted the task; the request has its pid already."""
        if pid not in self._pidfds:
            entry = self._supervised.get(token)
            if entry and entry.in_child:
                self._watch(entry)

    def remove(self, token: str) -> None:
        """Stop supervising a task whose ``finally`` ran: the child has released."""
        entry = self._supervised.pop(token, None)
        # Without a name the renewer does not have it, or _on_found discards it.
        for _, part in entry.parts if entry else ():
            renewer.discard(part)

    def on_child_lost(self, token: str) -> None:
        """Release what a dead child held; the pidfd usually reported its death before Celery."""
        entry = self._supervised.get(token)
        if entry and entry.in_child:
            entry.mark_dead()
            renewer.wake_by(entry.due)

    def release_at_exit(self) -> None:
        """Release what children held that were killed together with the worker."""
        for entry in list(self._supervised.values()):
            if entry.in_child and not _is_alive(entry.pid):
                self.on_child_lost(entry.token)
        renewer.wait_idle(1.0)

    # From here on everything runs in the background thread, and _watch in the main thread too.

    def _watch(self, entry: SupervisedTask) -> None:
        pid = entry.pid
        if pid is None or pid in self._pidfds or not self.sees_deaths:
            return
        try:
            self._pidfds[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self.on_child_lost(entry.token)
            return
        renewer.watch(self._pidfds[pid], lambda: self._on_death(pid))

    def _on_death(self, pid: int) -> None:
        os.close(self._pidfds.pop(pid))
        for entry in [entry for entry in list(self._supervised.values()) if entry.pid == pid]:
            entry.mark_dead()
        self.run()

    def run(self) -> None:
        moment = now()
        for entry in list(self._supervised.values()):
            if entry.due <= moment and not entry.ttl:
                self._run_guarded(self._load_options, entry)
        due = [
            entry for entry in list(self._supervised.values()) if entry.due <= moment and entry.ttl
        ]
        self._locate([entry for entry in due if entry.name is None])
        for entry in due:
            self._run_guarded(self._release_or_postpone, entry)

    def _run_guarded(self, step: Callable[[SupervisedTask], None], entry: SupervisedTask) -> None:
        """Run a step of one task; its error must not affect the supervision of others."""
        try:
            step(entry)
        except Exception:  # noqa: BLE001
            renewer.reports.failure("the lock of task %r is not supervised", entry.request.id)
            entry.due = now() + _RETRY_AFTER
            if now() > entry.died_at + _GIVE_UP_AFTER:
                self.remove(entry.token)

    def _load_options(self, entry: SupervisedTask) -> None:
        task = entry.request.task
        try:
            header = LockHeader.read_request(entry.request.request_dict)
            options, locks = task.lock_options(header.options), locks_of(task.app)
        except ValueError:
            options = None  # the task itself reports it, in its result
        if not options or not options.enabled:
            self._supervised.pop(entry.token, None)
            return
        entry.locks, entry.ttl = locks, options.ttl
        if not entry.is_dead:
            more = options.ttl / 3 - FIRST_LOOKUP
            entry.postpone(entry.due + more if entry.in_child else math.inf)

    def _locate(self, entries: list[SupervisedTask]) -> None:
        """Ask the store which locks these tokens have; usually one call."""
        for locks in {id(entry.locks): entry.locks for entry in entries}.values():
            by_token = {entry.token: entry for entry in entries if entry.locks is locks}
            found = [self._locate_in(root, locks, by_token) for root in locks.commands.roots]
            for entry in by_token.values():
                entry.lookups += all(found)

    def _locate_in(self, root: str, locks: AppLocks, entries: dict[str, SupervisedTask]) -> bool:
        """Look the tokens up in one shard; one by one if a reply cannot be read."""
        try:
            call = locks.commands.locate(root, list(entries), renewer.patience())
            found = locks.operations.background_store.perform(call)
        except LockUnavailable as error:
            about = (len(entries), printable(str(error)))
            renewer.reports.warning("the locks of %d tasks are not known yet: %s", *about)
            return False
        except Exception:  # noqa: BLE001
            if len(entries) == 1:
                [entry] = entries.values()
                renewer.reports.failure("the lock of task %r is not known", entry.request.id)
                return False
            alone = [{token: entry} for token, entry in entries.items()]
            return all(list(map(partial(self._locate_in, root, locks), alone)))
        for token, (name, holder) in found.items():
            limit = found.limits.get(token, 1)
            step = partial(self._on_found, name=name, holder=holder, limit=limit)
            self._run_guarded(step, entries[token])
        for token in found.revoked:
            entries[token].is_revoked = True
            self._run_guarded(self._notify_child, entries[token])
        return True

    def _on_found(self, entry: SupervisedTask, name: str, holder: Any, limit: int) -> None:
        if holder.fence == 0 and not entry.is_dead:
            return  # it still waits for the lock
        entry.also = holder.also
        entry.name, entry.task, entry.task_id = name, holder.task, holder.task_id
        if entry.pid is None:
            entry.found_pid = holder.pid
            self._watch(entry)
        if not entry.is_dead:
            self._start_renewing(entry, holder, limit)
            if entry.token not in self._supervised:  # the main thread removed it meanwhile
                for _, token in entry.parts:
                    renewer.discard(token)

    def _start_renewing(self, entry: SupervisedTask, holder: Any, limit: int) -> None:
        def notify(*_: Any) -> None:
            self._notify_child(entry)

        store, commands = entry.locks.operations.background_store, entry.locks.commands
        for name, token in entry.parts:
            spec = LockSpec(name, entry.ttl, limit or 1, shared=not limit)
            lease = SupervisedLease(spec, token, holder.fence, now(), notify)
            lease.on_stop = notify
            lease.task, lease.task_id = holder.task, holder.task_id
            # Further locks have fences of their own, which the child knows: it asserts those again.
            lease.holder = holder if token == entry.token else None
            renewer.add(lease, store, commands, due=now())

    def _release_or_postpone(self, entry: SupervisedTask) -> None:
        """Release a dead task's lock, or set the time of the next lookup."""
        if entry.is_dead:
            self._release_dead(entry)
        elif entry.name or entry.is_revoked:
            entry.postpone(math.inf)
        else:
            entry.postpone(now() + entry.ttl / 3)

    def _release_dead(self, entry: SupervisedTask) -> None:
        """Release after two lookups: the child's last call may reach the store after the first."""
        is_certain = entry.lookups >= 2 or now() >= entry.died_at + entry.ttl
        if entry.name is None and not is_certain:
            entry.due = now() + _SECOND_LOOKUP
            return
        self.remove(entry.token)
        for name, token in entry.parts:
            self._release(entry, name, token)

    def _release(self, entry: SupervisedTask, name: str, token: str) -> None:
        about: dict[str, Any] = {"task": entry.task, "task_id": entry.task_id}
        events.emit("freed", name, token, pid=entry.pid, **about)
        note = f"process {entry.pid} died"
        entry.locks.operations.release_later(name, token, entry.ttl, history_note=note)

    def _notify_child(self, entry: SupervisedTask) -> None:
        """Signal the child that its lease ended: it checks, and raises or marks a loss."""
        if entry.token not in self._supervised or not SIGNAL:
            return
        pidfd = self._pidfds.get(entry.pid or 0)
        if pidfd is not None:
            with suppress(OSError):  # the child has just died, and its descriptor may be closed
                signal.pidfd_send_signal(pidfd, SIGNAL)


def _is_alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return pid is not None


supervisor = ChildSupervisor()
atexit.register(supervisor.release_at_exit)
run_after_fork(supervisor.after_fork, "integration")
