"""Who waits while the guard of a server that lost its data lets nobody in."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import LeaseLost, State
from celery_locks.core.renewer import renewer
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.contract.test_guard import end_guard
from tests.contract.test_queue import in_line


def test_lock_of_a_dead_holder_is_granted_after_one_ttl(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """The guard is a delay, not a second lock: the waiter gets it, with a higher fence."""
    lease = api.acquire("a", ttl=2)
    renewer.discard(lease.token)
    backend.wipe()
    assert knowing.acquire("a", ttl=2) is None
    granted = knowing.acquire("a", ttl=2, wait=30)
    assert granted.fence > lease.fence
    assert lease.state is State.LOST, "its own deadline has passed before the grant"
    with pytest.raises(LeaseLost):
        api.renew(lease)


@pytest.mark.usefixtures("without_repoll")
def test_waiters_that_come_while_guarded_are_served_in_order(
    api: LocksApi, knowing: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """Nobody passes the first waiter when the guard ends."""
    api.acquire("b")
    backend.wipe()
    first = in_thread(knowing.acquire, "a", ttl=3, wait=60)
    in_line(api, "a", 1)
    second = in_thread(knowing.acquire, "a", ttl=3, wait=60)
    in_line(api, "a", 2)
    lease = first.result(timeout=60)
    assert not second.done()
    knowing.release(lease)
    assert second.result(timeout=60).fence > lease.fence


@pytest.mark.usefixtures("without_repoll")
def test_nobody_passes_a_waiter_when_the_guard_ends(
    api: LocksApi, knowing: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """The lock has no holder, and still it is not free for a caller that comes later."""
    backend.wipe()
    waiter = in_thread(knowing.acquire, "a", ttl=4, wait=60)
    in_line(api, "a", 1)
    end_guard(backend, "a")
    assert api.acquire("a", ttl=4) is None
    assert waiter.result(timeout=60)
