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
from celery_locks.cli import context, main, manage
from celery_locks.cli.render import HEADS, fit, printable
from celery_locks.types import Holder, LockSpec

NOWHERE = "redis://127.0.0.1:1/0"
EVERY = [
    ["list"],
    ["info", "a"],
    ["why", "a"],
    ["release", "a", "--yes", "--reason", "it hangs"],
    ["stop", "a"],
    ["stale"],
    ["top", "--times", "1"],
    ["history"],
    ["check"],
]


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Locks]:
    made = Locks(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    monkeypatch.setattr(context.Context, "of_url", lambda *_: context.Context(made))
    yield made
    made.close()


def run(*arguments: str, url: str = "redis://memory", typed: str = "") -> Result:
    result = CliRunner().invoke(main, ["--url", url, *arguments], input=typed)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there who can be asked."""
    monkeypatch.setattr(manage, "is_terminal", lambda: True)


SURE = ("--yes", "--reason", "it hangs")


def take(locks: Locks, *names: str, **fields: Any) -> None:
    for name in names:
        locks.perform(locks.commands.acquire(LockSpec(name), f"t-{name}", Holder(**fields)))


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
        (["release", "free"], "Nobody holds lock 'free'."),
        (["release", "free*"], "Nobody holds lock 'free*'."),
        (["release", "a", "--if-token", "x"], "Nobody holds lock 'a' with token 'x'."),
        (["stop", "free"], "Nobody holds lock 'free'."),
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
        (["history"], "The history is empty."),
        (["history", "--acts"], "No operator has done anything."),
    ],
)
def test_an_empty_answer_is_an_answer(locks: Locks, command: list[str], sentence: str) -> None:
    result = run(*command)
    assert (result.exit_code, result.stdout) == (0, sentence + "\n")


def test_stale_says_what_it_could_not_judge(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else "no stale locks" would be read as good news."""
    found = admin.StaleLocks()
    found.inconclusive = "The broker is away."
    monkeypatch.setattr(admin, "stale", lambda *_, **__: found)
    assert run("stale").stdout == "The broker is away.\n"
    as_json = run("stale", "--json")
    assert (json.loads(as_json.stdout), as_json.stderr) == ([], "The broker is away.\n")


def test_list_sorts_and_limits(locks: Locks) -> None:
    take(locks, "c", "a", "b")
    found = json.loads(run("list", "--sort", "name", "--limit", "2", "--json").stdout)
    assert [lock["name"] for lock in found] == ["a", "b"]


def test_list_aligns_its_columns(locks: Locks) -> None:
    take(locks, "short", "a much longer name", worker="w")
    head, *lines = run("list").stdout.splitlines()
    assert {line.index("a process") for line in lines} == {head.index("HOLDER")}


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


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["info", "night"], "Did you mean 'night:b' or 'night:c'?"),
        (["info", "nihgt:c"], "Did you mean 'night:c' or 'night:b'?"),
        (["why", "night:d"], "Did you mean 'night:c' or 'night:b'?"),
        (["release", "night:"], "Did you mean 'night:b' or 'night:c'?"),
        (["stop", "ight:c"], "Did you mean 'night:c'?"),
        (["info", "night:*"], "not a pattern: 'night:*' matches 'night:b' and 'night:c'."),
        (["why", "night:?"], "not a pattern: 'night:?' matches 'night:b' and 'night:c'."),
        (["info", "*t*"], "matches 'month:a', 'month:b', 'month:c' and 2 more."),
    ],
)
def test_a_near_miss_is_answered_with_the_name(
    locks: Locks, command: list[str], sentence: str
) -> None:
    """At night one types what one remembers of a name."""
    take(locks, "night:c", "night:b", "month:a", "month:b", "month:c")
    result = run(*command)
    assert result.exit_code == 1
    assert sentence in result.output


@pytest.mark.parametrize(
    ("filters", "names", "sentence"),
    [
        (["x*"], ["a", "b", "c"], "None of the 3 locks match."),
        (["--worker", "w9"], ["a"], "The only lock does not match."),
        (["--task", "x"], [], "No locks."),
    ],
)
def test_a_filter_without_a_match_says_what_there_is(
    locks: Locks, filters: list[str], names: list[str], sentence: str
) -> None:
    """ "No locks" would be read as: all is well."""
    take(locks, *names)
    result = run("list", *filters)
    assert (result.exit_code, result.stdout) == (0, sentence + "\n")


def test_list_aligns_queued_messages_of_long_task_names(locks: Locks) -> None:
    """A task's id alone takes 36 columns, and "(queued)" comes after it."""
    take(locks, "a", task="shop.orders.tasks.recalculate", task_id=uuid(), retries=-1)
    take(locks, "b", task="bill", task_id=uuid(), worker="w1")
    head, *lines = run("list").stdout.splitlines()
    column = head.index("WORKER")
    assert [line[column - 2 : column] for line in lines] == ["  ", "  "]
    assert {line[column:].split()[0] for line in lines} == {"-", "w1"}


@pytest.mark.parametrize("width", [40, 60, 70, 80, 200])
def test_a_narrow_screen_keeps_the_names_of_the_locks(width: int) -> None:
    """A list of locks without their names is of no use; a pid can be looked up."""
    name = "invoice:2026-11-17:42"
    row = (name, f"shop.bill {uuid()}", "celery@shop-1", "4711", "7 s", "23 s", "2")
    table_ = fit([HEADS, row], width, gap=2)
    assert all(one[0] in ("LOCK", name) for one in table_)
    assert "HELD FOR" in table_[0]
    assert ("PID" in table_[0]) is (width == 200)
    widths = [max(map(len, column)) + 2 for column in zip(*table_, strict=True)]
    assert sum(widths) <= max(width, 56), table_


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


NO_SKIP = "holds no lock and waits for none. Its result is SUCCESS."


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"skipped": True, "lock": "x", "holder": "bob"}, NO_SKIP),
        ({"skipped": True, "lock": "x", "holder": {"name": "bob"}}, NO_SKIP),
        ({"skipped": True, "lock": "x", "holder": ["bob"]}, NO_SKIP),
        ({"skipped": True, "lock": ["x"], "holder": None}, NO_SKIP),
        ({"skipped": True, "lock": "x"}, NO_SKIP),
        ({"skipped": 7, "lock": "x", "holder": None}, NO_SKIP),
        (
            {"skipped": True, "lock": "x", "holder": Holder(task_id="t", worker="w").as_dict()},
            "was skipped because lock 'x' was held by task [t] on w, pid None. Its result is "
            "SUCCESS.",
        ),
        (
            {"skipped": True, "lock": "x", "holder": None},
            "was skipped because lock 'x' was held by an unknown holder. Its result is SUCCESS.",
        ),
        (
            {"skipped": True, "reason": "already_done"},
            "did not run: its work was done before (already_done). Its result is SUCCESS.",
        ),
    ],
)
def test_why_answers_first_and_takes_only_our_own_results_for_skips(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, value: Any, answer: str
) -> None:
    """A task of the user's may return whatever it likes, and be asked about all the same."""
    app = Celery("t", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.worker_enable_remote_control = False
    task_id = uuid()  # the backend is one for all apps of the process
    app.backend.store_result(task_id, value, "SUCCESS")
    monkeypatch.setattr(context.Context, "of_url", lambda *_: context.Context(locks, app))
    result = run("why", task_id)
    assert result.stdout == f"Task {task_id} {answer}\n"
    assert result.exit_code == 0


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
    assert printable(text) == shown
