"""The waiting that all tests lean on."""

import pytest

from celery_locks import LockUnavailable
from tests.support.waiting import wait_until


def test_wait_until_returns_the_value() -> None:
    """So that a test can go on with what it waited for."""
    values = iter([None, 0, "ready"])
    assert wait_until(lambda: next(values), every=0.001) == "ready"


def test_wait_until_says_what_never_came() -> None:
    """A failing test must read as a sentence."""
    with pytest.raises(AssertionError, match=r"Waited 0\.02 s in vain for the moon\."):
        wait_until(lambda: False, deadline=0.02, what="the moon")


def test_wait_until_asks_at_least_once() -> None:
    """A deadline that is over already still gives the condition its chance."""
    assert wait_until(lambda: True, deadline=0)


def test_wait_until_asks_again_after_no_answer() -> None:
    """On a busy machine one call of many gets its answer too late: that is no failure."""
    answers = iter([LockUnavailable("no answer"), "ready"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_until(ask, every=0.001) == "ready"


def test_wait_until_names_the_error_that_remained() -> None:
    def refuse() -> None:
        raise LockUnavailable("no answer")

    with pytest.raises(AssertionError, match="in vain for the moon") as failed:
        wait_until(refuse, deadline=0.02, what="the moon")
    assert isinstance(failed.value.__cause__, LockUnavailable)
