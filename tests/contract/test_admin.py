"""What the operator sees is the truth, and what the operator does reaches everybody."""

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
from tests.contract.faces import LeaseBackend
from tests.contract.places import Place
from tests.contract.test_line import in_line
from tests.support.waiting import wait_until


def test_list_of_nothing_is_empty(place: Place) -> None:
    assert list(admin.list_locks(place.locks())) == []


def test_list_equals_the_truth_over_pages_and_shards(place: Place) -> None:
    """More than two pages, some released, some lapsed, some with a limit, some waited for."""
    locks = place.locks()
    perform, commands = locks.perform, locks.commands
    fences = {}
    for i in range(330):
        spec = LockSpec(f"lock:{i}", 60, limit=1 + i % 3)
        fences[spec.name] = perform(commands.acquire(spec, f"t{i}", Holder(task_id=f"job{i}")))
    for i in range(0, 330, 11):
        perform(commands.release(f"lock:{i}", f"t{i}"))
        del fences[f"lock:{i}"]
    for i in range(5, 330, 11):
        place.lapse(f"lock:{i}", f"t{i}")
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


def test_list_pages_are_bounded(place: Place) -> None:
    """One call that describes everything would block the server."""
    locks = place.locks(shards=1)
    for i in range(330):
        locks.perform(locks.commands.acquire(LockSpec(f"n{i}"), f"t{i}", Holder()))
    page = locks.perform(locks.commands.page())
    assert page.cursor
    assert PAGE <= len(page.locks) < 2 * PAGE


def test_force_release_takes_it_from_the_holder(
    face: LeaseBackend, other: LeaseBackend, place: Place
) -> None:
    lease = face.acquire("a", holder=Holder(task_id="t"))
    locks = place.locks()
    [taken] = admin.force_release(locks, "a")
    assert (taken.token, taken.task_id, taken.fence) == (lease.token, "t", lease.fence)
    assert place.keys() == {"fence", "log", f"r:{lease.token}"}
    with pytest.raises(LeaseLost):
        face.renew(lease)
    assert other.acquire("a").fence > lease.fence
    assert face.release(lease) is False
    assert other.is_locked("a")


@pytest.mark.usefixtures("without_repoll")
def test_force_release_gives_it_to_the_next_in_line(
    face: LeaseBackend, other: LeaseBackend, place: Place, in_thread: Callable[..., Any]
) -> None:
    face.acquire("a", ttl=60)
    waiter = in_thread(other.acquire, "a", wait=30, ttl=60)
    in_line(face, "a", 1)
    admin.force_release(place.locks(), "a")
    assert waiter.result(timeout=20).token == face.holders("a")[0].token


def test_force_release_with_a_token_spares_the_others(face: LeaseBackend, place: Place) -> None:
    one, two = face.acquire("s", limit=2), face.acquire("s", limit=2)
    locks = place.locks()
    assert admin.force_release(locks, "s", "no such token") == ()
    assert [h.token for h in admin.force_release(locks, "s", one.token)] == [one.token]
    face.renew(two)
    with pytest.raises(LeaseLost):
        face.renew(one)


def test_force_release_of_all_holders_of_a_semaphore(face: LeaseBackend, place: Place) -> None:
    leases = [face.acquire("s", limit=3) for _ in range(3)]
    taken = admin.force_release(place.locks(), "s")
    assert {h.token for h in taken} == {lease.token for lease in leases}
    assert place.keys() == {"fence", "log", *(f"r:{lease.token}" for lease in leases)}


def test_force_release_ends_the_rest_of_at_least(face: LeaseBackend, place: Place) -> None:
    face.release(face.acquire("a", at_least=60))
    assert face.is_locked("a")
    assert len(admin.force_release(place.locks(), "a")) == 1
    assert place.keys() == {"fence", "log"}


def test_force_release_of_a_free_or_lapsed_lock_takes_from_nobody(
    face: LeaseBackend, place: Place
) -> None:
    locks = place.locks()
    assert admin.force_release(locks, "a") == ()
    lease = face.acquire("a")
    place.lapse("a", lease.token)
    assert admin.force_release(locks, "a") == ()
    assert place.keys() == {"fence"}


