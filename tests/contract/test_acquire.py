"""Acquire and release: one holder, increasing fences, nothing half acquired."""

import os

import pytest

from celery_locks import Conflict, Holder, LockConflict, LockUsageError
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend


def test_acquire_gives_a_lease_and_then_none(api: LocksApi, other: LocksApi) -> None:
    lease = api.acquire("a")
    assert lease.name == "a"
    assert lease.remaining > 0
    assert other.acquire("a") is None
    assert api.acquire("a") is None, "the same process is no exception"


def test_acquire_of_another_name_is_free(api: LocksApi) -> None:
    assert api.acquire("a")
    assert api.acquire("b")


def test_try_acquire_tells_who_holds_it(api: LocksApi, other: LocksApi) -> None:
    lease = api.acquire(
        "a",
        ttl=20,
        holder=Holder(
            task_id="id 1", task="shop.bill", retries=2, worker="w@h", extra={"queue": "q"}
        ),
    )
    conflict = other.try_acquire("a")
    assert isinstance(conflict, Conflict)
    assert conflict.name == "a"
    assert 19 < conflict.lapses_in < 20.001
    assert conflict.position == 1
    [holder] = conflict.holders
    assert (holder.token, holder.fence) == (lease.token, lease.fence)
    assert (holder.task_id, holder.task, holder.retries) == ("id 1", "shop.bill", 2)
    assert (holder.worker, holder.extra) == ("w@h", {"queue": "q"})
    assert abs(holder.acquired_at - lease.acquired_at) < 5
    assert holder.ttl == 20


def test_hold_holds_while_the_block_runs(api: LocksApi, other: LocksApi) -> None:
    with api.hold("a") as lease:
        assert other.is_locked("a")
        lease.check()
    assert not other.is_locked("a")


def test_hold_releases_when_the_block_raises(api: LocksApi) -> None:
    with pytest.raises(KeyError):
        with api.hold("a"):
            raise KeyError("x")
    assert not api.is_locked("a")


def test_hold_raises_a_conflict_with_the_holder(api: LocksApi, other: LocksApi) -> None:
    """The reader of the message must see where to look."""
    with api.hold("a") as lease:
        with pytest.raises(LockConflict) as caught:
            with other.hold("a"):
                pytest.fail("entered a lock that is held")
    assert caught.value.name == "a"
    assert caught.value.holder
    assert caught.value.holder.token == lease.token
    assert caught.value.holder.pid == os.getpid()
    assert f"pid {os.getpid()}" in str(caught.value)


def test_hold_that_is_not_required_yields_none(api: LocksApi, other: LocksApi) -> None:
    with api.hold("a"):
        with other.hold("a", required=False) as nothing:
            assert nothing is None
        assert api.is_locked("a"), "leaving the empty block freed somebody else's lock"


def test_release_is_idempotent(api: LocksApi, other: LocksApi) -> None:
    lease = api.acquire("a")
    assert api.release(lease) is True
    taken = other.acquire("a")
    assert taken
    assert api.release(lease) is False
    assert other.is_locked("a")


def test_release_frees_only_its_own(api: LocksApi, other: LocksApi, backend: Backend) -> None:
    """The lease lapsed and another holder has the lock: a late release must not free it."""
    late = api.acquire("a")
    backend.lapse("a", late.token)
    current = other.acquire("a")
    assert current
    assert api.release(late) is False
    assert [h.token for h in other.holders("a")] == [current.token]


