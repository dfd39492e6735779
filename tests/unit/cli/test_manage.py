"""Commands that change something: release, stop, sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_locks import Locks, admin
from celery_locks.cli import manage
from celery_locks.types import Holder, LockSpec
from tests.support.command_line import run, take


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there who can be asked."""
    monkeypatch.setattr(manage, "is_terminal", lambda: True)


SURE = ("--yes", "--reason", "it hangs")


@pytest.mark.parametrize("names", [["a1"], ["a1", "a2"]], ids=["one", "several"])
@pytest.mark.parametrize(
    "answer", ["", "n\n", "\n", "y\n"], ids=["eof", "no", "enter", "unreasoned"]
)
@pytest.mark.usefixtures("at_terminal")
def test_nothing_is_freed_unless_agreed(locks: Locks, names: list[str], answer: str) -> None:
    """A holder at work loses its lock: nobody should do that by one key too many."""
    take(locks, *names)
    result = run("release", "a*" if names[1:] else "a1", typed=answer)
    assert result.exit_code == 1
    assert "held by a process" in result.stdout
    assert ("Take these 2 locks?" if names[1:] else "Take this lock from its") in result.stdout
    assert result.stderr.endswith("Nothing was released.\n")
    assert all(locks.is_locked(name) for name in names)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "y\nit hangs\n"),
        (["--yes"], "it hangs\n"),
        (["--reason", "it hangs"], "y\n"),
        (SURE, ""),
    ],
)
@pytest.mark.usefixtures("at_terminal")
def test_what_is_agreed_is_freed_and_the_reason_kept(
    locks: Locks, arguments: list[str], answer: str
) -> None:
    take(locks, "a1", "a2", "b")
    assert run("release", "a*", *arguments, typed=answer).exit_code == 0
    assert [lock.name for lock in admin.list_locks(locks)] == ["b"]
    assert {act.why for act in admin.history(locks)} == {"it hangs"}


@pytest.mark.parametrize(
    "arguments", [[], ["--yes"], ["--reason", "it hangs"]], ids=["neither", "yes", "reason"]
)
def test_a_script_says_that_it_is_sure_and_why(locks: Locks, arguments: list[str]) -> None:
    """Nobody can be asked there; the refusal says what to write."""
    take(locks, "a b", task_id="t", task="bill", worker="w")
    result = run("release", "a b", *arguments, typed="y\nit hangs\n")
    assert result.exit_code == 2
    assert "Lock 'a b' is held by task bill[t] on w" in result.stderr
    assert "write: release 'a b' --yes --reason 'why'" in result.stderr
    assert locks.is_locked("a b")
    assert run("release", "a b", *SURE).exit_code == 0


@pytest.mark.usefixtures("at_terminal")
def test_release_takes_it_only_from_the_holder_that_was_shown(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the operator reads, the lock may go to somebody else."""
    take(locks, "a")

    def confirm(*_: Any, **__: Any) -> bool:
        locks.perform(locks.commands.release("a", "t-a"))
        locks.perform(locks.commands.acquire(LockSpec("a"), "another", Holder()))
        return True

    monkeypatch.setattr(manage.click, "confirm", confirm)
    result = run("release", "a", "--reason", "it hangs")
    assert (result.exit_code, result.stderr) == (
        1,
        "The holder released it first; nothing was taken.\n",
    )
    assert [holder.token for holder in locks.holders("a")] == ["another"]


@pytest.mark.parametrize(("arguments", "grace"), [([], 0.0), (["--grace"], None)])
def test_grace_without_a_number_is_the_default(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, arguments: list[str], grace: float | None
) -> None:
    take(locks, "a")
    asked: list[Any] = []
    monkeypatch.setattr(admin, "force_release", lambda *_, **how: asked.append(how["grace"]) or ())
    run("release", "a", *SURE, *arguments)
    assert asked == [grace]


def test_a_dry_run_frees_nothing(locks: Locks) -> None:
    take(locks, "a1", "a2")
    assert run("release", "a*", "--dry-run").stdout.count("Would release") == 2
    assert locks.is_locked("a1")
    assert admin.history(locks) == []


def test_a_name_is_no_glob_if_it_is_a_lock(locks: Locks) -> None:
    """Nor are brackets: task[id] is the default name of a lock."""
    take(locks, "a*", "ab", "job[1]", "job1")
    assert run("release", "a*", *SURE).exit_code == 0
    assert run("release", "job[1]", *SURE).exit_code == 0
    assert {lock.name for lock in admin.list_locks(locks)} == {"ab", "job1"}
    assert run("release", "a?", "--exact").exit_code == 1
    assert locks.is_locked("ab")


def test_grace_that_was_used_is_a_success(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder gives it back by itself while we wait."""
    take(locks, "a")
    asked: Callable[..., Any] = admin.actions.stop

    def stop(*arguments: Any, **fields: Any) -> Any:
        answer = asked(*arguments, **fields)
        locks.perform(locks.commands.release("a", "t-a"))
        return answer

    monkeypatch.setattr(admin.actions, "stop", stop)
    result = run("release", "a", "--grace", "5", *SURE)
    assert (result.exit_code, result.stderr) == (
        0,
        "The holder released it first; nothing was taken.\n",
    )
