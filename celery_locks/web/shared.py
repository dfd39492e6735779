"""A value that takes long to get: got in a thread, not too often, and shared by all who look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
_TIMES = 3.0  # getting it takes a third of the time at most


@dataclass(frozen=True, slots=True)
class Got(Generic[T]):
    """The value, and when getting it began and how long it took."""

    value: T
    began: float
    took: float


class Shared(Generic[T]):
    """``get`` is called in a thread of its own, when somebody asks and the value is old.

    Nobody is given a value whose getting began more than ``oldest`` seconds ago.
    """

    def __init__(
        self,
        get: Callable[[], T],
        every: float,
        oldest: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._get = get
        self._every = every
        self._oldest = oldest
        self._clock = clock
        self._changed = threading.Condition()
        self._got: Got[T] | None = None
        self._failed: tuple[float, Exception] | None = None
        self._is_getting = False

    def latest(self) -> Got[T] | None:
        """The last value, at once; None if there is none yet or it is too old."""
        with self._changed:
            got, now = self._got, self._clock()
            if got is None or now - got.began > max(self._every, _TIMES * got.took):
                self._begin()
            return got if got and now - got.began <= self._oldest else None

    def fresh(self) -> Got[T]:
        """A value whose getting began after this call; waits for it. Its error, if it failed."""
        since = self._clock()
        with self._changed:
            while True:
                if self._got and self._got.began >= since:
                    return self._got
                if self._failed and self._failed[0] >= since:
                    raise self._failed[1].with_traceback(None)
                self._begin()
                self._changed.wait()

    def age(self, got: Got[T]) -> float:
        return self._clock() - got.began

    def _begin(self) -> None:
        if self._is_getting:
            return
        self._is_getting = True
        threading.Thread(target=self._run, name="celery-locks-web-shared", daemon=True).start()

    def _run(self) -> None:
        began = self._clock()
        got, failed = None, None
        try:
            got = Got(self._get(), began, self._clock() - began)
        except Exception as error:  # noqa: BLE001 (whoever waits for the value gets it)
            failed = (began, error)
        with self._changed:
            self._is_getting = False
            self._failed = failed
            self._got = got or self._got
            self._changed.notify_all()
