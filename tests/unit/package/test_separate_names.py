"""Locks of different kinds never meet by their names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockedTask, Locks, LockUsageError, admin, single_instance
from celery_locks.core.renewer import renewer
from celery_locks.integration.app_locks import locks_of
from celery_locks.recipes import claim_or_create
from celery_locks.store.commands.locks import LockCommands
from celery_locks.testing import in_memory_locks

SURROGATE = "\ud800"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("names", broker="memory://", backend="cache+memory://", set_as_current=False)
    with in_memory_locks(app):
        yield app
    app.close()


@pytest.fixture
def locks(app: Celery) -> Locks:
    return locks_of(app)


def test_a_value_does_not_pose_as_the_lock_of_a_message(app: Celery, locks: Locks) -> None:
    """While such a run lasted, ``report.delay("bob")`` was answered with a stranger's result."""

    @app.task(base=LockedTask, lock_key="report:{user}", lock_scope="queued", shared=False)
    def report(user: str) -> Any:
        return report.delay("bob").deduplicated

    assert report.apply(["bob (queued)"]).get() is False
    assert locks.holders("report:bob (queued)")


@pytest.mark.parametrize("name", ["report:ann (queued)", "foo (claim)"])
def test_users_cannot_take_a_lock_that_is_made_by_the_library(locks: Locks, name: str) -> None:
    with pytest.raises(LockUsageError, match="ends as those that celery-locks makes itself"):
        locks.acquire(name)
    with pytest.raises(LockUsageError, match="choose another name"):
        with locks.hold(name):
            pass
    assert locks.info(name) is None


def test_a_claim_does_not_meet_a_lock_of_the_same_name(locks: Locks) -> None:
    with locks.hold("claim:foo"):
        assert claim_or_create(locks, "foo", lambda: 1, wait=0.0) == (True, 1)


def test_a_claim_stays_in_the_shard_where_it_was_bound() -> None:
    """A binding that is not found again would be made a second time."""
    commands = LockCommands("p", 16)
    for number in range(50):
        assert commands.root(f"{number} (claim)") == commands.root(f"claim:{number}")
        assert commands.root(f"{number} (queued)") == commands.root(f"{number}")


def test_a_tenant_does_not_get_the_saved_result_of_another(app: Celery) -> None:
    @app.task(shared=False)
    @single_instance(key="invoice:{tenant}:{number}", once=60)
    def invoice(tenant: str, number: str) -> str:
        return f"of {tenant}"

    assert invoice.apply(["acme", "eu:7"]).get() == "of acme"
    assert invoice.apply(["acme:eu", "7"]).get() == "of acme:eu"
    assert invoice.apply(["acme", "eu:7"]).get() == "of acme"


@pytest.mark.parametrize("scope", ["running", "queued", "queued+running"])
def test_a_lone_surrogate_is_refused_once(
    app: Celery, scope: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that cannot be sent was once tried again four times a second."""
    caplog.set_level(logging.WARNING, "celery_locks")

    @app.task(base=LockedTask, lock_key="u:{user}", lock_scope=scope, shared=False)
    def greet(user: str) -> None: ...

    sentence = "task .*greet: the lock name .* has no UTF-8 form"
    with pytest.raises(LockUsageError, match=sentence):
        greet(SURROGATE)
    if scope != "running":
        with pytest.raises(LockUsageError, match=sentence):
            greet.delay(SURROGATE)
    pending = [release.name for release in renewer._pending_releases.values()]
    assert not [name for name in pending if SURROGATE in name]
    assert not [record for record in caplog.records if "greet" in record.getMessage()]


def test_a_lone_surrogate_in_what_an_operator_says_is_refused(locks: Locks) -> None:
    """Before anything is sent: the lock stays as it is."""
    bad = f"n{SURROGATE}"
    for call in (
        lambda: locks.acquire(bad),
        lambda: locks.stop(bad),
        lambda: locks.stop("held", token=SURROGATE),
        lambda: locks.info(bad),
        lambda: admin.force_release(locks, bad),
        lambda: admin.force_release(locks, "held", reason=SURROGATE),
        lambda: admin.force_release(locks, "held", by=SURROGATE),
    ):
        with locks.hold("held") as lease, pytest.raises(LockUsageError, match="no UTF-8 form"):
            call()
        assert lease.name == "held"
