"""What operators see is true, and what they do reaches every holder."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import ForeignData, Holder, LeaseLost, admin, recipes
from celery_locks.recipes import idempotent
from celery_locks.store.commands.admin import AdminCommands
from celery_locks.store.commands.locks import PAGE
from celery_locks.store.commands.recipes import RecipeCommands
from celery_locks.types import LockSpec
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend
from tests.contract.test_queue import in_line
from tests.support.waiting import wait_until


def test_list_of_nothing_is_empty(backend: Backend) -> None:
    assert list(admin.list_locks(backend.locks())) == []


def test_list_equals_the_truth_over_pages_and_shards(backend: Backend) -> None:
    """More than two pages, some released, some lapsed, some with a limit, some waited for."""
    locks = backend.locks()
    perform, commands = locks.perform, locks.commands
    fences = {}
    for i in range(330):
        spec = LockSpec(f"lock:{i}", 60, limit=1 + i % 3)
        fences[spec.name] = perform(commands.acquire(spec, f"t{i}", Holder(task_id=f"job{i}")))
    for i in range(0, 330, 11):
        perform(commands.release(f"lock:{i}", f"t{i}"))
        del fences[f"lock:{i}"]
    for i in range(5, 330, 11):
        backend.lapse(f"lock:{i}", f"t{i}")
        del fences[f"lock:{i}"]
    perform(commands.acquire(LockSpec("lock:3"), "waiter", Holder(), alive=60))
    listed = list(admin.list_locks(locks))
    assert len(listed) == len({lock.name for lock in listed})
    assert {lock.name: lock.holders[0].fence for lock in listed} == fences
    for lock in listed:
        number = int(lock.name.removeprefix("lock:"))
        assert lock.limit == 1 + number % 3
        assert [h.task_id for h in lock.holders] == [f"job{number}"]
        assert [w.token for w in lock.waiters] == (["waiter"] if number == 3 else [])
        assert 50 < lock.remaining < 60.001


def test_list_pages_are_bounded(backend: Backend) -> None:
    """One call that describes everything would block the server."""
    locks = backend.locks(shards=1)
    for i in range(330):
        locks.perform(locks.commands.acquire(LockSpec(f"n{i}"), f"t{i}", Holder()))
    page = locks.run(locks.commands.page())
    assert page.cursor
    assert PAGE <= len(page.locks) < 2 * PAGE


def test_force_release_takes_it_from_the_holder(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    lease = api.acquire("a", holder=Holder(task_id="t"))
    locks = backend.locks()
    [taken] = admin.force_release(locks, "a")
    assert (taken.token, taken.task_id, taken.fence) == (lease.token, "t", lease.fence)
    assert backend.keys() == {"fence", "log", "notices"}
    with pytest.raises(LeaseLost):
        api.renew(lease)
    assert other.acquire("a").fence > lease.fence
    assert api.release(lease) is False
    assert other.is_locked("a")


@pytest.mark.usefixtures("without_repoll")
def test_force_release_gives_it_to_the_next_in_line(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    api.acquire("a", ttl=60)
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(api, "a", 1)
    admin.force_release(backend.locks(), "a")
    assert waiter.result(timeout=20).token == api.holders("a")[0].token


def test_force_release_with_a_token_spares_the_others(api: LocksApi, backend: Backend) -> None:
    first, second = api.acquire("s", limit=2), api.acquire("s", limit=2)
    locks = backend.locks()
    assert admin.force_release(locks, "s", "no such token") == ()
    assert [h.token for h in admin.force_release(locks, "s", first.token)] == [first.token]
    api.renew(second)
    with pytest.raises(LeaseLost):
        api.renew(first)


def test_force_release_of_all_holders_of_a_semaphore(api: LocksApi, backend: Backend) -> None:
    leases = [api.acquire("s", limit=3) for _ in range(3)]
    taken = admin.force_release(backend.locks(), "s")
    assert {h.token for h in taken} == {lease.token for lease in leases}
    assert backend.keys() == {"fence", "log", "notices"}
    notified = backend.raw.hkeys(backend.key("notices", "s"))
    assert set(notified) == {lease.token.encode() for lease in leases}


def test_force_release_ends_the_rest_of_at_least(api: LocksApi, backend: Backend) -> None:
    api.release(api.acquire("a", at_least=60))
    assert api.is_locked("a")
    assert len(admin.force_release(backend.locks(), "a")) == 1
    assert backend.keys() == {"fence", "log"}


def test_force_release_of_a_free_or_lapsed_lock_takes_from_nobody(
    api: LocksApi, backend: Backend
) -> None:
    locks = backend.locks()
    assert admin.force_release(locks, "a") == ()
    lease = api.acquire("a")
    backend.lapse("a", lease.token)
    assert admin.force_release(locks, "a") == ()
    assert backend.keys() == {"fence"}


def test_force_release_leaves_a_record_of_itself(api: LocksApi, backend: Backend) -> None:
    """The entry has who, when, why and from whom; an action without effect leaves no entry."""
    locks = backend.locks()
    names = [f"a{i}" for i in range(5)]
    fences = [api.acquire(name, holder=Holder(task_id=name, worker="w")).fence for name in names]
    for name in names:
        admin.force_release(locks, name, reason=f"stuck\n{name} ✓", by="ann")
    admin.force_release(locks, "nobody's", reason="nothing to release")
    entries = admin.history(locks)
    assert [entry.at for entry in entries] == sorted((entry.at for entry in entries), reverse=True)
    # The order of two entries in the same millisecond on two shards is not known.
    assert {entry.name: entry.holders[0].fence for entry in entries} == dict(
        zip(names, fences, strict=True)
    )
    assert {(entry.act, entry.by, entry.holders[0].worker) for entry in entries} == {
        ("force_release", "ann", "w")
    }
    [first] = admin.history(locks, "a3")
    assert first.why == "stuck\na3 ✓"
    assert abs(first.at - time.time()) < 60
    assert len(admin.history(locks, limit=2)) == 2


def test_stop_is_recorded_and_takes_nothing(api: LocksApi, backend: Backend) -> None:
    lease = api.acquire("a", holder=Holder(task_id="t"))
    locks = backend.locks()
    assert [h.token for h in admin.stop(locks, "a", reason="deploy", by="ann")] == [lease.token]
    assert admin.stop(locks, "free") == ()
    assert api.is_locked("a")
    [entry] = admin.history(locks)
    assert (entry.act, entry.name, entry.by, entry.why) == ("stop", "a", "ann", "deploy")
    assert entry.holders[0].token == lease.token


def test_grace_spares_who_gives_it_back(
    api: LocksApi, other: LocksApi, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """Nor is the lock taken from a later holder that was not asked to stop."""
    lease, locks = api.acquire("a"), backend.locks()
    taking = in_thread(admin.force_release, locks, "a", grace=30.0)
    wait_until(lambda: admin.history(locks), what="the request to stop")
    api.release(lease)
    successor = other.acquire("a")
    assert taking.result(timeout=20) == ()
    assert [h.token for h in api.holders("a")] == [successor.token]
    assert [entry.act for entry in admin.history(locks, only_actions=True)] == ["stop"]


def test_grace_ends(api: LocksApi, backend: Backend) -> None:
    lease, locks = api.acquire("a"), backend.locks()
    taken = admin.force_release(locks, "a", grace=0.3, reason="stuck")
    assert [h.token for h in taken] == [lease.token]
    assert {entry.act for entry in admin.history(locks)} == {"stop", "force_release"}


def test_force_release_of_many_holders_names_the_first(api: LocksApi, backend: Backend) -> None:
    """The size of an entry does not grow with the limit."""
    locks = backend.locks()
    for number in range(40):
        locks.perform(locks.commands.acquire(LockSpec("s", limit=50), f"t{number}", Holder()))
    assert len(admin.force_release(locks, "s")) == 40
    [entry] = admin.history(locks, "s")
    assert len(entry.holders) == 16


@pytest.mark.parametrize("command", ["force_release", "stop"])
def test_repeated_call_does_not_affect_a_later_holder(backend: Backend, command: str) -> None:
    """The reply was lost: the operator meant the holder of that time, and gets that holder."""
    locks = backend.locks()
    first = locks.acquire("a", ttl=30)
    assert first is not None
    owner = locks.commands if command == "stop" else AdminCommands(locks.commands)
    call = getattr(owner, command)("a", "", "ann", "hung", request_id="request")
    answer = locks.perform(call)
    assert [holder.token for holder in answer] == [first.token]
    first.release()
    second = locks.acquire("a", ttl=30)
    assert second is not None
    assert locks.perform(call) == answer
    second.renew()
    second.check()
    second.release()
    assert len(admin.history(locks, "a", only_actions=True)) == 1


def test_history_keeps_the_last_thousand_or_so(backend: Backend) -> None:
    locks = backend.locks(shards=1)
    for number in range(1300):
        locks.perform(locks.commands.acquire(LockSpec("a"), f"t{number}", Holder()))
        locks.perform(
            AdminCommands(locks.commands).force_release(
                "a", "", "ann", str(number), request_id=f"{number}"
            )
        )
    entries = admin.history(locks, "a", limit=5000)
    assert [entry.why for entry in entries] == [
        str(n) for n in range(1299, 1299 - len(entries), -1)
    ]
    assert 1000 <= len(entries) < 1200


def test_force_release_is_refused_where_it_cannot_be_recorded(
    api: LocksApi, backend: Backend
) -> None:
    """Foreign data under the key of the log: no action without its entry, and none half done."""
    api.acquire("a")
    backend.raw.set(backend.key("log", "a"), "foreign")
    with pytest.raises(ForeignData):
        admin.force_release(backend.locks(), "a")
    assert api.is_locked("a")


def test_reset_of_done_work_leaves_a_record(backend: Backend) -> None:
    """It allows a second payment: later somebody needs to know who did that, and why."""
    locks = backend.locks()
    pay = idempotent(locks, key="pay:{n}", ttl=60)(lambda n: n)
    pay(1)
    pay(2)
    assert admin.reset_done(locks, "pay:1", reason="refunded", by="ann")
    assert not admin.reset_done(locks, "pay:1", reason="again", by="ann")
    assert admin.reset_done(locks, "pay:2")
    [entry] = admin.history(locks, "pay:1")
    assert (entry.act, entry.by, entry.why, entry.holders) == ("reset", "ann", "refunded", ())
    assert admin.describe_entry(entry).endswith(
        "ann allowed the work for 'pay:1' to run again. Reason: refunded"
    )
    [entry] = admin.history(locks, "pay:2")
    assert (entry.by, entry.why) == (admin.current_operator(), "")


def test_reset_asked_again_is_recorded_once(backend: Backend) -> None:
    """The reply was lost: the repeated call gets the first reply and does nothing new."""
    locks = backend.locks()
    idempotent(locks, key="pay", ttl=60)(lambda: 1)()
    call = RecipeCommands(locks.commands).reset("pay", "o:pay", "question", "ann", "refunded")
    assert locks.perform(call) is locks.perform(call) is True
    assert len(admin.history(locks, "pay")) == 1


def test_reset_is_refused_where_it_cannot_be_recorded(backend: Backend) -> None:
    locks = backend.locks()
    idempotent(locks, key="pay", ttl=60)(lambda: 1)()
    backend.raw.set(backend.key("log", "pay"), "foreign")
    with pytest.raises(ForeignData):
        admin.reset_done(locks, "pay")
    assert [work.key for work in admin.list_done(locks)] == ["pay"]
    assert recipes.reset(locks, "pay")  # the program's own, which is not recorded


def test_history_is_readable_whatever_an_older_version_let_in(
    api: LocksApi, backend: Backend
) -> None:
    """Thirty reasons of 2 MB exceeded the size of a reply, and hid all other entries too."""
    locks = backend.locks()
    api.acquire("a", holder=Holder(task_id="t", worker="w"))
    admin.force_release(locks, "a", reason="before", by="ann")
    record = "1 1000 30000 1 - 1 - 1 a" + '{"task": "%s"}' % ("x" * 20_000)
    entry = {"act": "force_release", "name": "a", "by": "é" * 20_000, "why": "y" * 2_000_000}
    for _ in range(30):
        # A field may occur several times, which redis-py does not offer.
        fields = [text for pair in entry.items() for text in pair]
        fields += ["from", "token", "from", "31000", "from", record]
        backend.raw.execute_command("XADD", backend.key("log", "a"), "*", *fields)
    entries = admin.history(locks, "a")
    assert [entry.why[:6] for entry in entries] == ["yyyyyy"] * 30 + ["before"]
    assert max(len(entry.why) + len(entry.by) for entry in entries) <= 4000
    assert entries[0].holders[0].token == "token"
