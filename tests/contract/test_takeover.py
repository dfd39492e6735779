"""A later attempt of a job takes its lock over; nobody else does."""

import pytest

from celery_locks import Conflict, Holder, LeaseLost
from tests.contract.faces import LeaseBackend
from tests.contract.places import Place


def attempt(number: int, job: str = "job") -> Holder:
    return Holder(task_id=job, retries=number)


def test_later_attempt_takes_the_lock_over(
    face: LeaseBackend, other: LeaseBackend, place: Place
) -> None:
    """A retry is published before the attempt before it has ended."""
    first = face.acquire("a", holder=attempt(0))
    second = other.acquire("a", holder=attempt(1))
    assert second.fence > first.fence
    assert [h.retries for h in face.holders("a")] == [1]
    with pytest.raises(LeaseLost):
        face.renew(first)
    assert face.release(first) is False
    assert other.is_locked("a")
    assert other.release(second) is True
    assert place.keys() == {"fence"}


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
    face: LeaseBackend, other: LeaseBackend, place: Place, held: Holder, asking: Holder
) -> None:
    """A redelivered message is the same attempt: it must not run beside itself."""
    assert face.acquire("a", holder=held)
    before = place.content()
    assert isinstance(other.try_acquire("a", holder=asking), Conflict)
    assert place.content() == before


def test_later_attempt_takes_its_own_slot_of_a_semaphore(
    face: LeaseBackend, other: LeaseBackend
) -> None:
    face.acquire("s", limit=2, holder=attempt(0, "one"))
    face.acquire("s", limit=2, holder=attempt(0, "two"))
    assert other.acquire("s", limit=2, holder=attempt(3, "two"))
    assert {(h.task_id, h.retries) for h in face.holders("s")} == {("one", 0), ("two", 3)}


@pytest.mark.parametrize("job", ["with space", "ünï", "a%20b", "-", "{x}", "n\nl\0"])
def test_task_id_of_any_spelling(face: LeaseBackend, other: LeaseBackend, job: str) -> None:
    face.acquire("a", holder=attempt(0, job))
    assert face.holders("a")[0].task_id == job
    assert other.acquire("a", holder=attempt(1, job))