def test_force_release_leaves_a_record_of_itself(face: LeaseBackend, place: Place) -> None:
    """Who, when, why and from whom, in one step with the act; what took nothing left nothing."""
    locks = place.locks()
    names = [f"a{i}" for i in range(5)]
    fences = [face.acquire(name, holder=Holder(task_id=name, worker="w")).fence for name in names]
    for name in names:
        admin.force_release(locks, name, reason=f"stuck\n{name} ✓", by="ann")
    admin.force_release(locks, "nobody's", reason="in vain")
    acts = admin.history(locks)
    assert [act.at for act in acts] == sorted((act.at for act in acts), reverse=True)
    # Of two in the same millisecond on two shards nobody knows which came first.
    assert {act.name: act.holders[0].fence for act in acts} == dict(zip(names, fences, strict=True))
    assert {(act.act, act.by, act.holders[0].worker) for act in acts} == {
        ("force_release", "ann", "w")
    }
    [one] = admin.history(locks, "a3")
    assert one.why == "stuck\na3 ✓"
    assert abs(one.at - time.time()) < 60
    assert len(admin.history(locks, limit=2)) == 2


def test_stop_is_recorded_and_takes_nothing(face: LeaseBackend, place: Place) -> None:
    lease = face.acquire("a", holder=Holder(task_id="t"))
    locks = place.locks()
    assert [h.token for h in admin.stop(locks, "a", reason="deploy", by="ann")] == [lease.token]
    assert admin.stop(locks, "free") == ()
    assert face.is_locked("a")
    [act] = admin.history(locks)
    assert (act.act, act.name, act.by, act.why) == ("stop", "a", "ann", "deploy")
    assert act.holders[0].token == lease.token


def test_grace_spares_who_gives_it_back(
    face: LeaseBackend, other: LeaseBackend, place: Place, in_thread: Callable[..., Any]
) -> None:
    """Nor is it taken from whoever got it after the one who was asked."""
    lease, locks = face.acquire("a"), place.locks()
    taking = in_thread(admin.force_release, locks, "a", grace=30.0)
    wait_until(lambda: admin.history(locks), what="the request to stop")
    face.release(lease)
    successor = other.acquire("a")
    assert taking.result(timeout=20) == ()
    assert [h.token for h in face.holders("a")] == [successor.token]
    assert [act.act for act in admin.history(locks, only_acts=True)] == ["stop"]


def test_grace_ends(face: LeaseBackend, place: Place) -> None:
    lease, locks = face.acquire("a"), place.locks()
    taken = admin.force_release(locks, "a", grace=0.3, reason="stuck")
    assert [h.token for h in taken] == [lease.token]
    assert {act.act for act in admin.history(locks)} == {"stop", "force_release"}


def test_force_release_of_many_holders_names_the_first(face: LeaseBackend, place: Place) -> None:
    """A record does not grow with the limit."""
    locks = place.locks()
    for number in range(40):
        locks.perform(locks.commands.acquire(LockSpec("s", limit=50), f"t{number}", Holder()))
    assert len(admin.force_release(locks, "s")) == 40
    [act] = admin.history(locks, "s")
    assert len(act.holders) == 16


@pytest.mark.parametrize("verb", ["force_release", "stop"])
def test_act_asked_again_does_not_meet_who_came_since(place: Place, verb: str) -> None:
    """A lost reply: the operator meant the holder of that moment, and hears of him."""
    locks = place.locks()
    first = locks.acquire("a", ttl=30)
    assert first is not None
    owner = locks.commands if verb == "stop" else AdminCommands(locks.commands)
    call = getattr(owner, verb)("a", "", "ann", "hung", request_id="question")
    answer = locks.perform(call)
    assert [holder.token for holder in answer] == [first.token]
    first.release()
    second = locks.acquire("a", ttl=30)
    assert second is not None
    assert locks.perform(call) == answer
    second.renew()
    second.check()
    second.release()
    assert len(admin.history(locks, "a", only_acts=True)) == 1


