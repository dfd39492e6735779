"""What the commands say and how they end, without a process for each; see also the acceptance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.utils import uuid
from click.testing import CliRunner, Result

from celery_locks import Locks, admin
from celery_locks.cli import desk as desks
from celery_locks.cli import main
from celery_locks.cli.render import plain
from celery_locks.model import Holder, LockSpec

NOWHERE = "redis://127.0.0.1:1/0"
EVERY = [
    ["list"],
    ["info", "a"],
    ["why", "a"],
    ["release", "a"],
    ["stop", "a"],
    ["stale"],
    ["top", "--times", "1"],
    ["history"],
    ["check"],
]


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    monkeypatch.setattr(desks.Desk, "of_url", lambda *_: desks.Desk(made))
    yield made
    made.close()


def run(*arguments: str, url: str = "redis://memory", said: str = "") -> Result:
    result = CliRunner().invoke(main, ["--url", url, *arguments], input=said)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def take(locks: Locks, *names: str, **said: Any) -> None:
    for name in names:
        locks.perform(locks.verbs.acquire(LockSpec(name), f"t-{name}", Holder(**said)))


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command[0])
def test_a_server_that_is_down_ends_with_3(command: list[str]) -> None:
    result = run(*command, url=NOWHERE)
    assert result.exit_code == 3
    assert "gave no answer" in result.stderr


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command[0])
def test_json_parses(locks: Locks, command: list[str]) -> None:
    """Also where there is nothing to tell."""
    if command[0] != "release":  # a refusal is a sentence
        json.loads(run(*command, "--json").stdout)
    take(locks, "a", task_id="t", task="bill", worker="w")
    assert run(*command, "--json").exit_code == 0
    take(locks, "a", task_id="t", task="bill", worker="w")
    json.loads(run(*command, "--json").stdout)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["why", "x" * 600], "512 is the most"),
        (["list", "--state", "stuck"], "'held', 'waiting', 'queued'"),
        (["stale", "--older-than", "soon"], "not a valid float"),
        (["info"], "Missing argument"),
        (["release", "*", "--if-token", "t"], "not with a glob"),
        (["sweep"], "celery -A proj locks sweep"),
    ],
)
def test_bad_input_ends_with_2_and_a_sentence(
    locks: Locks, command: list[str], sentence: str
) -> None:
    result = run(*command)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["info", "free"], "Nobody holds lock 'free' or waits for it."),
        (["release", "free"], "Nobody holds a lock 'free'."),
        (["release", "free*"], "Nobody holds a lock 'free*'."),
        (["release", "a", "--if-token", "x"], "Nobody holds a lock 'a' with token 'x'."),
        (["stop", "free"], "Nobody holds a lock 'free'."),
    ],
)
def test_nothing_there_ends_with_1(locks: Locks, command: list[str], sentence: str) -> None:
    take(locks, "a")
    result = run(*command)
    assert (result.exit_code, result.stderr) == (1, sentence + "\n")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["list"], "No locks."),
        (["stale"], "No stale locks."),
        (["history"], "Nothing is on record."),
        (["history", "--acts"], "Nothing was done by hand."),
    ],
)
def test_an_empty_answer_is_an_answer(locks: Locks, command: list[str], sentence: str) -> None:
    result = run(*command)
    assert (result.exit_code, result.stdout) == (0, sentence + "\n")


def test_stale_says_what_it_could_not_judge(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else "no stale locks" would be read as good news."""
    found = admin.StaleLocks()
    found.doubt = "The broker is away."
    monkeypatch.setattr(admin, "stale", lambda *_, **__: found)
    assert run("stale").stdout == "The broker is away.\n"
    as_json = run("stale", "--json")
    assert (json.loads(as_json.stdout), as_json.stderr) == ([], "The broker is away.\n")


def test_list_sorts_and_limits(locks: Locks) -> None:
    take(locks, "c", "a", "b")
    said = json.loads(run("list", "--sort", "name", "--limit", "2", "--json").stdout)
    assert [lock["name"] for lock in said] == ["a", "b"]


def test_list_aligns_its_columns(locks: Locks) -> None:
    take(locks, "short", "a much longer name", worker="w")
    head, *lines = run("list").stdout.splitlines()
    assert {line.index("a process") for line in lines} == {head.index("HOLDER")}


