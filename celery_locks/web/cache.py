"""A value that is slow to load: loaded in a thread, not too often, and shared by all callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
_INTERVAL_FACTOR = 3.0  # loading takes at most a third of the time


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The value, when its loading began, and how long that took."""

    value: T
    began: float
    took: float


class SharedCache(Generic[T]):
    """Calls ``load`` in a thread of its own, when a caller comes and the value is old.

    No caller gets a value whose loading began more than ``max_age`` seconds ago.
    """

    def __init__(
        self,
        load: Callable[[], T],
        interval: float,
        max_age: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._interval = interval
        self._max_age = max_age
        self._clock = clock
        self._changed = threading.Condition()
        self._loaded: Loaded[T] | None = None
        self._failed: tuple[float, Exception] | None = None
        self._is_loading = False

    def latest(self) -> Loaded[T] | None:
        """Return the last value without waiting; None if there is none yet or it is too old."""
        with self._changed:
            loaded, now = self._loaded, self._clock()
            if loaded is None or now - loaded.began > max(
                self._interval, _INTERVAL_FACTOR * loaded.took
            ):
                self._start()
            return loaded if loaded and now - loaded.began <= self._max_age else None

    def fresh(self) -> Loaded[T]:
        """Wait for a value whose loading began after this call; raise the error if it failed."""
        since = self._clock()
        with self._changed:
            while True:
                if self._loaded and self._loaded.began >= since:
                    return self._loaded
                if self._failed and self._failed[0] >= since:
                    raise self._failed[1].with_traceback(None)
                self._start()
                self._changed.wait()

    def age(self, loaded: Loaded[T]) -> float:
        return self._clock() - loaded.began

    def _start(self) -> None:
        if self._is_loading:
            return
        self._is_loading = True
        threading.Thread(target=self._run, name="celery-locks-web-cache", daemon=True).start()

    def _run(self) -> None:
        began = self._clock()
        loaded, failed = None, None
        try:
            loaded = Loaded(self._load(), began, self._clock() - began)
        except Exception as error:  # noqa: BLE001 (raised to the callers that wait for the value)
            failed = (began, error)
        with self._changed:
            self._is_loading = False
            self._failed = failed
            self._loaded = loaded or self._loaded
            self._changed.notify_all()
