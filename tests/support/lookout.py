"""Looks at some locks all the time and remembers when each was held."""

import threading
import time
from typing import NamedTuple

from celery_locks import Locks, LockUnavailable
from tests.support.journal import Run
from tests.support.waiting import wait_until


class Look(NamedTuple):
    """The lock was held, or not, at some moment between ``before`` and ``after``."""

    before: float
    after: float
    held: bool


class Lookout:
    """Use as a context manager; the looks of a key go on until the block ends."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self._locks = Locks.from_url(url)
        self._looks: dict[str, list[Look]] = {key: [] for key in keys}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Lookout":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._locks.close()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for key, looks in self._looks.items():
                before = time.time()
                try:
                    held = self._locks.is_locked(key)
                except LockUnavailable:
                    continue  # a busy machine answered too late; the next look counts
                looks.append(Look(before, time.time(), held))

    def held_throughout(self, key: str, run: Run) -> int:
        """Fails if the lock was seen free during the run; returns how often it was looked at."""
        within = [
            look
            for look in list(self._looks[key])
            if run.began < look.before and look.after < run.last_sign
        ]
        unlocked = [look.before - run.began for look in within if not look.held]
        assert not unlocked, f"free {len(unlocked)} times while it ran, first after {unlocked[0]} s"
        return len(within)

    def wait_free(self, key: str, run: Run, deadline: float = 20.0) -> None:
        """Wait until the lock was seen free after the run's last sign."""
        wait_until(lambda: self._seen_free(key, run), deadline, what=f"{key} to be seen free")

    def _seen_free(self, key: str, run: Run) -> bool:
        looks = list(self._looks[key])
        return any(not look.held for look in looks if look.before > run.last_sign)
