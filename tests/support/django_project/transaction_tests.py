"""Locks and transactions in real Django; run by ``tests/acceptance/test_django_transactions.py``.

``manage.py test`` runs it, with a database file, so that another connection sees what is committed,
and with locks on a real server.
"""

from __future__ import annotations

import gc
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import celery
import pytest
from celery.contrib.django.task import DjangoTask
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.http import HttpResponse
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import path
from kombu.exceptions import OperationalError

import celery_locks.django
from celery_locks import LockConflict, LockedTask, Locks, LockUsageError, admin
from celery_locks.errors import LeaseLost
from celery_locks.integration.app_locks import locks_of
from tests.support.django_project.celery import app
from tests.support.waiting import wait_until

hold = celery_locks.django.hold
NAME = "invoice:42"


class Task(LockedTask, DjangoTask):
    abstract = True


@app.task(base=Task, name="bill", lock_key="bill:{n}", lock_scope="queued", shared=False)
def bill(n: int) -> None: ...


class Problem(Exception):
    """An error of the application."""


def view(request: object, ending: str) -> HttpResponse:
    with hold(NAME):
        Group.objects.create(name="by the view")
    assert is_held()
    if ending == "fails":
        raise Problem
    if ending == "is marked":
        transaction.set_rollback(True)
    return HttpResponse("done")


urlpatterns = [path("<str:ending>/", view)]


def locks() -> Locks:
    return locks_of(app)


def is_held(name: str = NAME) -> bool:
    return locks().is_locked(name)


def wait_free() -> None:
    wait_until(lambda: not is_held(), 30, what="the lock to be released")


def committed() -> int:
    """Count the rows that another connection sees."""
    with sqlite3.connect(connection.settings_dict["NAME"]) as other:
        [[count]] = other.execute("SELECT count(*) FROM auth_group")
    other.close()
    return count


@contextmanager
def releases() -> Iterator[list[int]]:
    """Collect, for each release, how many rows were committed at that moment."""
    seen: list[int] = []
    commands = locks().commands
    original = commands.release

    def release(*args: object, **kwargs: object) -> object:
        seen.append(committed())
        return original(*args, **kwargs)

    with mock.patch.object(commands, "release", release):
        yield seen


class Transactions(TransactionTestCase):
    def setUp(self) -> None:
        gc.collect()
        gc.disable()  # what the tests see must not depend on the garbage collector
        self.addCleanup(gc.enable)

    def tearDown(self) -> None:
        wait_free()

    def test_release_follows_the_commit(self) -> None:
        with releases() as rows, transaction.atomic():
            with hold(NAME) as lease:
                Group.objects.create(name="one")
                assert lease.fence
            assert is_held(), "until the end of the transaction, not of the block"
            assert rows == []
        assert rows == [1], "the row is committed when the lock is released"
        assert not is_held(), "at once: the next line of the caller may need it"

    def test_without_a_transaction_it_ends_with_the_block(self) -> None:
        with hold(NAME):
            assert is_held()
        assert not is_held()
        with releases() as rows, hold(NAME), transaction.atomic():
            Group.objects.create(name="one")
        assert rows == [1]

    def test_decorated_function(self) -> None:
        @hold(NAME)
        def create(name: str) -> bool:
            Group.objects.create(name=name)
            return is_held()

        assert create("one")
        assert not is_held()
        with transaction.atomic():
            assert create("two")
            assert is_held()
        assert not is_held()

    def test_rollback_releases(self) -> None:
        with pytest.raises(Problem), transaction.atomic(), hold(NAME):
            Group.objects.create(name="one")
            raise Problem
        wait_free()
        assert committed() == 0

    def test_rollback_without_an_error_releases(self) -> None:
        with transaction.atomic():
            with hold(NAME):
                Group.objects.create(name="one")
            transaction.set_rollback(True)
        wait_free()
        assert committed() == 0

    def test_error_that_is_caught_inside_the_transaction_keeps_the_lock(self) -> None:
        """What the block wrote before its error is committed."""
        with releases() as rows, transaction.atomic():
            try:
                with hold(NAME):
                    Group.objects.create(name="one")
                    raise Problem
            except Problem:
                pass
            assert is_held()
        assert rows == [1]

    def test_rollback_of_a_savepoint_releases_what_was_acquired_in_it(self) -> None:
        with transaction.atomic():
            with hold("outer"):
                Group.objects.create(name="one")
            with pytest.raises(Problem), transaction.atomic(), hold(NAME):
                raise Problem
            wait_free()
            assert is_held("outer")
        assert not is_held("outer")
        assert committed() == 1

    def test_end_of_a_savepoint_is_no_commit(self) -> None:
        with transaction.atomic():
            with transaction.atomic(), hold(NAME):
                Group.objects.create(name="one")
            with transaction.atomic(savepoint=False):
                assert is_held()
            assert is_held()
        assert not is_held()

    def test_savepoint_around_an_ended_one_releases_with_its_rollback(self) -> None:
        with transaction.atomic():
            with pytest.raises(Problem), transaction.atomic():
                with transaction.atomic(), hold(NAME):
                    pass
                raise Problem
            wait_free()

    def test_closed_connection_releases(self) -> None:
        with transaction.atomic():
            with hold(NAME):
                Group.objects.create(name="one")
            connection.close()
            wait_free()
        assert committed() == 0

    def test_failed_commit_releases(self) -> None:
        fails = mock.patch.object(connection, "_commit", side_effect=DatabaseError)
        with pytest.raises(DatabaseError), fails, transaction.atomic(), hold(NAME):
            Group.objects.create(name="one")
        wait_free()
        assert committed() == 0

    def test_thread_that_ends_in_a_transaction_releases(self) -> None:
        """Nobody rolls back; its connection is collected as garbage."""

        def run() -> None:
            transaction.atomic().__enter__()
            hold(NAME).__enter__()

        thread = threading.Thread(target=run)
        with warnings.catch_warnings():
            # From Python 3.13 on sqlite3 warns of the connection that the thread left open.
            warnings.simplefilter("ignore", ResourceWarning)
            thread.start()
            thread.join()
            gc.collect()
        wait_free()

    def test_function_before_it_that_raises_does_not_keep_the_lock(self) -> None:
        def raises() -> None:
            raise Problem

        with pytest.raises(Problem), transaction.atomic():
            transaction.on_commit(raises)
            with hold(NAME):
                Group.objects.create(name="one")
        wait_free()
        assert committed() == 1

    def test_reentrant_hold_is_released_once_by_the_commit(self) -> None:
        with transaction.atomic():
            with hold(NAME), hold(NAME, reentrant=True):
                Group.objects.create(name="one")
            with pytest.raises(Problem), transaction.atomic(), hold(NAME, reentrant=True):
                raise Problem
            assert is_held(), "the savepoint had entered it, and the transaction holds it"
        wait_free()

    def test_conflict_leaves_nothing(self) -> None:
        with locks().hold(NAME):
            with pytest.raises(LockConflict), transaction.atomic(), hold(NAME):
                self.fail("it is held by another")
            assert is_held(), "the other still holds it"

    def test_lost_lease_rolls_back(self) -> None:
        with pytest.raises(LeaseLost), transaction.atomic(), hold(NAME) as lease:
            Group.objects.create(name="one")
            admin.force_release(locks(), NAME)
            with pytest.raises(LeaseLost):
                lease.renew()
        assert committed() == 0

    def test_interrupted_acquire_releases(self) -> None:
        """As a time limit does, between the grant and the return."""
        enter = locks().run

        def interrupt(operation: object) -> None:
            enter(operation)
            raise Problem

        interrupted = mock.patch.object(locks(), "run", interrupt)
        with pytest.raises(Problem), transaction.atomic(), interrupted, hold(NAME):
            self.fail("interrupted")
        wait_free()

    def test_wrong_option_and_manual_transactions_are_refused(self) -> None:
        with self.assertRaisesMessage(LockUsageError, "hold has no option 'on_conflict'"):
            hold(NAME, on_conflict="requeue").__enter__()
        transaction.set_autocommit(False)
        try:
            with pytest.raises(transaction.TransactionManagementError):
                hold(NAME).__enter__()
        finally:
            transaction.set_autocommit(True)
        assert not is_held()