def test_history_keeps_the_last_thousand_or_so(place: Place) -> None:
    locks = place.locks(shards=1)
    for number in range(1300):
        locks.perform(locks.commands.acquire(LockSpec("a"), f"t{number}", Holder()))
        locks.perform(
            AdminCommands(locks.commands).force_release(
                "a", "", "ann", str(number), request_id=f"{number}"
            )
        )
    acts = admin.history(locks, "a", limit=5000)
    assert [act.why for act in acts] == [str(n) for n in range(1299, 1299 - len(acts), -1)]
    assert 1000 <= len(acts) < 1200


def test_force_release_is_refused_where_it_cannot_be_recorded(
    face: LeaseBackend, place: Place
) -> None:
    """Somebody else's data under the log's key: no act without its record, and none half done."""
    face.acquire("a")
    place.raw.set(place.key("log", "a"), "foreign")
    with pytest.raises(ForeignData):
        admin.force_release(place.locks(), "a")
    assert face.is_locked("a")


def test_reset_of_done_work_leaves_a_record(place: Place) -> None:
    """It lets a payment be made again: who did that, and why, is asked the day after."""
    locks = place.locks()
    pay = idempotent(locks, key="pay:{n}", ttl=60)(lambda n: n)
    pay(1)
    pay(2)
    assert admin.reset_done(locks, "pay:1", reason="refunded", by="ann")
    assert not admin.reset_done(locks, "pay:1", reason="again", by="ann")
    assert admin.reset_done(locks, "pay:2")
    [act] = admin.history(locks, "pay:1")
    assert (act.act, act.by, act.why, act.holders) == ("reset", "ann", "refunded", ())
    assert admin.describe_entry(act).endswith(
        "ann let the work for 'pay:1' be done again. Reason given: refunded"
    )
    [act] = admin.history(locks, "pay:2")
    assert (act.by, act.why) == (admin.current_operator(), "")


def test_reset_asked_again_is_recorded_once(place: Place) -> None:
    """A lost reply: the second question finds the answer of the first, not new work."""
    locks = place.locks()
    idempotent(locks, key="pay", ttl=60)(lambda: 1)()
    call = RecipeCommands(locks.commands).reset("pay", "o:pay", "question", "ann", "refunded")
    assert locks.perform(call) is locks.perform(call) is True
    assert len(admin.history(locks, "pay")) == 1


def test_reset_is_refused_where_it_cannot_be_recorded(place: Place) -> None:
    locks = place.locks()
    idempotent(locks, key="pay", ttl=60)(lambda: 1)()
    place.raw.set(place.key("log", "pay"), "foreign")
    with pytest.raises(ForeignData):
        admin.reset_done(locks, "pay")
    assert [work.key for work in admin.list_done(locks)] == ["pay"]
    assert recipes.reset(locks, "pay")  # the program's own, which is not recorded


def test_history_is_readable_whatever_an_older_version_let_in(
    face: LeaseBackend, place: Place
) -> None:
    """Thirty reasons of 2 MB were more than a reply may be, and nobody saw the rest either."""
    locks = place.locks()
    face.acquire("a", holder=Holder(task_id="t", worker="w"))
    admin.force_release(locks, "a", reason="before", by="ann")
    record = "1 1000 30000 1 - 1 - 1 a" + '{"task": "%s"}' % ("x" * 20_000)
    entry = {"act": "force_release", "name": "a", "by": "é" * 20_000, "why": "y" * 2_000_000}
    for _ in range(30):
        # A field may occur several times, which redis-py does not offer.
        fields = [word for pair in entry.items() for word in pair]
        fields += ["from", "token", "from", "31000", "from", record]
        place.raw.execute_command("XADD", place.key("log", "a"), "*", *fields)
    acts = admin.history(locks, "a")
    assert [act.why[:6] for act in acts] == ["yyyyyy"] * 30 + ["before"]
    assert max(len(act.why) + len(act.by) for act in acts) <= 4000
    assert acts[0].holders[0].token == "token"