@pytest.mark.parametrize("answer", ["", "n\n", "\n"])
def test_a_glob_is_not_freed_unasked(locks: Locks, answer: str) -> None:
    take(locks, "a1", "a2")
    result = run("release", "a*", said=answer)
    assert result.exit_code == 1
    assert "Free these 2 locks?" in result.stdout
    assert result.stderr.endswith("Nothing was freed.\n")
    assert run("release", "a*", "--json").exit_code == 1
    assert locks.is_locked("a1")
    assert locks.is_locked("a2")


@pytest.mark.parametrize(("arguments", "answer"), [([], "y\n"), (["--yes"], "")])
def test_a_glob_is_freed_when_agreed(locks: Locks, arguments: list[str], answer: str) -> None:
    take(locks, "a1", "a2", "b")
    assert run("release", "a*", *arguments, said=answer).exit_code == 0
    assert [lock.name for lock in admin.list_locks(locks)] == ["b"]


def test_a_dry_run_frees_nothing(locks: Locks) -> None:
    take(locks, "a1", "a2")
    assert run("release", "a*", "--dry-run").stdout.count("Would free") == 2
    assert locks.is_locked("a1")
    assert admin.history(locks) == []


def test_a_name_is_no_glob_if_it_is_a_lock(locks: Locks) -> None:
    """Nor are brackets: task[id] is the default name of a lock."""
    take(locks, "a*", "ab", "job[1]", "job1")
    assert run("release", "a*").exit_code == 0
    assert run("release", "job[1]").exit_code == 0
    assert {lock.name for lock in admin.list_locks(locks)} == {"ab", "job1"}
    assert run("release", "a?", "--exact").exit_code == 1
    assert locks.is_locked("ab")


def test_grace_that_was_used_is_a_success(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder gives it back by itself while we wait."""
    take(locks, "a")
    asked: Callable[..., Any] = admin.acts.stop

    def stop(*arguments: Any, **said: Any) -> Any:
        answer = asked(*arguments, **said)
        locks.perform(locks.verbs.release("a", "t-a"))
        return answer

    monkeypatch.setattr(admin.acts, "stop", stop)
    result = run("release", "a", "--grace", "5")
    assert (result.exit_code, result.stderr) == (
        0,
        "It was given back before it had to be taken.\n",
    )


@pytest.mark.parametrize(
    ("value", "because"),
    [
        ({"skipped": True, "lock": "x", "holder": "bob"}, ""),
        ({"skipped": True, "lock": "x", "holder": {"name": "bob"}}, ""),
        ({"skipped": True, "lock": "x", "holder": ["bob"]}, ""),
        ({"skipped": True, "lock": ["x"], "holder": None}, ""),
        ({"skipped": True, "lock": "x"}, ""),
        ({"skipped": 7, "lock": "x", "holder": None}, ""),
        (
            {"skipped": True, "lock": "x", "holder": Holder(task_id="t", worker="w").as_dict()},
            ": it was skipped because lock 'x' was held by task [t] on w, pid None",
        ),
        (
            {"skipped": True, "lock": "x", "holder": None},
            ": it was skipped because lock 'x' was held by nobody we know",
        ),
    ],
)
def test_why_takes_only_our_own_results_for_skips(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, value: Any, because: str
) -> None:
    """A task of the user's may return whatever it likes, and be asked about all the same."""
    app = Celery("t", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.worker_enable_remote_control = False
    task_id = uuid()  # the backend is one for all apps of the process
    app.backend.store_result(task_id, value, "SUCCESS")
    monkeypatch.setattr(desks.Desk, "of_url", lambda *_: desks.Desk(locks, app))
    result = run("why", task_id)
    assert result.stdout.splitlines()[-1] == f"The task's result says SUCCESS{because}."
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é ✓", "plain é ✓"),
        ("a\nb\t\x1b[0m\x00", r"a\nb\t\x1b[0m\x00"),
        ("\u202e\u2028\x9b", r"\u202e\u2028\x9b"),
        ('it\'s "so"', 'it\'s "so"'),
        ("back\\slash", "back\\slash"),
    ],
)
def test_plain_writes_out_what_a_terminal_would_obey(text: str, shown: str) -> None:
    assert plain(text) == shown
