"""Type-checked by mypy --strict and pyright (``tests/unit/package/test_typing.py``), never run.

A line with an ignore comment is wrong on purpose: both checkers must see it, and complain when
they no longer do. Celery's own types are those of celery-types. What they have no place for is at
the end, in ``by_app_task``.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, assert_type

from celery import Celery, Task, shared_task
from celery.result import AsyncResult, EagerResult

from celery_locks import (
    AsyncLease,
    AsyncLocks,
    Conflict,
    Holder,
    Lease,
    LockedTask,
    LockInfo,
    Locks,
    current_lease,
    limited,
    rate_limited,
    send_task,
    single_instance,
)
from celery_locks.core.null_lease import NullLease
from celery_locks.recipes import Buffer, Taken, Tickets, claim, drain, idempotent, reset
from celery_locks.testing import assert_skipped, hold_lock, in_memory_locks, locks_disabled

app = Celery("shop")


# single_instance leaves a function's signature alone, with and without arguments.


@limited(3, key="api:{number}")
@rate_limited("30/m", key="api:{number}", burst=2)
@rate_limited(lambda number: None)
@rate_limited("1/s", cost=lambda number: 0.5)
def paced(number: int) -> str:
    return str(number)


assert_type(paced(1), str)


@single_instance
def bare(number: int, dry_run: bool = False) -> str:
    return str(number)


@single_instance(key="invoice:{number}", ttl=30, limit=2, on_conflict="wait", wait=5.0)
def with_options(number: int, dry_run: bool = False) -> str:
    return str(number)


@single_instance(key="printer", on_conflict="park", by_priority=True)
def parked(number: int) -> str:
    return str(number)


@single_instance(key="build:{number}", on_conflict="cancel_running", displace_after=60)
def displacing(number: int) -> str:
    return str(number)


def functions() -> None:
    assert_type(bare(1), str)
    assert_type(parked(1) + displacing(1), str)
    assert_type(with_options(1, dry_run=True), str)
    bare("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with_options()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# The recipes answer, or are awaited, as their locks are.


@idempotent(key="invoice:{number}", ttl=60)
def once(number: int) -> str:
    return str(number)


async def recipes(locks: Locks, awaited: AsyncLocks) -> None:
    assert_type(once(1), str)
    assert_type(claim(locks, "request:1", "job"), tuple[bool, Any])
    assert_type(await claim(awaited, "request:1", "job"), tuple[bool, Any])
    assert_type(drain(locks, "messages", 10), list[bytes])
    assert_type(await reset(awaited, "invoice:1"), bool)
    assert_type(Tickets(locks).take("sale", "ann"), Taken)
    assert_type(Buffer(locks, "memory").push("ann", {"n": 1}), int)
    idempotent(locks, key="k", reuse="often")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# Its own options are checked.


def options(key: Callable[[int], str]) -> None:
    single_instance(key=key, on_retry="keep", on_lost="warn", on_unavailable="run", at_least=1)
    single_instance(on_conflict="retry")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(wait="forever", on_conflict="requeue")
    single_instance(key=lambda n: f"n:{n}" if n else None)
    single_instance(wait=5, on_conflict={"run": "wait", "then": "requeue"})
    single_instance(key="k", once=60, once_failed=5)
    single_instance(key="k", settle=1, max_wait=5, arguments=lambda earlier, later: later)
    single_instance(key="k", debounce=1, arguments="first")
    single_instance(debounce=1, arguments="both")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(wait=None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    single_instance(lifetime=30)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def by_name() -> None:
    assert_type(
        send_task(app, "shop.bill", [1], lock={"key": "bill:1"}, queue="q"), AsyncResult[Any]
    )
    send_task(app, "shop.bill", [1])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Below @shared_task: the whole signature is kept.


@shared_task
@single_instance(key="invoice:{number}")
def bill(number: int, dry_run: bool = False) -> str:
    return str(number)


@shared_task(ignore_result=True)
@single_instance
def remind(customer: str) -> None:
    current_lease()


def by_shared_task() -> None:
    assert_type(bill(1), str)
    assert_type(bill.delay(1, dry_run=True), AsyncResult[str])
    assert_type(bill.apply_async((1,)), AsyncResult[str])
    assert_type(remind.delay(customer="7"), AsyncResult[None])
    bill("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bill.delay("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    bill.delay(1, dry=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bill.apply_async(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    remind.si()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# base=LockedTask: celery-types gives back the base, so the base says the signature.


@app.task(base=LockedTask[[int, bool], str])
def charge(number: int, dry_run: bool) -> str:
    return str(number)


@app.task(base=LockedTask[[int], str], bind=True)
@single_instance(key="invoice:{number}")
def refund(self: LockedTask[[int], str], number: int) -> str:
    assert_type(self.lock, Lease | NullLease)
    assert_type(self.lock.fence, int)
    assert_type(self.lock.name, str)
    self.lock.check()
    with self.locks.hold("other", on_conflict="requeue", wait=5) as lease:
        assert_type(lease, Lease)
    self.locks.hold("other", on_conflict="wait")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    return str(number)


# Without parameters the class stands for any signature, also under mypy --strict.


@app.task(base=LockedTask, bind=True)
def loosely_bound(self: LockedTask, number: int) -> str:
    self.lock.check()
    assert_type(self.lock_name(number), str | None)
    return str(number)


@single_instance(key="report:{day}")
@app.task(base=LockedTask[[str], int])
def report(day: str) -> int:
    return len(day)


@shared_task(base=LockedTask[[str], int], bind=True)
def shared_report(self: LockedTask[[str], int], day: str) -> int:
    return len(day)


def by_base() -> None:
    assert_type(charge(1, True), str)
    assert_type(charge.delay(1, True), AsyncResult[str])
    assert_type(charge.apply_async((1, True), lock={"ttl": 5}, countdown=3), AsyncResult[str])
    assert_type(charge.apply((1, True)), EagerResult[str])
    assert_type(refund.delay(1), AsyncResult[str])
    assert_type(refund(1), str)
    assert_type(report.delay("monday"), AsyncResult[int])
    assert_type(shared_report("monday"), int)
    charge("1", True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    charge.delay("1", True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    charge.apply_async((1, True), lock=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    refund.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    report.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    shared_report.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A class of one's own on top.


class Audited(LockedTask[[int], str]):
    def run(self, number: int) -> str:
        self.lock.check()
        return str(number)


def by_class() -> None:
    assert_type(Audited().delay(1), AsyncResult[str])
    Audited().delay("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# The locks themselves.


def locks(client: object) -> None:
    locks = Locks.from_url("redis://localhost", prefix="shop", ttl=10)
    assert_type(locks, Locks)
    assert_type(Locks.from_app(app), Locks)
    assert_type(Locks(client), Locks)
    assert_type(locks.acquire("a", ttl=5, wait=1), Lease | None)
    assert_type(locks.acquire("a", wait="forever"), Lease | None)
    assert_type(locks.try_acquire("a"), Lease | Conflict)
    assert_type(locks.hold("a"), AbstractContextManager[Lease])
    assert_type(locks.hold("a", required=False), AbstractContextManager[Lease | None])
    with locks.hold("a", shared=True) as lease:
        assert_type(lease.shared, bool)
    with locks.hold("a", limit=3, at_least=1.5) as lease:
        assert_type(lease.fence, int)
        assert_type(lease.remaining, float)
        assert_type(lease.release(), bool)
    assert_type(locks.info("a"), LockInfo | None)
    assert_type(locks.holders("a"), tuple[Holder, ...])
    locks.acquire(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.acquire("a", timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def async_locks() -> None:
    locks = AsyncLocks.from_url("redis://localhost")
    assert_type(await locks.acquire("a"), AsyncLease | None)
    async with locks.hold("a", wait=2) as lease:
        assert_type(lease, AsyncLease)
        assert_type(await lease.release(), bool)
    async with locks.hold("a", required=False) as perhaps:
        assert_type(perhaps, AsyncLease | None)
    await locks.acquire("a", timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def leases() -> None:
    assert_type(current_lease(), Lease | None)


def testing() -> None:
    with in_memory_locks(app) as locks, locks_disabled(), hold_lock("a", app=app) as lease:
        assert_type(locks, Locks)
        assert_type(lease, Lease)
    assert_type(assert_skipped(bill.apply((1,)), lock="a"), dict[str, Any])


# Where celery-types has no place for the signature: app.task gives Task[Any, Any] for any function,
# locked or not, and a base without parameters stays without. Everything is accepted there.


@app.task
@single_instance
def loose(number: int) -> str:
    return str(number)


@app.task(base=LockedTask)
def loosely_locked(number: int) -> str:
    return str(number)


# An app whose tasks are all locked can say so.

locked_app: Celery[LockedTask] = Celery("shop", task_cls="celery_locks:LockedTask")


@locked_app.task
def locked_by_app(number: int) -> str:
    return str(number)


def by_app_task() -> None:
    assert_type(locked_by_app.pending(1), Literal["queued", "running"] | None)
    assert_type(loose, Task[Any, Any])
    loose.delay("accepted")
    loosely_locked.delay("accepted")
    loosely_locked.apply_async(("accepted",), lock={"ttl": 5})
    assert_type(loosely_locked.lock.fence, int)