def test_release_of_a_lapsed_but_untaken_lock_frees_it(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a")
    backend.lapse("a", lease.token)
    assert api.release(lease) is True
    assert backend.keys() == {"fence"}


def test_acquire_twice_with_one_token_gives_one_fence(backend: Backend) -> None:
    """The reply was lost and the call is repeated: it gets the same lease, no second one."""
    locks = backend.locks()
    call = locks.commands.acquire(LockSpec("a", 20), "token", Holder())
    fence = locks.perform(call)
    before = backend.content()
    assert locks.perform(call) == fence
    assert backend.content().keys() == before.keys()
    assert locks.perform(locks.commands.release("a", "token"))
    assert not locks.is_locked("a")


def test_fence_rises_strictly(backend: Backend, kind: str) -> None:
    """Also if the server loses all data in between, and nobody waits for those from before."""
    apis, fences = [backend.api(kind, guard_after_loss=False) for _ in range(2)], []
    for turn in range(30):
        turns = apis[turn % 2]
        lease = turns.acquire("a")
        fences.append(lease.fence)
        if turn % 3 == 0:
            backend.wipe()
        elif turn % 3 == 1:
            backend.lapse("a", lease.token)
        else:
            turns.release(lease)
    assert fences == sorted(set(fences))


def test_fence_rises_even_if_the_servers_clock_went_back(backend: Backend) -> None:
    locks = backend.locks()
    ahead = 4_000_000_000_000_000
    backend.raw.set(backend.key("fence", "a"), ahead)
    first = locks.acquire("a")
    assert first
    assert first.fence == ahead + 1
    first.release()
    second = locks.acquire("a")
    assert second
    assert second.fence == ahead + 2
    second.release()


def test_limit_admits_so_many_and_no_more(api: LocksApi, other: LocksApi) -> None:
    leases = [api.acquire("s", limit=3) for _ in range(3)]
    assert all(leases)
    conflict = other.try_acquire("s", limit=3)
    assert isinstance(conflict, Conflict)
    assert {h.token for h in conflict.holders} == {lease.token for lease in leases}
    api.release(leases[1])
    assert other.acquire("s", limit=3)
    assert other.acquire("s", limit=3) is None
    info = other.info("s")
    assert info
    assert (info.limit, len(info.holders)) == (3, 3)


def test_limit_room_of_a_lapsed_holder_is_used(api: LocksApi, backend: Backend) -> None:
    first, second = api.acquire("s", limit=2), api.acquire("s", limit=2)
    backend.lapse("s", first.token)
    third = api.acquire("s", limit=2)
    assert {h.token for h in api.holders("s")} == {second.token, third.token}
    assert api.acquire("s", limit=2) is None


@pytest.mark.parametrize(("held", "wanted", "gets_it"), [(1, 2, True), (2, 1, False), (3, 4, True)])
def test_caller_is_granted_a_slot_by_its_own_limit(
    api: LocksApi, other: LocksApi, held: int, wanted: int, gets_it: bool
) -> None:
    """Callers that disagree, as during a deployment, do not raise errors for each other."""
    assert api.acquire("s", limit=held)
    answer = other.try_acquire("s", limit=wanted)
    assert isinstance(answer, Conflict) is not gets_it
    if isinstance(answer, Conflict):
        assert answer.held_limit == held
    info = api.info("s")
    assert info
    # Of two that are granted in one millisecond, the token decides which is listed first.
    assert {info.limit, *info.other_limits} == ({held, wanted} if gets_it else {held})


def test_limit_may_change_once_nobody_holds_it(api: LocksApi, backend: Backend) -> None:
    api.release(api.acquire("s", limit=2))
    lapsed = api.acquire("s", limit=3)
    backend.lapse("s", lapsed.token)
    assert api.acquire("s", limit=1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        ("x" * 513, {}),
        ("a", {"ttl": 0.5}),
        ("a", {"ttl": float("inf")}),
        ("a", {"limit": 0}),
        ("a", {"wait": -1}),
        ("a", {"at_least": float("nan")}),
    ],
)
def test_acquire_refuses_bad_input_and_takes_nothing(
    api: LocksApi, backend: Backend, name: str, options: dict[str, float]
) -> None:
    with pytest.raises(LockUsageError):
        api.acquire(name, **options)
    assert backend.keys() == set()


def test_scripts_are_reloaded_when_the_server_lost_them(api: LocksApi, backend: Backend) -> None:
    backend.script_flush()
    lease = api.acquire("a")
    backend.script_flush()
    api.renew(lease)
    backend.script_flush()
    assert api.info("a")
    backend.script_flush()
    assert api.release(lease) is True
    assert backend.keys() == {"fence"}
