"""The tree as its docstring draws it, and errors that survive the way through a result backend."""

import json
import pickle
from dataclasses import replace

import pytest

from celery_locks import errors
from celery_locks.errors import (
    LeaseLost,
    LockConflict,
    LockDeadlock,
    LockError,
    LockRevoked,
    LockUnavailable,
    LockUsageError,
    TaskLockAcquireError,
)
from celery_locks.types import Blocker, Conflict, Holder

PARENTS = {
    "LockConflict": "LockError",
    "AlreadyQueued": "LockConflict",
    "LockDeadlock": "LockConflict",
    "TaskLockAcquireError": "LockConflict",
    "LeaseLost": "LockError",
    "LockRevoked": "LeaseLost",
    "StopRequested": "LockError",
    "RateLimited": "LockError",
    "AlreadyDone": "LockError",
    "LockUnavailable": "LockError",
    "ServerReadOnly": "LockUnavailable",
    "ServerOutOfMemory": "LockUnavailable",
    "ServerRefused": "LockUnavailable",
    "ServerTooOld": "LockUnavailable",
    "ForeignData": "LockUnavailable",
    "LockUsageError": "LockError",
}
CONFLICT = Conflict(
    "invoice:42",
    (
        Holder(token="t", fence=7, task_id="id", task="shop.bill", worker="w1@host", pid=12),
        Holder(host="h2", pid=3),
    ),
    4.25,
    2,
)


def test_tree_is_as_drawn() -> None:
    found = {
        name: cls.__mro__[1].__name__
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, LockError) and cls is not LockError
    }
    assert found == PARENTS
    assert all(name in (errors.__doc__ or "") for name in found)


def test_usage_error_is_a_value_error() -> None:
    assert issubclass(LockUsageError, ValueError)


@pytest.mark.parametrize("cls", [LockConflict, TaskLockAcquireError])
def test_conflict_survives_pickling(cls: type[LockConflict]) -> None:
    """Celery pickles what a task raises; an error that cannot be unpickled hides the reason."""
    again = pickle.loads(pickle.dumps(cls(CONFLICT)))
    assert type(again) is cls
    without_tokens = tuple(holder._replace(token="") for holder in CONFLICT.holders)
    assert again.conflict == replace(CONFLICT, holders=without_tokens)
    assert (again.name, again.holders) == ("invoice:42", without_tokens)
    assert again.holder == without_tokens[0]
    assert str(again) == str(cls(CONFLICT))


def test_deadlock_survives_pickling_and_a_json_result() -> None:
    """The cycle is what the reader of a failed task's result needs."""
    theirs = Holder(
        token="t", task_id="id", task="shop.bill", worker="w1@host", pid=12, owner="p.1"
    )
    mine = Holder(token="u", task_id="me", task="shop.ship", worker="w2", pid=3, nested=True)
    cycle = (Blocker("b", theirs), Blocker("a", mine))
    error = LockDeadlock(Conflict("b", (theirs,), 4.25, 1, cycle=cycle))
    for again in (
        pickle.loads(pickle.dumps(error)),
        LockDeadlock(*json.loads(json.dumps(error.args))),
    ):
        assert type(again) is LockDeadlock
        assert again.cycle == cycle
        assert str(again) == (
            "waiting for lock 'b' would never end: it is held by task shop.bill[id] on w1@host, "
            "pid 12, which waits for lock 'a', held by the caller, task shop.ship[me] on w2, "
            "pid 3. Acquire these locks in the same order everywhere"
        )


def test_deadlock_with_oneself_says_what_to_do() -> None:
    mine = Holder(token="u", host="h", pid=3)
    error = LockDeadlock(Conflict("b", (mine,), 4.25, 1, cycle=(Blocker("b", mine),)))
    assert str(error).startswith("waiting for lock 'b' would never end. The caller holds it")
    assert "reentrant=True" in str(error)


def test_conflict_says_who_and_where() -> None:
    text = str(LockConflict(CONFLICT))
    assert text == (
        "lock 'invoice:42' is held by task shop.bill[id] on w1@host, pid 12 and 1 more; "
        "it lapses in 4.2 s if not renewed"
    )


def test_conflict_without_holders_has_no_holder() -> None:
    error = LockConflict(Conflict("a", (), 0.0, 1))
    assert error.holder is None
    assert "is next for others" in str(error)


def test_lease_lost_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(LeaseLost("a", "it was wiped")))
    assert (again.name, again.reason) == ("a", "it was wiped")
    assert str(again) == "the lease on lock 'a' is lost: it was wiped"


def test_lock_revoked_survives_pickling_and_a_json_result() -> None:
    """A JSON result backend keeps the arguments only and calls the class with them."""
    error = LockRevoked("a", "ann", "it hung")
    for again in (
        pickle.loads(pickle.dumps(error)),
        LockRevoked(*json.loads(json.dumps(error.args))),
    ):
        assert type(again) is LockRevoked
        assert (again.name, again.by, again.why) == ("a", "ann", "it hung")
        assert again.reason == "revoked by ann: it hung"
        assert str(again) == "the lease on lock 'a' is lost: revoked by ann: it hung"
    assert LockRevoked("a", "ann").reason == "revoked by ann"


@pytest.mark.parametrize("name", sorted(PARENTS))
def test_plain_errors_survive_pickling(name: str) -> None:
    cls = getattr(errors, name)
    if not issubclass(cls, LockUnavailable | LockUsageError):
        return
    again = pickle.loads(pickle.dumps(cls("a sentence")))
    assert type(again) is cls
    assert str(again) == "a sentence"
