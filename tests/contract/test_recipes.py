"""The recipes on every store: what each promises, and that wrong input writes nothing."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import (
    AsyncLocks,
    LeaseLost,
    LockConflict,
    Locks,
    LockUnavailable,
    LockUsageError,
    StopRequested,
    admin,
)
from celery_locks.core import idempotency as once_room
from celery_locks.core.renewer import renewer
from celery_locks.core.requests import new_token
from celery_locks.recipes import (
    AsyncBuffer,
    AsyncTickets,
    Buffer,
    Tickets,
    claim,
    claim_or_create,
    done_work,
    drain,
    idempotent,
    reset,
    unclaim,
)
from celery_locks.store.commands.locks import Mark
from celery_locks.store.commands.recipes import RecipeCommands, _memo_key
from tests.contract.backends import Backend, ClusterBackend, in_loop, make_backend
from tests.support.waiting import wait_until


class Counter:
    """Work that counts its runs; it fails first, as often as it is told to."""

    def __init__(self, failures: int = 0, result: Any = None) -> None:
        self.runs, self.failures, self.result = 0, failures, result

    def __call__(self) -> Any:
        self.runs += 1
        if self.runs <= self.failures:
            raise OSError("no luck")
        return self.result


def made_once(locks: Locks, work: Callable[[], Any], **options: Any) -> Callable[[int], Any]:
    @idempotent(locks, key="pay:{order}", **options)
    def pay(order: int) -> Any:
        return work()

    return pay


def test_idempotent_repeat_gets_the_saved_result(locks: Locks) -> None:
    work = Counter(result={"paid": [1, "ü", None]})
    pay = made_once(locks, work)
    assert [pay(1), pay(1), pay(1)] == [work.result] * 3
    assert work.runs == 1
    pay(2)
    assert work.runs == 2
    assert locks.info("pay:1") is None


def test_idempotent_key_may_name_a_keyword_that_kwargs_took_up(locks: Locks) -> None:
    """The template is checked at decoration, so a call must find the value too."""
    work = Counter()

    @idempotent(locks, key="pay:{order}")
    def pay(**details: Any) -> None:
        work()

    pay(order=1, note="a")
    pay(order=1, note="b")
    assert work.runs == 1


def test_idempotent_none_is_a_result(locks: Locks) -> None:
    work = Counter()
    pay = made_once(locks, work)
    assert [pay(1), pay(1)] == [None, None]
    assert work.runs == 1


@pytest.mark.parametrize(
    "result", [object(), "x" * (once_room.RESULT_BYTES + 1)], ids=["odd", "big"]
)
def test_idempotent_result_that_cannot_be_kept_leaves_the_mark(locks: Locks, result: Any) -> None:
    """Completed is completed: what the work returned is no reason to run it again."""
    work = Counter(result=result)
    pay = made_once(locks, work)
    assert pay(1) is result
    assert pay(1) == {"skipped": True, "reason": "already_done"}
    assert work.runs == 1


def test_idempotent_failure_leaves_no_mark(locks: Locks, backend: Backend) -> None:
    work = Counter(failures=1, result=7)
    pay = made_once(locks, work)
    with pytest.raises(OSError, match="no luck"):
        pay(1)
    assert list(done_work(locks)) == []
    assert [pay(1), pay(1)] == [7, 7]
    assert work.runs == 2


def test_reuse_never_does_not_repeat_a_failure(locks: Locks) -> None:
    work = Counter(failures=1)
    pay = made_once(locks, work, reuse="never")
    with pytest.raises(OSError, match="no luck"):
        pay(1)
    assert pay(1) == {"skipped": True, "reason": "already_failed"}
    assert reset(locks, "pay:1") is True
    assert pay(1) is None
    assert work.runs == 2


def test_once_failed_does_not_repeat_a_failure_for_a_while(locks: Locks) -> None:
    """A caller learns that the work failed, when and why; afterwards the work runs again."""
    work, began = Counter(failures=1, result=7), time.time()
    pay = made_once(locks, work, once_failed=1.0)
    with pytest.raises(OSError, match="no luck"):
        pay(1)
    answer = pay(1)
    assert work.runs == 1
    assert began - 1 < answer.pop("failed_at") < time.time() + 1
    assert answer == {"skipped": True, "reason": "already_failed", "error": "OSError: no luck"}
    [listed] = done_work(locks)
    assert (listed.key, listed.state, listed.size) == ("pay:1", "already_failed", 0)
    assert listed.error == "OSError: no luck"
    assert 0 < listed.lapses_in <= 1
    wait_until(lambda: pay(1) == 7, 20, what="the work to run again")
    assert work.runs == 2
    assert [listed.state for listed in done_work(locks)] == ["already_done"]


def test_once_failed_can_be_reset_and_is_the_rule_of_the_caller(locks: Locks) -> None:
    work = Counter(failures=2, result=7)
    pay = made_once(locks, work, once_failed=60)
    for _ in range(2):
        with pytest.raises(OSError, match="no luck"):
            pay(1)
        assert reset(locks, "pay:1")
    assert list(done_work(locks)) == []
    work.failures = 3
    with pytest.raises(OSError, match="no luck"):
        pay(1)
    assert made_once(locks, work)(1) == 7  # without once_failed a failure counts as nothing


def test_once_failed_does_not_count_an_interruption(locks: Locks) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(locks, interrupted, once_failed=60)(1)
    assert list(done_work(locks)) == []


def test_once_failed_does_not_hide_that_another_run_completed_the_work(
    locks: Locks, backend: Backend
) -> None:
    """A run that lost its lock fails after another one has completed the work."""

    def lose_and_fail() -> None:
        admin.force_release(locks, "pay:1")
        assert made_once(backend.locks(), lambda: "paid")(1) == "paid"
        raise OSError("no luck")

    with pytest.raises(OSError, match="no luck"):
        made_once(locks, lose_and_fail, once_failed=60)(1)
    assert made_once(locks, Counter(), once_failed=60)(1) == "paid"


@pytest.mark.parametrize("message", ["", "x" * 5000, "\ud800", "a\nb\x1b[31m", "ü" * 300])
def test_once_failed_keeps_any_error(locks: Locks, message: str) -> None:
    def fail() -> None:
        raise OSError(message)

    with pytest.raises(OSError):
        made_once(locks, fail, once_failed=60)(1)
    answer = made_once(locks, fail, once_failed=60)(1)
    assert answer["error"].startswith("OSError")
    assert len(answer["error"]) <= once_room.ERROR_LENGTH
    assert answer["error"].isprintable()
    assert [listed.error for listed in done_work(locks)] == [answer["error"]]


def test_reuse_never_does_not_repeat_what_was_killed(locks: Locks, backend: Backend) -> None:
    """At most once: the mark is left at the start."""
    seen: list[Any] = []

    def work() -> None:
        lease = locks.holders("pay:1")[0]
        backend.lapse("pay:1", lease.token)
        seen.append(made_once(backend.locks(), lambda: "again", reuse="never")(1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(locks, work, reuse="never")(1)
    assert seen == [{"skipped": True, "reason": "already_begun"}]


def test_reuse_always_runs_again(locks: Locks) -> None:
    work = Counter(result=1)
    pay = made_once(locks, work, reuse="always")
    assert [pay(1), pay(1)] == [1, 1]
    assert work.runs == 2
    assert [done.key for done in done_work(locks)] == ["pay:1"]


def test_idempotent_mark_lapses_after_its_ttl(locks: Locks) -> None:
    work = Counter()
    pay = made_once(locks, work, ttl=0.05)
    pay(1)
    wait_until(lambda: not list(done_work(locks)), what="the mark to lapse")
    pay(1)
    assert work.runs == 2


def test_idempotent_is_busy_while_another_is_at_it(locks: Locks, backend: Backend) -> None:
    other = made_once(backend.locks(), Counter())

    def work() -> None:
        with pytest.raises(LockConflict):
            other(1)

    made_once(locks, work)(1)


def test_idempotent_waiter_gets_the_result_of_the_one_before(
    locks: Locks, backend: Backend, in_thread: Callable[..., Any]
) -> None:
    """It was granted the lock and must still check the mark: the double check."""
    second, waiting = Counter(result="second"), []

    def work() -> str:
        waiting.append(in_thread(made_once(backend.locks(), second, wait=10), 1))
        wait_until(lambda: (info := locks.info("pay:1")) and info.waiters, what="one in line")
        return "first"

    assert made_once(locks, work)(1) == "first"
    assert waiting[0].result() == "first"
    assert second.runs == 0
    wait_until(lambda: locks.info("pay:1") is None, what="the lock to be free")


def test_idempotent_work_that_lost_its_lock_is_done_all_the_same(locks: Locks) -> None:
    def work() -> None:
        admin.force_release(locks, "pay:1")
        [lease] = [c.lease for c in renewer._entries.values() if c.lease.name == "pay:1"]
        with pytest.raises(LeaseLost):
            lease.renew()  # type: ignore[attr-defined]

    pay = made_once(locks, work)
    with pytest.raises(LeaseLost):
        pay(1)
    assert pay(1) is None


def test_done_work_is_listed_and_reset(locks: Locks) -> None:
    pay = made_once(locks, Counter(result="abc"))
    for order in range(250):
        pay(order)
    listed = list(admin.list_done(locks))
    assert {done.key for done in listed} == {f"pay:{order}" for order in range(250)}
    assert {(done.state, done.size) for done in listed} == {("already_done", 5)}
    assert all(86000 < done.lapses_in <= 86400 for done in listed)
    assert admin.reset_done(locks, "pay:7") is True
    assert admin.reset_done(locks, "pay:7") is False
    assert len(list(admin.list_done(locks))) == 249


def test_idempotent_coroutine(backend: Backend) -> None:
    runs = []

    async def test(locks: AsyncLocks) -> None:
        @idempotent(locks, key="pay:{order}", wait=5)
        async def pay(order: int) -> int:
            runs.append(order)
            await asyncio.sleep(0.01)
            return order

        assert await asyncio.gather(*(pay(1) for _ in range(8))) == [1] * 8
        assert runs == [1]
        assert await reset(locks, "pay:1") is True

    in_loop(backend, test)


def test_claim_first_comes_everyone_else_gets_it(locks: Locks, backend: Backend) -> None:
    assert claim(locks, "request:1", {"job": 7}) == (True, {"job": 7})
    assert claim(backend.locks(), "request:1", {"job": 8}) == (False, {"job": 7})
    assert unclaim(locks, "request:1") is True
    assert claim(locks, "request:1", None, ttl=0.05) == (True, None)
    wait_until(lambda: claim(locks, "request:1", 2)[0], what="the claim to lapse")


def test_claim_repeated_question_is_still_the_first(locks: Locks) -> None:
    """The reply was lost: the repeated call must not be told that another caller has it."""
    call = RecipeCommands(locks.commands).claim("k (claim)", Mark("c:k", "rtoken 1", 5))
    assert locks.perform(call) == locks.perform(call) == "rtoken 1"


@pytest.mark.parametrize("was_bound", [True, False])
def test_unclaim_asked_again_leaves_the_claim_that_came_since(
    locks: Locks, was_bound: bool
) -> None:
    if was_bound:
        claim(locks, "k", 1)
    call = RecipeCommands(locks.commands).reset("k (claim)", "c:k", "request")
    assert locks.perform(call) is was_bound
    assert claim(locks, "k", 2) == (True, 2)
    assert locks.perform(call) is was_bound
    assert claim(locks, "k", 3) == (False, 2)


def test_claim_or_create_has_one_winner_whoever_comes_meanwhile(
    locks: Locks, backend: Backend
) -> None:
    """A claim takes no lock, and a creator may lose its own: the first binding stands."""
    claimed: list[Any] = []

    def slow() -> str:
        claimed.append(claim(locks, "k", "claimed"))
        return "created"

    assert claim_or_create(locks, "k", slow) == (False, "claimed")
    assert claimed == [(True, "claimed")]
    assert claim(locks, "k", "late") == (False, "claimed")

    def lost() -> str:
        admin.force_release(locks, "other (claim)")
        assert claim_or_create(backend.locks(), "other", lambda: "second") == (True, "second")
        return "first"

    assert claim_or_create(locks, "other", lost) == (False, "second")
    assert claim(locks, "other", "late") == (False, "second")


def test_claim_or_create_makes_one(locks: Locks, backend: Backend) -> None:
    factory = Counter(failures=1, result="job-1")
    with pytest.raises(OSError, match="no luck"):
        claim_or_create(locks, "request:1", factory)
    assert not [key for key in sorted(backend.keys()) if key.startswith("c:")]
    assert claim_or_create(locks, "request:1", factory) == (True, "job-1")
    assert claim_or_create(backend.locks(), "request:1", factory) == (False, "job-1")
    assert claim(locks, "request:1", "other") == (False, "job-1")
    assert factory.runs == 2


def test_claim_or_create_value_without_json_leaves_no_binding(locks: Locks) -> None:
    with pytest.raises(LockUsageError, match="no JSON form"):
        claim_or_create(locks, "request:1", object)
    with pytest.raises(LockUsageError, match="is the most"):
        claim_or_create(locks, "request:1", lambda: "x" * 70_000)
    assert claim_or_create(locks, "request:1", lambda: 1) == (True, 1)


def test_claims_awaited(backend: Backend) -> None:
    async def test(locks: AsyncLocks) -> None:
        made = []

        async def factory() -> str:
            made.append(1)
            await asyncio.sleep(0.01)
            return "job"

        answers = await asyncio.gather(*(claim_or_create(locks, "r", factory) for _ in range(8)))
        assert sorted(answers) == [(False, "job")] * 7 + [(True, "job")]
        assert made == [1]
        assert await claim(locks, "r", "x") == (False, "job")
        assert await unclaim(locks, "r") is True

    in_loop(backend, test)


@pytest.fixture
def list_key(backend: Backend) -> str:
    return f"{backend.prefix}:temp_messages:ann"


def test_drain_takes_in_order_and_no_more_than_there_are(
    locks: Locks, backend: Backend, list_key: str
) -> None:
    assert drain(locks, list_key, 5) == []
    backend.raw.rpush(list_key, *range(7), b"\xff\x00")
    assert drain(locks, list_key, 3) == [b"0", b"1", b"2"]
    assert drain(locks, list_key, 100) == [b"3", b"4", b"5", b"6", b"\xff\x00"]
    assert drain(locks, list_key, 100) == []


def test_drain_of_thousands(locks: Locks, backend: Backend, list_key: str) -> None:
    """More than a script can pass as arguments at once."""
    numbers = [str(number).encode() for number in range(25_000)]
    backend.raw.rpush(list_key, *numbers)
    assert drain(locks, list_key, 20_000) == numbers[:20_000]
    assert drain(locks, list_key, 20_000) == numbers[20_000:]


@pytest.mark.parametrize("count", [3, 100])
def test_drain_repeated_question_gets_the_same(
    locks: Locks, backend: Backend, list_key: str, count: int
) -> None:
    """A lost reply must not lose the messages that were in it."""
    backend.raw.rpush(list_key, *range(7))
    call = RecipeCommands(locks.commands).drain(list_key, count, "token")
    assert locks.perform(call) == locks.perform(call) != []
    backend.raw.rpush(list_key, "new")
    assert locks.perform(call)[0] == b"0"


@pytest.mark.parametrize("odd", ["x}", "{}x"])
def test_drain_of_a_key_that_has_no_tag_loses_nothing(
    locks: Locks, backend: Backend, odd: str
) -> None:
    key = f"{odd}:{backend.prefix}"
    backend.raw.rpush(key, 1, 2)
    call = RecipeCommands(locks.commands).drain(key, 1, backend.prefix)
    try:
        assert locks.perform(call) == locks.perform(call) == [b"1"]
    except LockUnavailable:
        assert isinstance(backend, ClusterBackend), "which may have the memo on another node"
        assert backend.raw.llen(key) == 2
    backend.raw.delete(key)


@pytest.mark.parametrize(
    ("list_key", "memo"),
    [
        ("a:b", "{a:b}:celery-locks:drained:t"),
        ("a:{b}:c", "{b}:celery-locks:drained:t"),
        ("a}b", "celery-locks:drained:t"),
        ("{}a", "celery-locks:drained:t"),
    ],
)
def test_drain_memo_is_in_the_slot_of_the_list(list_key: str, memo: str) -> None:
    assert _memo_key(list_key, "t") == memo


def test_buffer_absorbs_in_order(locks: Locks, backend: Backend) -> None:
    ready: list[str] = []
    buffer = Buffer(locks, "memory", threshold=3, on_ready=ready.append)
    assert [buffer.push("ann", {"n": number}) for number in range(4)] == [1, 2, 3, 4]
    assert ready == ["ann", "ann"]
    buffer.push("bob", "hello")
    assert list(buffer.users().items()) == [("ann", 4), ("bob", 1)]
    got: list[Any] = []
    assert buffer.absorb("ann", got.extend) == 4
    assert got == [{"n": number} for number in range(4)]
    assert buffer.absorb("ann", got.extend) == 0
    assert buffer.users() == {"bob": 1}
    assert buffer.absorb("bob", got.extend) == 1
    assert not [key for key in sorted(backend.keys()) if key[:2] in ("l:", "f:", "u:", "h:")]


def test_buffer_failed_batch_goes_back_in_order(locks: Locks) -> None:
    buffer = Buffer(locks, "memory", batch=2)
    for number in range(3):
        buffer.push("ann", number)

    def fail(messages: list[Any]) -> None:
        buffer.push("ann", "new")
        raise OSError(messages)

    with pytest.raises(OSError, match=r"\[0, 1\]"):
        buffer.absorb("ann", fail)
    got: list[Any] = []
    while buffer.absorb("ann", got.extend):
        pass
    assert got == [0, 1, 2, "new"]


def test_buffer_is_one_pods_for_a_user_and_users_do_not_block(
    locks: Locks, backend: Backend
) -> None:
    buffer, other = Buffer(locks, "memory"), Buffer(backend.locks(), "memory")
    for user in ("ann", "bob"):
        buffer.push(user, 1)
    seen: list[Any] = []

    def work(messages: list[Any]) -> None:
        seen.append(other.absorb("ann", seen.extend))
        seen.append(other.absorb("bob", seen.extend))

    assert buffer.absorb("ann", work) == 1
    assert seen == [None, 1, 1]


@pytest.mark.parametrize("by", ["absorb", "push"])
def test_buffer_batch_of_a_dead_worker_comes_back(locks: Locks, backend: Backend, by: str) -> None:
    buffer = Buffer(locks, "memory")
    for number in range(3):
        buffer.push("ann", number)
    batch = locks.run(buffer._take("ann", None, new_token()))
    assert batch is not None
    assert batch.messages == [0, 1, 2]
    assert buffer.users() == {"ann": 3}
    assert buffer.push("ann", 3) == 1, "a living worker's batch stays with it"
    backend.lapse("memory:ann", batch.lease.token)
    other = Buffer(backend.locks(), "memory")
    if by == "push":
        assert other.push("ann", 4) == 5
    got: list[Any] = []
    other.absorb("ann", got.extend)
    assert got[:4] == [0, 1, 2, 3]
    with pytest.raises(LeaseLost):
        locks.run(buffer._end("ann", batch, is_completed=True))


def test_buffer_push_repeated_is_one_message(locks: Locks) -> None:
    buffer = Buffer(locks, "memory")
    call = RecipeCommands(locks.commands).push(buffer._user_buffer("ann"), "1", "request")
    assert [locks.perform(call), locks.perform(call)] == [1, 1]


def test_buffer_end_of_a_batch_asked_again_is_still_ours(locks: Locks) -> None:
    """Otherwise a batch whose end was confirmed too late would count as lost."""
    buffer = Buffer(locks, "memory")
    buffer.push("ann", 1)
    batch = locks.run(buffer._take("ann", None, new_token()))
    assert batch is not None
    commands, token = RecipeCommands(locks.commands), batch.lease.token
    end = commands.end_batch(buffer._user_buffer("ann"), token, "request", is_completed=True)
    assert [locks.perform(end), locks.perform(end)] == [True, True]
    other = commands.end_batch(buffer._user_buffer("ann"), token, "another", is_completed=True)
    assert locks.perform(other) is False
    batch.lease.release()


def test_buffer_batch_that_was_brought_back_is_not_ours_though_the_lock_is(
    locks: Locks, backend: Backend
) -> None:
    """Its worker froze, its lease lapsed, and it renewed before another worker took the lock."""
    buffer = Buffer(locks, "memory")
    buffer.push("ann", 1)

    def work(messages: list[Any]) -> None:
        [holder] = locks.holders("memory:ann")
        name, now = backend.key("h:", "memory:ann"), time.time()
        backend.raw.zadd(name, {holder.token: (now - 1) * 1000})
        assert buffer.push("ann", 2) == 2
        backend.raw.zadd(name, {holder.token: (now + 30) * 1000})

    with pytest.raises(LeaseLost):
        buffer.absorb("ann", work)
    assert buffer.users() == {"ann": 2}


def test_buffer_awaited(backend: Backend) -> None:
    async def test(locks: AsyncLocks) -> None:
        buffer = AsyncBuffer(locks, "memory")
        for number in range(3):
            await buffer.push("ann", number)
        got: list[Any] = []

        async def fail(messages: list[Any]) -> None:
            raise OSError

        async def work(messages: list[Any]) -> None:
            got.extend(messages)

        with pytest.raises(OSError):
            await buffer.absorb("ann", fail)
        assert await buffer.users() == {"ann": 3}
        assert await buffer.absorb("ann", work) == 3
        assert got == [0, 1, 2]

    in_loop(backend, test)


def test_tickets_are_one_a_user_and_never_oversold(locks: Locks) -> None:
    tickets = Tickets(locks)
    assert tickets.stock("sale", ["a", "b", "a"]) == 2
    first = tickets.take("sale", "ann")
    assert (first.status, bool(first)) == ("taken", True)
    again = tickets.take("sale", "ann")
    assert (again.item, again.status) == (first.item, "already")
    second = tickets.take("sale", "bob")
    assert {first.item, second.item} == {"a", "b"}
    none = tickets.take("sale", "eve")
    assert (none.item, none.status, bool(none)) == (None, "sold_out", False)
    assert tickets.sold("sale") == {"ann": first.item, "bob": second.item}
    assert tickets.left("sale") == 0


def test_tickets_given_back_are_sold_again(locks: Locks) -> None:
    tickets = Tickets(locks)
    tickets.stock("sale", ["a"])
    tickets.take("sale", "ann")
    assert tickets.give_back("sale", "eve") is None
    assert tickets.give_back("sale", "ann") == "a"
    assert tickets.give_back("sale", "ann") is None
    assert tickets.take("sale", "eve").item == "a"
    assert tickets.sold("sale") == {"eve": "a"}


def test_tickets_asked_for_again_are_answered_as_before(locks: Locks) -> None:
    """The reply was lost: the seller must get "taken", and later changes stay."""
    tickets, commands = Tickets(locks), RecipeCommands(locks.commands)
    tickets.stock("sale", ["a"])
    take, late = commands.take("sale", "ann", "q1"), commands.take("sale", "eve", "q2")
    assert locks.perform(take) == locks.perform(take) == ("a", True)
    assert locks.perform(late) == 1
    give_back, none = (
        commands.give_back("sale", "ann", "q3"),
        commands.give_back("sale", "bob", "q4"),
    )
    assert locks.perform(give_back) == "a"
    assert locks.perform(none) is None
    assert tickets.take("sale", "bob").item == "a"
    assert [locks.perform(call) for call in (late, give_back, none)] == [1, "a", None]
    assert tickets.sold("sale") == {"bob": "a"}


def test_tickets_stocked_again_do_not_bring_back_what_is_sold(locks: Locks) -> None:
    """A repeated call, its first reply lost, would oversell."""
    tickets = Tickets(locks)
    items = [f"seat-{number}" for number in range(2500)]
    assert tickets.stock("sale", items) == 2500
    tickets.take("sale", "ann")
    assert tickets.stock("sale", items) == 0
    assert tickets.left("sale") == 2499


def test_tickets_misspelt_name_is_not_sold_out(locks: Locks) -> None:
    with pytest.raises(LockUsageError, match="nothing was ever put in stock 'slae'"):
        Tickets(locks).take("slae", "ann")


def test_tickets_awaited(backend: Backend) -> None:
    async def test(locks: AsyncLocks) -> None:
        tickets = AsyncTickets(locks)
        assert await tickets.stock("sale", [f"{n}" for n in range(5)]) == 5
        taken = await asyncio.gather(*(tickets.take("sale", f"u{n}") for n in range(20)))
        assert sum(map(bool, taken)) == 5
        assert len(await tickets.sold("sale")) == 5
        assert await tickets.left("sale") == 0
        assert await tickets.give_back("sale", next(iter(await tickets.sold("sale"))))

    in_loop(backend, test)


def test_stop_reaches_every_holder_with_the_renewal(locks: Locks, backend: Backend) -> None:
    leases = [locks.acquire("run", limit=3) for _ in range(3)]
    heard: list[Any] = []
    leases[0].on_stop = lambda lease, error: heard.append((lease, str(error)))
    [holder] = backend.locks().stop("run", leases[1].token)
    assert holder.token == leases[1].token
    for lease in leases:
        lease.renew()
    assert [lease.stop_requested for lease in leases] == [False, True, False]
    with pytest.raises(StopRequested, match="asked to stop"):
        leases[1].check()
    leases[0].check()
    assert len(locks.stop("run")) == 3
    for lease in leases:
        lease.renew()
        lease.renew()  # goes on: the lock is still its own
        with pytest.raises(StopRequested):
            lease.check()
    assert heard == [(leases[0], "the holder of lock 'run' is asked to stop")]
    for lease in leases:
        assert lease.release() is True
    fresh = locks.acquire("run", limit=3)
    fresh.renew()
    fresh.check()
    assert locks.stop("nobody has it") == ()


def test_stop_forgets_those_who_are_gone(locks: Locks, backend: Backend) -> None:
    for _ in range(3):
        lease = locks.acquire("run")
        locks.stop("run")
        lease.release()
    lease = locks.acquire("run")
    locks.stop("run")
    assert backend.raw.hkeys(backend.key("notices", "run")) == [lease.token.encode()]


def test_stop_comes_by_itself_within_a_third_of_the_ttl(locks: Locks) -> None:
    with locks.hold("run", ttl=1.2) as lease:
        locks.stop("run")
        wait_until(lambda: lease.stop_requested, 15, what="the request to stop")
        assert lease.remaining > 0


def test_active_says_what_runs_where(locks: Locks) -> None:
    from celery_locks import Holder

    for name, worker in (("run:1", "w1"), ("run:2", "w2"), ("run:3", "w1")):
        locks.acquire(name, holder=Holder(worker=worker, host="h", pid=1))
    assert sorted(run.name for run in locks.active(worker="w1")) == ["run:1", "run:3"]
    assert len(locks.active()) == len(locks.active(worker="h")) == 3
    assert locks.active(worker="w3") == []


def test_is_locked_hint_is_no_older_than_allowed(locks: Locks, backend: Backend) -> None:
    assert locks.is_locked("a", max_age=30) is False
    lease = backend.locks().acquire("a")
    assert lease is not None
    assert locks.is_locked("a", max_age=30) is False, "a hint"
    assert locks.is_locked("a") is True
    assert locks.is_locked("a", max_age=30) is True
    lease.release()
    wait_until(lambda: not locks.is_locked("a", max_age=0.05), what="the hint to age")


WRONG: dict[str, Callable[[Locks], object]] = {
    "claim None": lambda locks: claim(locks, None, 1),  # type: ignore[call-overload]
    "claim empty": lambda locks: claim(locks, "", 1),
    "claim object": lambda locks: claim(locks, "k", object()),
    "claim nan": lambda locks: claim(locks, "k", math.nan),
    "claim ttl 0": lambda locks: claim(locks, "k", 1, ttl=0),
    "claim ttl negative": lambda locks: claim(locks, "k", 1, ttl=-5),
    "claim ttl True": lambda locks: claim(locks, "k", 1, ttl=True),
    "claim long": lambda locks: claim(locks, "k" * 600, 1),
    "claim_or_create no factory": lambda locks: claim_or_create(locks, "k", None),  # type: ignore[call-overload]
    "claim_or_create key": lambda locks: claim_or_create(locks, "", dict),
    "drain None": lambda locks: drain(locks, None, 1),  # type: ignore[call-overload]
    "drain 0": lambda locks: drain(locks, "l", 0),
    "drain negative": lambda locks: drain(locks, "l", -1),
    "drain 1.5": lambda locks: drain(locks, "l", 1.5),  # type: ignore[call-overload]
    "drain True": lambda locks: drain(locks, "l", True),
    "buffer name": lambda locks: Buffer(locks, ""),
    "buffer threshold": lambda locks: Buffer(locks, "b", threshold=0),
    "buffer batch": lambda locks: Buffer(locks, "b", batch="many"),
    "buffer ttl": lambda locks: Buffer(locks, "b", ttl=0.1),
    "buffer on_ready": lambda locks: Buffer(locks, "b", on_ready="task"),
    "push None": lambda locks: Buffer(locks, "b").push(None, 1),  # type: ignore[arg-type]
    "push empty": lambda locks: Buffer(locks, "b").push("", 1),
    "push object": lambda locks: Buffer(locks, "b").push("ann", object()),
    "absorb None": lambda locks: Buffer(locks, "b").absorb(None, print),  # type: ignore[arg-type]
    "absorb no work": lambda locks: Buffer(locks, "b").absorb("ann", None),  # type: ignore[arg-type]
    "absorb wait": lambda locks: Buffer(locks, "b").absorb("ann", print, wait=-1),
    "stock None": lambda locks: Tickets(locks).stock("s", None),  # type: ignore[arg-type]
    "stock empty": lambda locks: Tickets(locks).stock("s", []),
    "stock text": lambda locks: Tickets(locks).stock("s", "abc"),
    "stock with None": lambda locks: Tickets(locks).stock("s", ["a", None]),  # type: ignore[list-item]
    "stock with empty": lambda locks: Tickets(locks).stock("s", ["a", ""]),
    "stock name": lambda locks: Tickets(locks).stock("", ["a"]),
    "take None": lambda locks: Tickets(locks).take("s", None),  # type: ignore[arg-type]
    "take empty": lambda locks: Tickets(locks).take("", "ann"),
    "give_back None": lambda locks: Tickets(locks).give_back("s", None),  # type: ignore[arg-type]
    "sold None": lambda locks: Tickets(locks).sold(None),  # type: ignore[arg-type]
    "left empty": lambda locks: Tickets(locks).left(""),
    "reset None": lambda locks: reset(locks, None),  # type: ignore[arg-type]
    "unclaim empty": lambda locks: unclaim(locks, ""),
    "stop None": lambda locks: locks.stop(None),  # type: ignore[arg-type]
    "is_locked max_age": lambda locks: locks.is_locked("a", max_age=-1),
    "idempotent no key": lambda locks: idempotent(locks, key=""),
    "idempotent ttl": lambda locks: idempotent(locks, key="k", ttl=0),
    "idempotent reuse": lambda locks: idempotent(locks, key="k", reuse="sometimes"),  # type: ignore[arg-type]
    "idempotent once_failed": lambda locks: idempotent(locks, key="k", once_failed=-1),
    "idempotent once_failed never": lambda locks: idempotent(
        locks, key="k", once_failed=5, reuse="never"
    ),
    "idempotent lock_ttl": lambda locks: idempotent(locks, key="k", lock_ttl=0.5),
    "idempotent parameter": lambda locks: idempotent(locks, key="{b}")(lambda a: a),
    "idempotent locks": lambda locks: idempotent("redis://x", key="k"),  # type: ignore[arg-type]
    "idempotent function": lambda locks: idempotent(locks, key="k")(7),  # type: ignore[type-var]
    "idempotent key function": lambda locks: idempotent(locks, key=lambda: "")(lambda: 1)(),
    "idempotent without a key": lambda locks: idempotent(locks, key=lambda: None)(lambda: 1)(),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_and_nothing_is_written(case: str) -> None:
    """One store is enough: nothing is sent to it."""
    backend = make_backend("fakeredis", lambda _: None)
    with pytest.raises(LockUsageError):
        WRONG[case](backend.locks())
    assert backend.keys() == set()
    backend.close()


def test_idempotent_wants_the_face_that_fits(backend: Backend) -> None:
    async def test(locks: AsyncLocks) -> None:
        with pytest.raises(LockUsageError, match="is no coroutine: give Locks"):
            idempotent(locks, key="k")(lambda: 1)

    in_loop(backend, test)

    async def work() -> None: ...

    with pytest.raises(LockUsageError, match="is a coroutine: give AsyncLocks"):
        idempotent(backend.locks(), key="k")(work)


class Away:
    """A store that does not reply to a command, though it may have run it."""

    def __init__(self, locks: Locks, command: str, *, does_it: bool) -> None:
        self._perform, self._command, self._does_it = locks._store.perform, command, does_it
        locks._store.perform = self  # type: ignore[method-assign]

    def __call__(self, effect: Any) -> Any:
        if getattr(getattr(effect, "script", None), "name", "") == self._command:
            if self._does_it:
                self._perform(effect)
            raise LockUnavailable("no answer")
        return self._perform(effect)


def test_mark_that_could_not_be_left_is_left_later(locks: Locks, backend: Backend) -> None:
    """The work is completed: an unreachable server at its end must not make it run again."""
    Away(locks, "release", does_it=False)
    assert made_once(locks, Counter(result=5))(1) == 5
    other = backend.locks()
    wait_until(lambda: list(done_work(other)), what="the mark of the pending release")
    assert made_once(other, Counter(result=6))(1) == 5


def test_reuse_never_is_not_begun_by_a_question_without_an_answer(
    locks: Locks, backend: Backend
) -> None:
    Away(locks, "acquire", does_it=True)
    with pytest.raises(LockUnavailable):
        made_once(locks, Counter(), reuse="never")(1)
    other = backend.locks()
    wait_until(lambda: not list(done_work(other)), what="the mark to be taken back")
    wait_until(lambda: not other.is_locked("pay:1"), what="the release")
    assert made_once(other, Counter(result=6), reuse="never")(1) == 6
