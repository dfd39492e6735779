"""Commands that pause locks and set their limits."""

from __future__ import annotations

from celery_locks import Locks
from tests.support.command_line import run


def test_limit_says_that_it_takes_no_pattern(locks: Locks) -> None:
    """`pause` takes one: who writes it here would wait for an effect on all that match."""
    result = run("limit", "a*", "5", "--reason", "more")
    assert result.exit_code == 0
    assert result.stderr == "'a*' is the name of one lock here: a limit takes no pattern.\n"
    assert run("limit", "a", "5", "--reason", "more").stderr == ""
    info = locks.info("a*")
    assert info
    assert info.limit == 5
