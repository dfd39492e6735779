"""The network between the workers and the lock server, by a proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.nemesis.faults.fault import LONG, Cause, Fault
from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig
from tests.nemesis.tasks import TTL

# A call may take a third of the ttl and tries twice, so a reply may take a sixth.
LATE, TOO_LATE = TTL / 15, TTL / 4
_EVERY = 0.15


@contextmanager
def partition(rig: Rig, holder: Run) -> Iterator[None]:
    rig.proxy.black_hole()
    yield
    rig.proxy.pass_through()


def delay(seconds: float) -> Cause:
    @contextmanager
    def cause(rig: Rig, holder: Run) -> Iterator[None]:
        rig.proxy.delay(seconds)
        yield
        rig.proxy.pass_through()

    return cause


@contextmanager
def lost_replies(rig: Rig, holder: Run) -> Iterator[None]:
    """The reply to a script that comes at least so long after the one before is lost."""
    with _repeated(lambda: rig.proxy.drop_next_reply(b"EVALSHA")):
        yield


@contextmanager
def repeated_replies(rig: Rig, holder: Run) -> Iterator[None]:
    """As a broken proxy does: TCP itself does not repeat."""
    with _repeated(lambda: rig.proxy.repeat_next_reply(b"EVALSHA")):
        yield


@contextmanager
def _repeated(strike: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(_EVERY):
            strike()

    thread = threading.Thread(target=go_on, name="nemesis-network")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


FAULTS = (
    Fault("partition", "no packet between workers and lock server", partition, LONG, cuts_off=True),
    Fault("late", f"replies of the lock server are {LATE:g} s late", delay(LATE), LONG),
    Fault(
        "too_late",
        f"replies of the lock server are {TOO_LATE:g} s late",
        delay(TOO_LATE),
        LONG,
        cuts_off=True,
    ),
    Fault("lost_replies", "replies of the lock server are lost", lost_replies, LONG),
    Fault("repeated_replies", "replies of the lock server come twice", repeated_replies, LONG),
)
