"""Deletes names that lapsed long ago from the indexes of one server: a background job.

A process that dies leaves the names of its locks behind, and an index of completed work outlives
its marks. Every process that renews leases looks for them now and then, so nothing grows and no
acquire pays for it. Looking is one short call for each index. The processes look at random times,
so whoever looks first deletes what there is and the others find nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable
from time import time
from weakref import ref

from celery_locks.clock import now
from celery_locks.errors import LockUnavailable
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.effects import Operation, Store, run_sync

# Seconds between two looks of a process, on average; and while it finds a full page of names.
_INTERVAL = 15.0
_NEXT_PAGE = 0.1


class CleanupTargets(dict[ref[Store], LockCommands]):
    """The stores in use; any thread adds its own, and one that nobody uses any more is removed."""

    def add(self, store: Store, commands: LockCommands) -> None:
        self[ref(store)] = commands

    def discard(self, store: Store) -> None:
        self.pop(ref(store), None)

    def of_server(self, server: Hashable) -> list[tuple[Store, LockCommands]]:
        """Return one store for each prefix: several may share the server and the prefix."""
        found: dict[str, tuple[Store, LockCommands]] = {}
        for reference in list(self):
            store, commands = reference(), self.get(reference)
            if store is None:
                self.pop(reference, None)
            elif commands and store.server.addresses == server:
                found[commands.prefix] = store, commands
        return list(found.values())


class ServerCleanup:
    """The job of one server; it visits the shards in turn."""

    def __init__(
        self, server: Hashable, targets: CleanupTargets, patience: Callable[[int], float]
    ) -> None:
        self._server = server
        self._targets = targets
        self._patience = patience
        self._turn = random.randrange(1 << 16)
        self._next = now() + _pause()

    @property
    def due(self) -> float:
        return self._next if self._targets.of_server(self._server) else math.inf

    def run(self) -> None:
        has_more = False
        # The renewals of this server wait meanwhile: start no call after half of the budget, and
        # let each take the other half.
        budget = self._patience(2)
        until = now() + budget / 2
        # The wall clock only preselects; prune.lua decides by the server's clock.
        for store, commands in self._targets.of_server(self._server):
            root = commands.roots[self._turn % len(commands.roots)]
            for part in ("index", "completed"):
                if now() < until:
                    steps = AdminCommands(commands).prune_lapsed(root, part, time(), budget / 2)
                    has_more |= _try(steps, store)
            if ref(store) not in self._targets:
                store.close()  # its user closed it meanwhile: leave no connection open
        if not has_more:
            self._turn += 1
        self._next = now() + (_NEXT_PAGE if has_more else _pause())


def _try(steps: Operation[bool], store: Store) -> bool:
    try:
        return run_sync(steps, store.perform)
    except LockUnavailable:
        return False  # the next look, or another process, does it


def _pause() -> float:
    return _INTERVAL * random.uniform(0.5, 1.5)
