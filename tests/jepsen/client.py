"""One client: ``python -m tests.jepsen.client OPTIONS``, with a ``ClientOptions`` as JSON.

Now and then it stops itself (SIGSTOP) at the worst line: after its last look at the lease, before
it acts. That is what a long pause of the machine or of the process does; ``faults.py`` continues it
after its lease has lapsed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_locks import LeaseLost, Locks, LockUnavailable
from celery_locks.core.lease import Lease
from tests.histories import recorder
from tests.jepsen import broken_locks
from tests.jepsen.storage import FencedStorage, Rejected, Storage

TTL = 1.0
# How the lock of the first workload is acquired: a mutex, a semaphore, readers and a writer.
LOCKS: list[tuple[str, dict[str, Any]]] = [
    ("mutex", {}),
    ("semaphore", {"limit": 2}),
    ("shared", {"shared": True}),
    ("shared", {"shared": True}),
    ("shared", {}),
]
STOPS_ITSELF = 0.04
END = "end"


@dataclass(frozen=True)
class ClientOptions:
    """What a client needs to know; it ends when ``directory`` has the file ``END``."""

    workload: str
    lock_url: str
    storage_url: str
    directory: str
    seed: str
    mistake: str = ""


class Client:
    """The steps of one client until its time is over."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._directory = Path(options.directory)
        self._dice = random.Random(options.seed)
        self._locks = Locks.from_url(options.lock_url, ttl=TTL)
        kind = FencedStorage if options.workload == "set with the fence" else Storage
        self._storage = kind(options.storage_url)

    def run(self) -> None:
        updates = self._options.workload != "lock and unlock"
        while not (self._directory / END).exists():
            try:
                if updates:
                    self._update_set()
                else:
                    self._lock_and_unlock()
            except (LockUnavailable, LeaseLost):
                continue  # the client knows that it does not hold the lock, or may not
        self._storage.close()
        self._locks.close()

    def _lock_and_unlock(self) -> None:
        name, kind = self._dice.choice(LOCKS)
        lease = self._locks.acquire(name, wait=self._dice.choice([None, 0.2, 2.0]), **kind)
        if lease is None:
            return
        self._work()
        if self._dice.random() < 0.1:
            self._locks.renew(lease)
        self._stop_sometimes()
        self._locks.release(lease)

    def _update_set(self) -> None:
        lease = self._locks.acquire("set", wait=2.0)
        if lease is None:
            return
        try:
            self._add_element(lease)
        except Rejected:
            self._note("rejected", "")
        finally:
            self._locks.release(lease)

    def _add_element(self, lease: Lease) -> None:
        element = os.urandom(6).hex()
        elements = self._storage.read(lease.fence)
        self._work()
        lease.check()
        self._stop_sometimes()
        self._storage.write([*elements, element], lease.fence)
        self._note("added", element)

    def _work(self) -> None:
        time.sleep(self._dice.uniform(0.001, 0.01))

    def _stop_sometimes(self) -> None:
        if self._dice.random() < STOPS_ITSELF:
            self._note("stopped itself", "")
            os.kill(os.getpid(), signal.SIGSTOP)

    def _note(self, what: str, element: str) -> None:
        with (self._directory / "journal").open("a") as file:
            file.write(json.dumps({"what": what, "element": element}) + "\n")


def main(text: str) -> None:
    options = ClientOptions(**json.loads(text))
    if options.mistake:
        broken_locks.install(options.mistake)
    recorder.install_if_wanted()
    Client(options).run()


if __name__ == "__main__":
    main(sys.argv[1])
