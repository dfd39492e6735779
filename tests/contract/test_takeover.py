"""A later attempt of a job takes its lock over; nobody else does."""

import pytest

from celery_locks import Conflict, Holder, LeaseLost
from tests.contract.apis import LocksApi
from tests.contract.backends import Backend


def attempt(number: int, job: str = "job") -> Holder:
    return Holder(task_id=job, retries=number)


def test_later_attempt_takes_the_lock_over(
    api: LocksApi, other: LocksApi, backend: Backend
) -> None:
    """A retry is published before the earlier attempt has ended."""
    first = api.acquire("a", holder=attempt(0))
    second = other.acquire("a", holder=attempt(1))
    assert second.fence > first.fence
    assert [h.retries for h in api.holders("a")] == [1]
    with pytest.raises(LeaseLost):
        api.renew(first)
    assert api.release(first) is False
    assert other.is_locked("a")
    assert other.release(second) is True
    assert backend.keys() == {"fence"}


@pytest.mark.parametrize(
    ("held", "asking"),
    [
        (attempt(1), attempt(1)),
        (attempt(1), attempt(0)),
        (attempt(0), attempt(1, job="another")),
        (attempt(0), Holder(retries=1)),
        (Holder(), attempt(1)),
        (Holder(), Holder(retries=1)),
        (attempt(0, job="-"), Holder(retries=1)),
        (attempt(0)._replace(nested=True), attempt(1)),
        (attempt(0), attempt(1)._replace(nested=True)),
        (attempt(0)._replace(nested=True), attempt(1)._replace(nested=True)),
    ],
    ids=[
        "same attempt",
        "earlier",
        "another job",
        "no job",
        "held by no job",
        "neither",
        "dash",
        "held by the job's code",
        "asked for by the job's code",
        "both by the job's code",
    ],
)
def test_nobody_else_takes_it_over(
    api: LocksApi, other: LocksApi, backend: Backend, held: Holder, asking: Holder
) -> None:
    """A redelivered message is the same attempt: it must not run beside itself."""
    assert api.acquire("a", holder=held)
    before = backend.content()
    assert isinstance(other.try_acquire("a", holder=asking), Conflict)
    assert backend.content() == before


def test_later_attempt_takes_its_own_slot_of_a_semaphore(api: LocksApi, other: LocksApi) -> None:
    api.acquire("s", limit=2, holder=attempt(0, "one"))
    api.acquire("s", limit=2, holder=attempt(0, "two"))
    assert other.acquire("s", limit=2, holder=attempt(3, "two"))
    assert {(h.task_id, h.retries) for h in api.holders("s")} == {("one", 0), ("two", 3)}


@pytest.mark.parametrize("job", ["with space", "ünï", "a%20b", "-", "{x}", "n\nl\0"])
def test_task_id_of_any_spelling(api: LocksApi, other: LocksApi, job: str) -> None:
    api.acquire("a", holder=attempt(0, job))
    assert api.holders("a")[0].task_id == job
    assert other.acquire("a", holder=attempt(1, job))
