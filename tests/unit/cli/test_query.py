"""Commands that only read: list, info, why, stale, top, history, check."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from celery.utils import uuid

from celery_locks import Locks, admin
from celery_locks.cli import context
from celery_locks.types import Holder
from tests.support.command_line import run, take


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
