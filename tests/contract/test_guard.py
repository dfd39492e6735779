"""A server that lost its data grants nothing that a holder from before may still have."""

import json

import pytest

from celery_locks import (
    Conflict,
    Holder,
    LeaseLost,
    LockConflict,
    LockEvent,
    LockUsageError,
    State,
    admin,
    subscribe,
)
from celery_locks.store.commands.locks import reservation_token
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.support.waiting import wait_until

# Longer than any test takes: the guard of such a lock does not end meanwhile.
LONG = 600.0


def end_guard(backend: Backend, name: str) -> None:
    """Pretend that the data was lost long ago."""
    key = backend.key("epoch", name)
    backend.raw.set(key, int(backend.raw.get(key)) + int(2 * LONG * 1e6))


def epoch(backend: Backend, name: str = "a") -> int:
    return int(backend.raw.get(backend.key("epoch", name)) or 0)


def test_lost_data_lets_nobody_in_beside_the_holder(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """A FLUSHALL must not start the same work twice at once."""
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    answer = knowing.try_acquire("a", ttl=LONG)
    assert isinstance(answer, Conflict)
    assert answer.pause
    assert answer.pause.is_guard
    assert answer.pause.until
    assert LONG - 60 < answer.pause.until - answer.as_of < LONG + 0.01
    assert "is not granted until" in str(answer)
    assert "the lock server lost its data" in str(answer)
    assert Conflict.from_dict(json.loads(json.dumps(answer.as_dict()))).pause == answer.pause
    with pytest.raises(LockConflict, match="lost its data"), knowing.hold("a", ttl=LONG):
        pass
    assert lease.state is State.HELD


def test_renewal_asserts_the_lease_again(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """The holder survives the loss: with the same token, the same fence and what describes it."""
    lease = api.acquire("a", ttl=LONG, limit=2)
    before = api.holders("a")[0]
    backend.wipe()
    kinds: list[str] = []
    unsubscribe = subscribe(lambda event: kinds.append(event.kind))
    try:
        api.renew(lease)
    finally:
        unsubscribe()
    assert kinds == ["reasserted", "renewed"]
    (after,) = api.holders("a")
    assert (after.token, after.fence, after.pid) == (before.token, before.fence, before.pid)
    assert abs(after.acquired_at - before.acquired_at) < 0.01
    info = api.info("a")
    assert info
    assert info.limit == 2
    lease.check()
    assert api.release(lease)


def test_renewer_asserts_the_lease_again_by_itself(api: LocksApi, backend: Backend) -> None:
    """No user calls renew: the background thread must do it, for each of many leases."""
    leases = [api.acquire(f"a{number}", ttl=6) for number in range(5)]
    backend.wipe()
    wait_until(lambda: all(it.renewals for it in leases), 30, what="renewals")
    assert [it.state for it in leases] == [State.HELD] * 5
    assert all(api.is_locked(it.name) for it in leases)


def test_lock_that_is_asserted_again_is_busy_for_others(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    api.renew(lease)
    answer = knowing.try_acquire("a", ttl=LONG)
    assert isinstance(answer, Conflict)
    assert [holder.token for holder in answer.holders] == [lease.token]
    end_guard(backend, "a")
    assert knowing.acquire("a", ttl=LONG) is None
    api.release(lease)
    assert knowing.acquire("a", ttl=LONG).fence > lease.fence


def test_fences_rise_over_a_lease_that_is_asserted_again(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """Also on a server whose clock is behind that of the one before."""
    ahead = 4_000_000_000_000_000
    backend.raw.set(backend.key("fence", "a"), ahead)
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    with pytest.raises(LeaseLost):
        api.renew(lease)  # its fence is later than this server's clock: nobody knows when it began
    end_guard(backend, "a")
    assert knowing.acquire("a", ttl=LONG).fence > lease.fence > ahead


def test_fresh_process_begins_an_epoch_without_a_guard(
    api: LocksApi, other: LocksApi, knowing: LocksApi, backend: Backend, kind: str
) -> None:
    """The limit: it cannot know that there was data. The next one that knows starts the guard."""
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    fresh = backend.api(kind)
    assert fresh.acquire("b", ttl=LONG), "nothing tells it that the server is not a new one"
    assert epoch(backend, "b") > 0
    if backend.key("epoch", "a") == backend.key("epoch", "b"):
        assert knowing.acquire("a", ttl=LONG) is None
        assert epoch(backend) < 0
        assert fresh.acquire("a", ttl=LONG) is None
    api.renew(lease)
    assert lease.state is State.HELD


def test_lease_that_another_took_meanwhile_is_lost(
    api: LocksApi, backend: Backend, kind: str
) -> None:
    """A fresh process has it: asserting it again would make two holders."""
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    taken = backend.api(kind).acquire("a", ttl=LONG)
    assert taken
    with pytest.raises(LeaseLost):
        api.renew(lease)
    assert [holder.token for holder in api.holders("a")] == [taken.token]


def test_lease_past_its_deadline_is_not_asserted_again(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    lease.deadline = 0.0
    with pytest.raises(LeaseLost):
        api.renew(lease)
    assert not api.is_locked("a")


def test_lease_that_was_not_lost_with_the_data_is_not_asserted_again(
    api: LocksApi, backend: Backend
) -> None:
    """Force-released, or taken and released: a missing lease alone proves no loss."""
    lease = api.acquire("a", ttl=LONG)
    backend.raw.delete(backend.key("h:", "a"))
    with pytest.raises(LeaseLost):
        api.renew(lease)
    revoked = api.acquire("b", ttl=LONG)
    backend.wipe()
    api.renew(revoked)
    assert admin.force_release(backend.locks(), "b", reason="test")
    with pytest.raises(LeaseLost, match="test"):
        api.renew(revoked)


def test_loss_of_the_last_writes_is_noticed(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """A failover to a replica that lags: its last number is lower than one that was given out."""
    before = backend.raw.get(backend.key("fence", "a")) or b"0"
    lease = api.acquire("a", ttl=LONG)
    for key in ("h:", "records"):
        backend.raw.delete(backend.key(key, "a"))
    backend.raw.set(backend.key("fence", "a"), before)
    assert api.acquire("a", ttl=LONG) is None
    api.renew(lease)
    assert [holder.fence for holder in api.holders("a")] == [lease.fence]


def test_each_slot_of_a_semaphore_is_asserted_again(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """The others of the three may still run, so that nobody else gets a slot meanwhile."""
    leases = [api.acquire("a", ttl=LONG, limit=3) for _ in range(3)]
    backend.wipe()
    api.renew(leases[0])
    assert knowing.acquire("a", ttl=LONG, limit=3) is None
    for lease in leases:
        api.renew(lease)
    assert len(api.holders("a")) == 3


def test_shared_leases_are_asserted_again(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    leases = [api.acquire("a", ttl=LONG, shared=True) for _ in range(2)]
    backend.wipe()
    for lease in leases:
        api.renew(lease)
    assert [holder.shared for holder in api.holders("a")] == [True, True]
    end_guard(backend, "a")
    assert knowing.acquire("a", ttl=LONG) is None


def test_several_locks_are_guarded_and_asserted_again_together(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    knowing.release(knowing.acquire("a", "b"))
    lease = api.acquire("a", "b", ttl=LONG)
    backend.wipe()
    assert knowing.acquire("a", "b", ttl=LONG) is None
    api.renew(lease)
    assert lease.fences == {name: api.holders(name)[0].fence for name in "ab"}
    assert api.holders("a")[0].also == ("b",)
    assert knowing.acquire("b", ttl=LONG) is None
    assert api.release(lease)


def test_reservation_is_not_guarded_and_gives_way_to_a_run(api: LocksApi, backend: Backend) -> None:
    """A call can be published while the lock is guarded; the run that goes on keeps its lock."""
    locks = backend.locks()
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    message = Holder(task_id="job", task="bill", retries=-1)
    call = locks.commands.acquire(LockSpec("a", LONG), reservation_token("job"), message)
    assert locks.perform(call) > 0
    api.renew(lease)
    assert [holder.token for holder in api.holders("a")] == [lease.token]


def test_reassertion_that_is_repeated_changes_nothing(api: LocksApi, backend: Backend) -> None:
    """Its reply may be lost."""
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    api.renew(lease)
    before = api.holders("a")
    lease._final_state = None
    api.renew(lease)
    assert [(it.token, it.fence) for it in api.holders("a")] == [
        (it.token, it.fence) for it in before
    ]


def test_guard_can_be_switched_off(backend: Backend, kind: str) -> None:
    """Who prefers a second holder to a delay gets the lock at once, as before."""
    first, second = (backend.api(kind, guard_after_loss=False) for _ in range(2))
    second.release(second.acquire("b"))
    assert first.acquire("a", ttl=LONG)
    backend.wipe()
    assert second.acquire("a", ttl=LONG)
    assert "epoch" not in {key.decode().split("}:")[1] for key in backend._lasting()}
    with pytest.raises(LockUsageError, match="guard_after_loss"):
        backend.locks(guard_after_loss="no")


def test_release_while_guarded_is_no_error(
    api: LocksApi, knowing: LocksApi, backend: Backend
) -> None:
    """A short task ends before its first renewal: nothing is left of its lock."""
    events: list[LockEvent] = []
    lease = api.acquire("a", ttl=LONG)
    backend.wipe()
    unsubscribe = subscribe(events.append)
    try:
        assert not api.release(lease)
    finally:
        unsubscribe()
    assert [event.kind for event in events] == ["released"]
    assert not api.is_locked("a")