@override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[])
class Requests(TransactionTestCase):
    def setUp(self) -> None:
        patch = mock.patch.dict(connection.settings_dict, {"ATOMIC_REQUESTS": True})
        patch.start()
        self.addCleanup(patch.stop)

    def test_atomic_request_releases_after_its_commit(self) -> None:
        with releases() as rows:
            assert self.client.get("/ends/").content == b"done"
        assert rows == [1]

    def test_atomic_request_that_rolls_back_releases(self) -> None:
        with pytest.raises(Problem):
            self.client.get("/fails/")
        wait_free()
        assert self.client.get("/is marked/").content == b"done"
        wait_free()
        assert committed() == 0


class InATestCase(TestCase):
    """Django's TestCase is one transaction that is rolled back: nothing in it is a commit."""

    def test_lock_is_held_until_the_test_ends(self) -> None:
        with transaction.atomic(), hold(NAME):
            pass
        assert is_held()
        self.addClassCleanup(wait_free)

    def test_captured_commit_releases(self) -> None:
        wait_free()  # the other test has ended
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic(), hold(NAME):
            pass
        assert not is_held()


class Publishing(TransactionTestCase):
    def tearDown(self) -> None:
        app.control.purge()
        admin.force_release(locks(), "bill:1 (queued)")

    def test_on_commit_reserves_after_the_commit_only(self) -> None:
        with transaction.atomic():
            bill.delay_on_commit(1)
            assert bill.pending(1) is None
        assert bill.pending(1) == "queued"

    def test_on_commit_reserves_nothing_after_a_rollback(self) -> None:
        with pytest.raises(Problem), transaction.atomic():
            bill.delay_on_commit(1)
            raise Problem
        assert bill.pending(1) is None

    def test_message_that_was_sent_keeps_its_reservation_after_a_rollback(self) -> None:
        with pytest.raises(Problem), transaction.atomic():
            bill.delay(1)
            raise Problem
        assert bill.pending(1) == "queued"

    def test_message_that_could_not_be_sent_leaves_no_reservation(self) -> None:
        fails = mock.patch.object(celery.Task, "apply_async", side_effect=OperationalError)
        with pytest.raises(OperationalError), fails, transaction.atomic():
            bill.delay(1)
        assert bill.pending(1) is None
