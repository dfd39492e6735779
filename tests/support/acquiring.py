"""What tests of the operations ask for: one lock, as a plain process."""

from collections.abc import Callable
from typing import Any

from celery_locks.core.lease import Lease
from celery_locks.core.requests import AcquireRequest
from celery_locks.types import Holder, LockSpec
from tests.support.virtual_clock import VirtualClock

TTL = 9.0
Run = Callable[[Any], Any]


class TimeLimit(Exception):
    """What a signal handler raises, anywhere."""


def ask(clock: VirtualClock, name: str = "a", **fields: Any) -> AcquireRequest[Lease]:
    """Return a request with the token "mine", which begins now."""
    token, at_least = fields.pop("token", "mine"), fields.pop("at_least", 0.0)
    return AcquireRequest(
        LockSpec(name, TTL, at_least=at_least), Holder(pid=7), token, clock(), **fields
    )
