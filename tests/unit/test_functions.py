"""The plain functions, over fakeredis."""

from collections.abc import Iterator

import fakeredis
import pytest

from celery_locks import Holder, LeaseLost, Locks, LockUsageError, TaskLockAcquireError
from celery_locks import functions as task_lock
from celery_locks.core.renewer import renewer
from celery_locks.functions import (
    acquire_task_lock,
    configure,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    task_lock_context,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[fakeredis.FakeServer]:
    monkeypatch.setattr(task_lock, "_locks", None)
    made = fakeredis.FakeServer()
    configure(fakeredis.FakeRedis(server=made))
    yield made
    for lease in task_lock._leases.values():
        renewer.discard(lease.token)
    task_lock._leases.clear()


@pytest.fixture
def others(server: fakeredis.FakeServer) -> Locks:
    """Another process on the same server."""
    return Locks(fakeredis.FakeRedis(server=server))


def test_unconfigured_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_lock, "_locks", None)
    with pytest.raises(LockUsageError, match=r"functions\.configure\(url\)"):
        acquire_task_lock("a")


def test_configure_takes_a_url_a_client_or_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_lock, "_locks", None)
    assert configure("redis://h:1", prefix="x").commands.prefix == "x"
    assert configure(fakeredis.FakeRedis(), prefix="y").commands.prefix == "y"
    made = Locks(fakeredis.FakeRedis())
    assert configure(made) is made


@pytest.mark.usefixtures("server")
def test_acquire_and_release() -> None:
    assert acquire_task_lock("a", timeout=30) is True
    assert acquire_task_lock("a", timeout=30) is False, "not twice, not even by this process"
    assert is_task_locked("a") is True
    assert release_task_lock("a") is True
    assert release_task_lock("a") is False
    assert is_task_locked("a") is False


def test_release_is_of_ones_own_lock_only(others: Locks) -> None:
    theirs = others.acquire("a")
    assert theirs
    assert release_task_lock("a") is False
    assert extend_task_lock("a") is False
    assert is_task_locked("a")
    theirs.release()


def test_release_after_it_was_taken_frees_nothing(others: Locks) -> None:
    acquire_task_lock("a")
    force_release_task_lock("a")
    theirs = others.acquire("a")
    assert theirs
    assert release_task_lock("a") is False
    assert is_task_locked("a")
    theirs.release()


@pytest.mark.usefixtures("server")
def test_extend_sets_the_time_anew() -> None:
    acquire_task_lock("a", timeout=10)
    assert 9 < (get_lock_ttl("a") or 0) < 10.001
    assert extend_task_lock("a", timeout=100) is True
    assert extend_task_lock("a", timeout=100) is True
    assert 99 < (get_lock_ttl("a") or 0) < 100.001


@pytest.mark.usefixtures("server")
def test_extend_of_a_lost_lock_raises() -> None:
    acquire_task_lock("a")
    assert force_release_task_lock("a") is True
    with pytest.raises(LeaseLost):
        extend_task_lock("a")


def test_info_functions_tell_of_the_holder(others: Locks) -> None:
    theirs = others.acquire("a", ttl=20, holder=Holder(task_id="id", task="t"))
    assert theirs
    holder = get_lock_holder("a")
    assert holder
    assert (holder.task_id, holder.fence) == ("id", theirs.fence)
    info = get_lock_info("a")
    assert info
    assert info.holders == (holder,)
    assert 19 < (get_lock_ttl("a") or 0) < 20.001
    theirs.release()


@pytest.mark.usefixtures("server")
def test_info_functions_of_a_free_lock() -> None:
    assert get_lock_holder("a") is None
    assert get_lock_info("a") is None
    assert get_lock_ttl("a") is None
    assert force_release_task_lock("a") is False
    assert list_all_task_locks() == []


def test_list_is_of_everybody(others: Locks) -> None:
    theirs = others.acquire("b")
    assert theirs
    acquire_task_lock("a")
    assert {lock.name for lock in list_all_task_locks()} == {"a", "b"}
    theirs.release()


@pytest.mark.usefixtures("server")
def test_context_holds_and_releases() -> None:
    with task_lock_context("a", timeout=30) as got:
        assert got is True
        assert is_task_locked("a")
    assert not is_task_locked("a")
    with pytest.raises(KeyError):
        with task_lock_context("a"):
            raise KeyError("x")
    assert not is_task_locked("a")


def test_context_on_a_busy_lock(others: Locks) -> None:
    theirs = others.acquire("a")
    assert theirs
    with pytest.raises(TaskLockAcquireError) as caught:
        with task_lock_context("a"):
            pytest.fail("entered")
    assert caught.value.holder
    assert caught.value.holder.token == theirs.token
    with task_lock_context("a", raise_on_fail=False) as got:
        assert got is False
    assert is_task_locked("a")
    theirs.release()


@pytest.mark.usefixtures("server")
def test_context_that_was_released_inside_releases_no_other() -> None:
    with task_lock_context("a"):
        assert release_task_lock("a") is True
        assert acquire_task_lock("a") is True
    assert is_task_locked("a"), "the block's end freed a lock that is not the block's"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("timeout", [0, -1, 0.5, float("inf")])
def test_bad_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(LockUsageError):
        acquire_task_lock("a", timeout=timeout)
    assert list_all_task_locks() == []
