"""Wait for a condition, never for luck."""

import time
from collections.abc import Callable
from typing import TypeVar

from celery_locks import LockUnavailable

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], deadline: float = 15.0, every: float = 0.01, what: str = ""
) -> T:
    """Return the first true value of `condition`; an AssertionError says what never came.

    The condition is asked at least once, and once more at the very end, so a machine that
    stalls us past the deadline does not fail a test whose condition holds by then. An answer
    of the lock server that comes too late counts as "not yet".
    """
    ends = time.monotonic() + deadline
    while True:
        late = time.monotonic() >= ends
        unavailable = None
        try:
            if value := condition():
                return value
        except LockUnavailable as error:
            unavailable = error
        if late:
            sentence = f"Waited {deadline:g} s in vain for {what or repr(condition)}."
            raise AssertionError(sentence) from unavailable
        time.sleep(every)
