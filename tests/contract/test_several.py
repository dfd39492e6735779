"""Several locks are acquired together, all or none; nobody waits while it holds a part of them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import (
    Conflict,
    Holder,
    LeaseLost,
    LockDeadlock,
    LockRevoked,
    LockUsageError,
    admin,
)
from celery_locks.clock import now
from celery_locks.core.lease import Lease
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import AcquireRequest
from celery_locks.rates import Rate
from celery_locks.store.commands.locks import AcquireExtras, RateCheck
from celery_locks.store.commands.replies import GrantSeveral, Limited
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend, store_of
from tests.contract.test_queue import in_line
from tests.support.waiting import wait_until


def one_shard(backend: Backend) -> bool:
    """On a Cluster the locks are acquired one by one, in the order of their names."""
    return len(backend.locks().commands.roots) == 1


def test_all_are_acquired_and_released_together(api: LocksApi, other: LocksApi) -> None:
    lease = api.acquire("a", "b", "c")
    assert set(lease.fences) == {"a", "b", "c"}
    assert lease.fence == lease.fences["a"]
    assert len(set(lease.fences.values())) == 3
    for name in "abc":
        assert other.acquire(name) is None
        assert [holder.fence for holder in api.holders(name)] == [lease.fences[name]]
    assert renewer.tokens >= {lease.token, f"{lease.token}/1", f"{lease.token}/2"}
    assert api.release(lease)
    assert not api.release(lease)
    assert not renewer.tokens & {lease.token, f"{lease.token}/1", f"{lease.token}/2"}
    assert [api.info(name) for name in "abc"] == [None] * 3


@pytest.mark.parametrize("busy", ["a", "b", "c"])
def test_none_is_acquired_if_one_is_busy(
    api: LocksApi, other: LocksApi, backend: Backend, busy: str
) -> None:
    held = other.acquire(busy)
    conflict = api.try_acquire("c", "a", "b")
    assert isinstance(conflict, Conflict)
    assert (conflict.name, conflict.holders[0].token) == (busy, held.token)
    renewer.wait_idle(5)  # a Cluster: those that were acquired before it are released
    for name in {"a", "b", "c"} - {busy}:
        assert api.info(name) is None


def test_each_name_may_have_its_own_limit(api: LocksApi) -> None:
    leases = [api.acquire(f"tenant:{n // 2}", "total", limit=[2, 3]) for n in range(3)]
    assert all(leases)
    conflict = api.try_acquire("tenant:1", "total", limit=[2, 3])
    assert isinstance(conflict, Conflict)
    assert conflict.name == "total"
    api.release(leases[2])
    conflict = api.try_acquire("tenant:0", "total", limit=[2, 3])
    assert isinstance(conflict, Conflict)
    assert conflict.name == "tenant:0"
    assert api.acquire("tenant:1", "total", limit=[2, 3])


def test_several_may_be_shared(api: LocksApi, other: LocksApi) -> None:
    first, second = api.acquire("a", "b", shared=True), other.acquire("b", "a", shared=True)
    assert first
    assert second
    assert other.acquire("b") is None
    assert api.release(first)
    assert other.acquire("a") is None


def test_caller_waits_without_holding_a_part(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    held = api.acquire("b", ttl=60)
    waiter = in_thread(other.acquire, "a", "b", wait=30)
    in_line(api, "b", 1)
    if one_shard(backend):
        assert api.holders("a") == ()
        in_line(api, "a", 1)
    api.release(held)
    lease = waiter.result(timeout=20)
    assert {name: api.holders(name)[0].fence for name in "ab"} == lease.fences
    assert other.release(lease)
    assert [api.info(name) for name in "ab"] == [None] * 2


@pytest.mark.usefixtures("without_repoll")
def test_waiter_for_several_is_woken_and_nobody_passes_it(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    if not one_shard(backend) or not backend.wakes:
        pytest.skip("on a Cluster they are acquired one by one; fakeredis cannot wake")
    b = api.acquire("b", ttl=60)
    both = in_thread(other.acquire, "a", "b", wait=30, ttl=60)
    in_line(api, "a", 1)
    # The lock a is free, and somebody waits for it.
    conflict = api.try_acquire("a")
    assert isinstance(conflict, Conflict)
    assert conflict.holders == ()
    assert "wait for it" in str(conflict)
    behind = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 2)
    api.release(b)
    lease = both.result(timeout=20)
    assert not behind.done()
    other.release(lease)
    assert behind.result(timeout=20).fence > lease.fences["a"]


def test_waiter_that_gives_up_lets_those_behind_it_pass(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    api.acquire("b", ttl=60)
    both = in_thread(other.acquire, "a", "b", wait=1.5)
    in_line(api, "b", 1)
    behind = in_thread(api.acquire, "a", wait=30)
    assert both.result(timeout=20) is None
    assert behind.result(timeout=20)
    info = api.info("b")
    assert info
    assert info.waiters == ()


def test_dead_waiter_for_several_is_passed(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    if not one_shard(backend):
        pytest.skip("on a Cluster they are acquired one by one")
    held = api.acquire("b")
    ask = locks.commands.acquire(LockSpec("a"), "dead", Holder(), alive=0.05, also=[LockSpec("b")])
    assert isinstance(locks.perform(ask), Conflict)
    wait_until(lambda: api.info("a") is None, 20)
    lease = api.acquire("a")
    assert lease
    api.release(lease)
    api.release(held)
    assert api.acquire("a", "b")


def test_repeated_call_is_answered_the_same(backend: Backend) -> None:
    locks = backend.locks()
    if not one_shard(backend):
        pytest.skip("on a Cluster they are acquired one by one")
    ask = locks.commands.acquire(LockSpec("a"), "t", Holder(), also=[LockSpec("b")])
    first, second = locks.perform(ask), locks.perform(ask)
    assert first.fences == second.fences
    leave = locks.commands.release_several(["a", "b"], "t")
    assert [locks.perform(leave), locks.perform(leave)] == [True, False]
    assert [locks.info(name) for name in "ab"] == [None] * 2


def test_loss_of_one_is_the_loss_of_all(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", "b", ttl=3)
    backend.raw.zrem(backend.key("h:", "b"), f"{lease.token}/1")
    wait_until(lambda: lease.state == "lost", 20)
    with pytest.raises(LeaseLost, match="lock 'b', held together with it, is lost"):
        lease.check()
    assert not api.release(lease)
    assert api.acquire("a", "b")


def test_force_release_of_one_revokes_all(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", "b", ttl=3)
    admin.force_release(backend.locks(), "b", reason="stuck", by="ops")
    with pytest.raises(LockRevoked):
        api.renew(lease)
    api.release(lease)
    assert api.acquire("a", "b")


def test_stop_of_one_asks_the_whole_lease(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", "b")
    backend.locks().stop("b")
    api.renew(lease)
    assert lease.stop_requested


def test_renewal_keeps_all_of_them(api: LocksApi) -> None:
    lease = api.acquire("a", "b", ttl=1.5)
    wait_until(lambda: lease.renewals >= 4, 20)
    api.renew(lease, 20)
    for name in "ab":
        info = api.info(name)
        assert info
        assert info.remaining > 15
    assert api.release(lease)


def test_at_least_keeps_all_of_them(api: LocksApi) -> None:
    api.release(api.acquire("a", "b", at_least=60))
    assert [api.holders(name)[0].is_kept for name in "ab"] == [True, True]


def test_paused_lock_keeps_all_from_being_acquired(api: LocksApi, backend: Backend) -> None:
    admin.pause(backend.locks(), "b", reason="stop")
    conflict = api.try_acquire("a", "b")
    assert isinstance(conflict, Conflict)
    assert conflict.name == "b"
    assert conflict.pause
    admin.resume(backend.locks(), "b")
    renewer.wait_idle(5)
    assert api.acquire("a", "b")


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        (("a", "a"), {}, "the name 'a' is there twice"),
        (("a", "b"), {"limit": [1]}, "limit has 1 numbers for 2 locks"),
        (("a", "b"), {"limit": [1, 0]}, "limit of lock 'b' is 0"),
        (("a", "b"), {"reentrant": True}, "reentrant is for one lock"),
        (("a", ""), {}, "must be a text that is not empty"),
        (tuple(map(str, range(17))), {}, "16 locks at once is the most"),
    ],
)
def test_wrong_names_are_refused(
    api: LocksApi, names: tuple[str, ...], options: Any, sentence: str
) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        api.acquire(*names, **options)


def test_callers_in_any_order_do_not_block_each_other(
    api: LocksApi, other: LocksApi, in_thread: Callable[..., Any]
) -> None:
    """The dining philosophers: each needs two of five forks, all in the same direction."""
    users: dict[int, int] = dict.fromkeys(range(5), 0)
    overlaps = []
    meals = dict.fromkeys(range(5), 0)

    def dine(seat: int) -> None:
        forks = (seat, (seat + 1) % 5)
        for _ in range(5):
            with (api, other)[seat % 2].hold(*(f"fork:{n}" for n in forks), wait=50):
                for fork in forks:
                    users[fork] += 1
                overlaps.append(any(users[fork] > 1 for fork in forks))
                for fork in forks:
                    users[fork] -= 1
            meals[seat] += 1

    for seat in [in_thread(dine, seat) for seat in range(5)]:
        seat.result(timeout=60)
    assert set(meals.values()) == {5}
    assert not any(overlaps)


def test_deadlock_with_a_waiter_for_several_is_found(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """Its holder of a waits for b behind one who waits for both: neither could ever go on."""
    if not one_shard(backend):
        pytest.skip("on a Cluster they are acquired one by one")
    entered = threading.Event()

    def hold_both() -> str:
        entered.wait(20)
        with other.hold("a", "b", wait=30):
            return "got both"

    waiter = in_thread(hold_both)
    with api.hold("a"):
        entered.set()
        in_line(api, "a", 1)
        with pytest.raises(LockDeadlock), api.hold("b", wait=20):
            pass
    assert waiter.result(timeout=30) == "got both"


def test_next_attempt_takes_all_of_them_over(api: LocksApi, backend: Backend) -> None:
    locks = backend.locks()
    if not one_shard(backend):
        pytest.skip("on a Cluster they are acquired one by one")

    def ask(token: str, retries: int) -> Any:
        holder = Holder(task_id="job", retries=retries)
        call = locks.commands.acquire(LockSpec("a"), token, holder, also=[LockSpec("b")])
        return locks.perform(call)

    assert isinstance(ask("t0", 0), int)
    assert isinstance(ask("t1", 1), int)
    assert [h.token for name in "ab" for h in api.holders(name)] == ["t1", "t1/1"]
    assert isinstance(ask("t0", 0), Conflict), "an earlier attempt finds the later one"


def test_retry_takes_over_from_the_run_that_published_it_and_no_copy(backend: Backend) -> None:
    """Each lock has a fence of its own, and the retry carries them all, over every shard."""
    locks = backend.locks()

    def ask(token: str, retries: int, *published_by: int) -> Lease | Conflict:
        holder, extras = Holder(task_id="job", retries=retries), AcquireExtras()
        request: AcquireRequest[Lease] = AcquireRequest(
            LockSpec("a"),
            holder,
            token,
            now(),
            extras=extras._replace(published_by=published_by),
            also=(LockSpec("b"),),
        )
        answer = locks.run(locks.operations.acquire(request))
        assert isinstance(answer, Lease | Conflict)
        return answer

    def tokens() -> list[str]:
        return [holder.token for name in "ab" for holder in locks.holders(name)]

    first = ask("t0", 0)
    assert isinstance(first, Lease)
    conflict = ask("t1", 1, first.fences["b"])
    assert isinstance(conflict, Conflict), "a has the fence of another run"
    assert conflict.has_copy_of("job", 2)
    assert tokens() == ["t0", "t0/1"]
    second = ask("t1", 1, *first.fences.values())
    assert isinstance(second, Lease)
    assert tokens() == ["t1", "t1/1"]
    conflict = ask("t2", 2, second.fences["a"])
    assert isinstance(conflict, Conflict), "b has the fence of another run"
    assert [holder.token for holder in locks.holders("b")] == ["t1/1"]
    second.release()
    first.release()


def test_rates_are_decided_together_with_several_locks(backend: Backend) -> None:
    """Nothing is consumed while one of the locks is busy, and nothing is held if a rate is not."""
    locks = backend.locks()
    if not one_shard(backend):
        pytest.skip("on a Cluster they are acquired one by one")
    extras = AcquireExtras(rates=(RateCheck("api", Rate.parse("1/h").text, 0.0),))

    def ask(token: str) -> Any:
        call = locks.commands.acquire(LockSpec("a"), token, Holder(), extras, also=[LockSpec("b")])
        return locks.perform(call)

    held = locks.acquire("b")
    assert held
    assert isinstance(ask("t0"), Conflict)
    assert held.release()
    assert isinstance(ask("t1"), GrantSeveral)
    assert locks.perform(locks.commands.release_several(["a", "b"], "t1"))
    assert isinstance(ask("t2"), Limited)
    assert [locks.info(name) for name in "ab"] == [None] * 2


def test_several_locks_cost_two_round_trips(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = backend.locks()
    if not one_shard(backend):
        pytest.skip("on a Cluster they are acquired one by one")
    calls: list[str] = []
    store = store_of(locks)
    perform = store.perform

    def count(effect: Any) -> Any:
        calls.append(effect.script.name)
        return perform(effect)

    monkeypatch.setattr(store, "perform", count)
    with locks.hold("a", "b", "c", limit=[1, 3, 50]):
        pass
    assert calls == ["acquire", "release_several"]
