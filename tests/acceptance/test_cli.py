"""The command line as whoever is on call uses it: real processes, a real worker, a real server."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from celery_locks import RateLimited, admin
from celery_locks.recipes import idempotent
from celery_locks.types import Holder, LockSpec
from tests.servers.embedded import EmbeddedServer
from tests.servers.fork_server import run_program
from tests.support.celery_app import CONF_VARIABLE
from tests.support.celery_worker import PATIENCE, ROOT, Rig, fresh_rig
from tests.support.parked import park
from tests.support.waiting import wait_until

_numbers = itertools.count()
PATH = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
HOSTILE = "in\nvoice \x1b[31m'\"$(id)` \u202e{0} <b>é</b>"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker("-n", "one@%h"):
        yield rig


@pytest.fixture
def key(rig: Rig) -> Iterator[str]:
    key = f"key-{next(_numbers)}"
    yield key
    rig.open(key)


@dataclass
class Answer:
    """What a command said and how it ended; there is no traceback, whatever it was asked."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def ran(command: list[str], conf: dict[str, Any] | None, typed: str = "") -> Answer:
    env = {**os.environ, "PYTHONPATH": PATH, "COLUMNS": "200"}
    if conf:
        env[CONF_VARIABLE] = json.dumps(conf)
    done = run_program(command, env, input=typed)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


def celery(rig: Rig, *arguments: str, typed: str = "", **conf: Any) -> Answer:
    command = ["-m", "celery", "-A", "tests.support.celery_app", *arguments]
    return ran(command, {**rig.conf, **conf}, typed)


def locks(rig: Rig, *arguments: str, **more: Any) -> Answer:
    """``celery -A proj locks …``"""
    return celery(rig, "locks", *arguments, **more)


def module(url: str, *arguments: str) -> Answer:
    """``python -m celery_locks --url … …``"""
    return ran(["-m", "celery_locks", "--url", url, *arguments], None)


def alone(url: str, *arguments: str) -> Answer:
    """``celery-locks --url … …``"""
    code = "from celery_locks.cli import main; main(prog_name='celery-locks')"
    return ran(["-c", code, "--url", url, *arguments], None)


def take(rig: Rig, name: str, token: str = "", ttl: float = 3600, **fields: Any) -> None:
    """Held by nobody who renews it."""
    spec = LockSpec(name, ttl)
    rig.locks.perform(rig.locks.commands.acquire(spec, token or f"t-{name}", Holder(**fields)))


def running(rig: Rig, key: str) -> Any:
    """A task that runs under the lock until the test ends."""
    result = rig.task("work").delay(key, key)
    rig.wait_started(result)
    return result


def test_list_shows_what_is_held(rig: Rig, key: str) -> None:
    result = running(rig, key)
    answer = locks(rig, "list", key)
    assert answer.code == 0
    head, line = answer.out.splitlines()
    assert head.split()[:3] == ["LOCK", "HOLDER", "WORKER"]
    assert line.startswith(f"{key}  work {result.id}")
    assert "one@" in line
    [lock] = locks(rig, "list", "--json", f"{key[:-1]}*", "--task", "wor*").json
    assert lock["holders"][0]["task_id"] == result.id
    for way in (alone, module):
        assert [lock["name"] for lock in way(rig.server.url, "list", key, "--json").json] == [key]


def test_info_says_that_the_holder_lives(rig: Rig, key: str) -> None:
    """By Celery's own answer: the worker, the task, the pid."""
    result = running(rig, key)
    answer = locks(rig, "info", key)
    assert answer.code == 0
    assert f"work[{result.id}]" in answer.out
    assert "is alive and runs it in pid" in answer.out
    detail = locks(rig, "info", key, "--json").json
    [holder] = detail["holders"]
    assert holder["liveness"]["verdict"] == "running"
    assert holder["pid"] == rig.wait_started(result)["pid"]
    assert "Celery was not asked" in alone(rig.server.url, "info", key).out


def test_info_of_a_free_lock_ends_with_1(rig: Rig) -> None:
    answer = locks(rig, "info", "free")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "Nobody holds lock 'free' or waits for it.\n"
    assert locks(rig, "info", "free", "--json").json is None


def test_why_answers_for_names_and_ids(rig: Rig, key: str) -> None:
    """The holder, the one who waits, and one that was skipped: each in sentences."""
    holder = running(rig, key)
    waiter = rig.task("work").apply_async((key, key), lock={"on_conflict": "wait"})
    wait_until(lambda: rig.locks.info(key).waiters, PATIENCE)  # type: ignore[union-attr]
    answer = locks(rig, "why", key)
    assert answer.code == 0
    assert f"Lock '{key}' is held by task work[{holder.id}]" in answer.out
    assert "is alive and runs it" in answer.out
    assert f"1. task work[{waiter.id}]" in answer.out
    assert f"waits for lock '{key}', as number 1 of 1" in locks(rig, "why", waiter.id).out
    assert f"Task {holder.id} holds lock" in "".join(
        locks(rig, "why", holder.id, "--json").json["sentences"]
    )
    rig.open(key)
    waiter.get(timeout=PATIENCE)
    with rig.locks.hold(key):
        skipped = rig.task("work").delay(key)
        skipped.get(timeout=PATIENCE)
    answer = locks(rig, "why", skipped.id)
    assert answer.code == 0
    assert answer.out.startswith(f"Task {skipped.id} was skipped because lock '{key}' was held by")


def test_release_frees_it_and_the_task_is_told(rig: Rig, key: str) -> None:
    result = running(rig, key)
    before = locks(rig, "release", key, "--dry-run")
    assert before.out.startswith(f"Would release lock '{key}'")
    assert rig.locks.is_locked(key)
    wrong = locks(rig, "release", key, "--if-token", "other")
    assert (wrong.code, wrong.err) == (1, f"Nobody holds lock '{key}' with token 'other'.\n")
    unsure = locks(rig, "release", key)
    assert (unsure.code, unsure.out) == (2, "")
    assert f"write: release {key} --yes --reason 'why'" in unsure.err
    assert rig.locks.is_locked(key)
    answer = locks(rig, "release", key, "--yes", "--reason", "it hangs", "--by", "ann")
    assert answer.code == 0
    assert answer.out.startswith(f"Released lock '{key}', held by task work[{result.id}]")
    assert not rig.locks.is_locked(key)
    again = locks(rig, "release", key)
    assert (again.code, again.err) == (1, f"Nobody holds lock '{key}'.\n")
    with pytest.raises(Exception, match="lost"):
        result.get(timeout=PATIENCE)
    [act] = locks(rig, "history", key, "--json").json
    assert (act["by"], act["why"]) == ("ann", "it hangs")
    assert act["holders"][0]["task_id"] == result.id
    assert "ann took lock" in locks(rig, "history", key).out


def test_release_of_a_glob_asks_first(rig: Rig, key: str) -> None:
    """A star too many must not free half the shop."""
    names = [f"{key}:{n}" for n in range(3)]
    for name in names:
        take(rig, name)

    def still_held() -> list[str]:
        return [name for name in names if rig.locks.is_locked(name)]

    answer = locks(rig, "release", f"{key}:*")
    assert answer.code == 2
    assert "3 locks match" in answer.err
    assert at_terminal(rig, "n\n", "release", f"{key}:*").endswith("Nothing was released.")
    assert still_held() == names
    answer = locks(rig, "release", f"{key}:*", "--yes", "--reason", "all hang", "--json")
    assert {lock["name"] for lock in answer.json["freed"]} == set(names)
    assert still_held() == []


def test_release_asks_and_wants_a_reason(rig: Rig, key: str) -> None:
    """At a terminal: who holds it, whether that one lives, a question, and why."""
    result = running(rig, key)
    answer = at_terminal(rig, "y\ncustomer waits\n", "release", key)
    assert "is alive and runs it in pid" in answer
    assert "Take this lock from its holder?" in answer
    assert f"Released lock '{key}', held by task work[{result.id}]" in answer
    [act] = locks(rig, "history", key, "--acts", "--json").json
    assert act["why"] == "customer waits"


def at_terminal(rig: Rig, typed: str, *arguments: str) -> str:
    """What ``celery -A proj locks …`` shows on a terminal to somebody who types this."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "celery", "-A", "tests.support.celery_app", "locks"]
    env = {**os.environ, "PYTHONPATH": PATH, CONF_VARIABLE: json.dumps(rig.conf)}
    process = subprocess.Popen(
        [*command, *arguments], stdin=inner, stdout=inner, stderr=inner, env=env
    )
    os.close(inner)
    os.write(outer, typed.encode())
    answer = b""
    try:
        while chunk := _read(outer):
            answer += chunk
        process.wait(60)
    finally:
        os.close(outer)
        process.kill()
        process.wait()
    return answer.decode().replace("\r\n", "\n").strip()


def test_stop_reaches_the_task(rig: Rig, key: str) -> None:
    """It keeps the lock, hears of it with a renewal, and its `check()` raises."""
    result = rig.task("work").apply_async((key, key), lock={"ttl": 3})
    rig.wait_started(result)
    answer = locks(rig, "stop", key, "--reason", "deploy")
    assert answer.code == 0
    assert f"Asked task work[{result.id}]" in answer.out
    assert rig.locks.is_locked(key)
    _wait_renewed(rig, key, times=2)
    rig.open(key)
    with pytest.raises(Exception, match="asked to stop"):
        result.get(timeout=PATIENCE)
    assert "to stop and release" in locks(rig, "history", key).out


def _wait_renewed(rig: Rig, key: str, times: int) -> None:
    for _ in range(times):
        [before] = rig.locks.holders(key)
        wait_until(
            lambda before=before: rig.locks.holders(key)[0].expires_at > before.expires_at,
            PATIENCE,
            what="a renewal",
        )


def test_hostile_names_do_nothing_to_the_terminal(rig: Rig) -> None:
    """A newline, an escape sequence, quotes, a bidi override: shown as what they are."""
    take(rig, HOSTILE, task_id=HOSTILE, task=HOSTILE, worker=HOSTILE)
    for command in (["list"], ["info", HOSTILE], ["stale"]):
        answer = locks(rig, *command)
        assert answer.code == 0, answer
        assert r"in\nvoice \x1b[31m" in answer.out
        assert "\u202e" not in answer.out
        assert "in\nvoice" not in answer.out
    assert [lock["name"] for lock in locks(rig, "list", "--json", "in*").json] == [HOSTILE]
    answer = locks(rig, "release", HOSTILE, "--yes", "--reason", HOSTILE, "--by", HOSTILE)
    assert answer.code == 0
    assert not rig.locks.is_locked(HOSTILE)
    [act] = locks(rig, "history", HOSTILE, "--json").json
    assert act["why"] == HOSTILE
    assert "in\nvoice" not in locks(rig, "history").out


def test_bad_input_is_answered_with_a_sentence(rig: Rig) -> None:
    answer = locks(rig, "info", "")
    assert (answer.code, "not empty" in answer.err) == (2, True)
    answer = locks(rig, "relase", "x")
    assert (answer.code, "No such command" in answer.err) == (2, True)


def test_bad_settings_are_answered_with_a_sentence(rig: Rig) -> None:
    answer = locks(rig, "list", locks_ttl=0.1)
    assert answer.code == 2
    assert "ttl" in answer.err
    assert alone("nonsense", "list").code == 2
    assert "celery -A proj locks sweep" in alone(rig.server.url, "sweep").err


NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("command", ["list", "sweep", "check"])
def test_a_server_that_is_down_ends_with_3(rig: Rig, command: str) -> None:
    answer = locks(rig, command, "--json", locks_url=NOWHERE)
    assert answer.code == 3
    assert "gave no answer" in answer.err


def test_a_broker_that_is_down_does_not_hide_the_locks(rig: Rig, key: str) -> None:
    """Then nobody can be asked; what the store knows is shown, and nothing is swept."""
    take(rig, key, worker="w", task_id="t")
    down = {"locks_url": rig.server.url, "broker_url": NOWHERE, "result_backend": NOWHERE}
    answer = locks(rig, "info", key, **down)
    assert answer.code == 0
    assert "the broker gives no answer" in answer.out
    assert locks(rig, "why", "nothing", **down).code == 1
    answer = locks(rig, "sweep", **down)
    assert answer.code == 3
    assert "it is unknown which workers are alive" in answer.err
    admin.force_release(rig.locks, key)


def test_stale_finds_what_no_worker_answers_for(rig: Rig, key: str) -> None:
    running(rig, key)
    take(rig, f"{key}:left", ttl=3600, worker="gone@nowhere", task_id="t")
    found = {one["name"]: one["verdict"] for one in locks(rig, "stale", "--json").json}
    assert found[f"{key}:left"] == "silent"
    assert key not in found
    assert "gone@nowhere does not answer" in locks(rig, "stale").out
    old = {one["name"] for one in locks(rig, "stale", "--older-than", "0", "--json").json}
    assert key in old
    swept = locks(rig, "sweep", "--json").json
    assert [one["name"] for one in swept["spared"]] == [f"{key}:left"]
    assert rig.locks.is_locked(f"{key}:left"), "its renewal is not overdue yet"
    admin.force_release(rig.locks, f"{key}:left")


def test_once_lists_and_resets_what_is_done(rig: Rig, key: str) -> None:
    """A payment that must be made again after all needs a way to say so."""
    assert idempotent(rig.locks, key=lambda: key)(lambda: 42)() == 42
    [work] = [one for one in locks(rig, "once", "list", "--json").json if one["key"] == key]
    assert work["lapses_in"] > 80_000
    assert key in locks(rig, "once", "list").out
    reset = locks(rig, "once", "reset", key, "--reason", "refunded", "--by", "ann")
    assert "may run again" in reset.out
    [act] = locks(rig, "history", key, "--json").json
    assert (act["act"], act["by"], act["why"]) == ("reset", "ann", "refunded")
    assert f"ann allowed the work for {key!r} to run again." in locks(rig, "history", key).out
    again = locks(rig, "once", "reset", key)
    assert (again.code, again.out) == (1, "")
    assert f"No work is marked as done for {key!r}." in again.err
    assert key not in locks(rig, "once", "list").out


def test_check_lints_the_app(rig: Rig) -> None:
    found = locks(rig, "check", "--json").json
    assert all(finding["level"] == "note" for finding in found), found
    assert locks(rig, "check").out.endswith("No problems found.\n")
    short = {"broker_transport_options": {"visibility_timeout": 5}}
    answer = locks(rig, "check", **short)
    assert answer.code == 1
    assert re.search(r"^warning +late: .*visibility_timeout", answer.out, re.MULTILINE)


def test_check_sees_a_server_that_evicts() -> None:
    with EmbeddedServer({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        answer = alone(server.url, "check")
    assert answer.code == 1
    assert "allkeys-lru" in answer.out


def test_top_without_a_screen(rig: Rig, key: str) -> None:
    take(rig, key)
    answer = locks(rig, "top", key, "--times", "2", "--every", "0.1")
    assert answer.code == 0
    assert answer.out.count("1 lock at") == 2
    lines = locks(rig, "top", key, "--times", "2", "--every", "0.1", "--json").out.splitlines()
    assert [json.loads(line)[0]["name"] for line in lines] == [key, key]


def test_top_on_a_screen(rig: Rig, key: str) -> None:
    """With rich a table, without it a plain one; both end by themselves when told how often."""
    take(rig, key)
    outer, inner = pty.openpty()
    code = "from celery_locks.cli import main; main()"
    command = [sys.executable, "-c", code, "--url", rig.server.url]
    command += ["top", key, "--times", "2", "--every", "0.1"]
    env = {**os.environ, "PYTHONPATH": PATH, "TERM": "xterm", "COLUMNS": "150"}
    top = subprocess.Popen(command, stdout=inner, stderr=inner, stdin=inner, env=env)
    os.close(inner)
    answer = b""
    try:
        while chunk := _read(outer):
            answer += chunk
        assert top.wait(30) == 0, answer
    finally:
        os.close(outer)
        top.kill()
        top.wait()
    assert key.encode() in answer
    assert b"\x1b[" in answer


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""


def test_remote_control(rig: Rig, key: str) -> None:
    """`celery inspect locks` and `celery control release_lock`, over the broker."""
    result = running(rig, key)
    answer = celery(rig, "inspect", "locks", "--json")
    assert answer.code == 0, answer.err
    [(worker, held)] = answer.json.items()
    assert worker.startswith("one@")
    assert {"name": key, "task_id": result.id}.items() <= held[0].items()
    answer = celery(rig, "control", "release_lock", key, "it hangs", "--json")
    assert answer.code == 0, answer.err
    [freed] = answer.json[0][worker]["ok"]["freed"]
    assert freed["task_id"] == result.id
    assert not rig.locks.is_locked(key)
    [act] = admin.history(rig.locks, key)
    assert act.why == "it hangs"
    answer = celery(rig, "control", "release_lock", key, "--json")
    assert answer.json[0][worker] == {"ok": {"freed": []}}


def test_three_in_the_morning() -> None:
    """The worker's machine dies: `why` says so, `sweep` frees it, the record shows it.

    An act is recorded only if the lock was held until then: it did not lapse by itself.
    """
    with fresh_rig(locks_ttl=40) as rig:
        with rig.worker("-n", "night@%h") as worker:
            result = rig.task("work").delay("invoice:42", "never")
            rig.wait_started(result)
            worker.kill()
            answer = locks(rig, "why", "invoice:42")
            assert answer.code == 0
            assert "does not answer" in answer.out
            assert "it becomes free in" in answer.out
            early = locks(rig, "sweep", "--dry-run", "--json").json
            assert [one["name"] for one in early["freed"] + early["spared"]] == ["invoice:42"]
            swept = locks(rig, "sweep", "--wait", "35", "--by", "ann", "--json").json
            assert [one["name"] for one in swept["freed"]] == ["invoice:42"]
            assert not rig.locks.is_locked("invoice:42")
            [act] = locks(rig, "history", "invoice:42", "--json").json
            assert act["by"] == "ann"
            assert "night@" in act["why"]
            assert act["holders"][0]["task_id"] == result.id
            after = locks(rig, "why", "invoice:42")
            assert after.code == 1
            assert "ann took lock 'invoice:42' from task work" in after.out


def test_pause_resume_and_limit(rig: Rig, key: str) -> None:
    """From the command to the list, to `why` and to the history."""
    take(rig, key)
    answer = locks(rig, "pause", key)
    assert answer.code == 2
    assert "Nothing was changed. Say why" in answer.err
    answer = locks(rig, "pause", key, "--for", "1h", "--reason", "bad data", "--by", "ann")
    assert (answer.code, answer.out) == (0, f"Paused '{key}': 1 holder, 0 waiters.\n")
    assert "(paused)" in locks(rig, "list", "--state", "paused", key).out
    assert "operator paused by ann, until " in locks(rig, "info", key).out
    assert f"`locks resume {key}` ends the pause" in locks(rig, "why", key).out
    answer = locks(rig, "limit", key, "5", "--reason", "more", "--json")
    assert answer.json["locks"][0]["limit"] == 5
    assert locks(rig, "limit", key, "--reset").out.startswith(f"Reset the limit of '{key}'")
    assert locks(rig, "limit", key, "--reset").code == 1
    assert locks(rig, "resume", key).out == f"Resumed '{key}': 1 holder, 0 waiters.\n"
    answer = locks(rig, "resume", key)
    assert (answer.code, answer.err) == (1, f"'{key}' was not paused.\n")
    history = locks(rig, "history", key).out
    assert f"ann paused '{key}' until" in history
    assert "Reason: bad data" in history
    assert f"set the limit of '{key}' to 5. Reason: more" in history


def test_pause_of_a_pattern(rig: Rig, key: str) -> None:
    locks(rig, "pause", f"{key}*", "--reason", "all of them", "--by", "ann")
    assert f"{key}*: paused by ann" in locks(rig, "list").out
    assert "all of them" in locks(rig, "why", f"{key}:never used").out
    answer = locks(rig, "resume", f"{key}:never used")
    assert answer.code == 1
    assert "is still paused by ann" in answer.err
    assert locks(rig, "resume", f"{key}*").code == 0
    assert f"{key}*" not in locks(rig, "list").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause", "a", "--for", "soon", "--reason", "r"),
        ("pause", "a", "--for", "0", "--reason", "r"),
        ("limit", "a", "0", "--reason", "r"),
        ("limit", "a"),
        ("limit", "a", "3", "--reset"),
        ("limit", "a", "--reset", "--for", "1h"),
    ],
)
def test_wrong_pause_or_limit_is_refused(rig: Rig, arguments: tuple[str, ...]) -> None:
    assert alone(rig.server.url, *arguments).code == 2
    assert rig.locks.info("a") is None


def parked(rig: Rig, key: str, count: int) -> list[Any]:
    """Send tasks that a worker parks, as the lock is held."""
    lock = {"on_conflict": "park"}
    results = []
    for number in range(1, count + 1):
        results.append(rig.task("work").apply_async((key, key), lock=lock))
        wait_until(lambda n=number: _parked(rig, key) == n, PATIENCE, what="the parked message")
    return results


def _parked(rig: Rig, key: str) -> int:
    lock = rig.locks.info(key)
    return lock.parked if lock else 0


def test_parked_tasks_are_seen_and_purged(rig: Rig, key: str) -> None:
    """From the list to `why`, to the result and to the history."""
    running(rig, key)
    first, second, third = parked(rig, key, 3)
    assert "3 (3 parked)" in locks(rig, "list", "--state", "parked", key).out
    info = locks(rig, "info", key).out
    assert "1 of 1 held, 3 waiting, 3 of them parked" in info
    assert f"waiter 2 task work[{second.id}]" in info
    assert f"Task {second.id} is parked for lock '{key}': second in line of 3" in (
        locks(rig, "why", second.id).out
    )
    assert "3 parked messages wait on the lock server, the oldest for" in locks(rig, "why", key).out
    refused = locks(rig, "purge", key, "--task-id", second.id, "--yes")
    assert refused.code == 2
    assert f"Nothing was removed. It would be the message of task {second.id}" in refused.err
    answer = locks(
        rig, "purge", key, "--task-id", second.id, "--reason", "wrong day", "--by", "ann", "--yes"
    )
    assert (answer.code, answer.out, answer.err) == (0, f"Removed task work[{second.id}].\n", "")
    wait_until(lambda: second.state == "REVOKED", PATIENCE, what="the result")
    assert "purged by ann: wrong day" in str(second.result)
    alone_said = alone(rig.server.url, "purge", key, "--reason", "all", "--yes")
    assert alone_said.code == 0
    assert "no Celery app is known here" in alone_said.err
    assert (first.state, third.state) == ("PENDING", "PENDING")
    again = locks(rig, "purge", key, "--reason", "all", "--yes")
    assert (again.code, again.err) == (1, f"No message is parked for lock '{key}'.\n")
    history = locks(rig, "history", key, "--acts").out
    assert f"ann removed 1 parked message from the queue of '{key}': task work[{second.id}]" in (
        history
    )
    assert "removed 2 parked messages" in history


def test_purge_is_confirmed_on_a_terminal(rig: Rig, key: str) -> None:
    take(rig, key)
    park(rig.locks, key, f"id-{key}")
    answer = at_terminal(rig, "n\n", "purge", key)
    assert "Remove 1 message?" in answer
    assert "Nothing was removed." in answer
    assert _parked(rig, key) == 1
    answer = at_terminal(rig, "y\nnot needed\n", "purge", key)
    assert f"Removed task bill[id-{key}]." in answer
    assert _parked(rig, key) == 0
    [entry] = admin.history(rig.locks, key, only_actions=True)
    assert entry.why == "not needed"


def test_check_warns_if_the_server_does_not_persist_parked_messages(rig: Rig) -> None:
    """The servers of the tests persist nothing, which is fine for locks alone."""
    sentence = "It does not persist: a restart loses the messages. Set appendonly yes."
    assert sentence not in locks(rig, "check").out
    answer = locks(rig, "check", locks_on_conflict="park")
    assert answer.code == 1
    assert sentence in answer.out
    client = rig.server.client()
    client.config_set("save", "3600 1")
    assert sentence not in locks(rig, "check", locks_on_conflict="park").out
    client.config_set("save", "")
    client.config_set("maxmemory", "1gb")
    client.config_set("maxmemory-policy", "volatile-lru")
    evicts = "maxmemory-policy is volatile-lru: under memory pressure the marks of tasks"
    assert evicts in locks(rig, "check", locks_on_conflict="park").out
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "0")
    client.close()


def test_rate_is_paused_set_and_shown(rig: Rig, key: str) -> None:
    """From the command to the list, to `why` and to the history."""
    answer = locks(rig, "rate", key)
    assert (answer.code, answer.out) == (1, "")
    assert f"Nothing has started at rate '{key}'" in answer.err
    answer = locks(rig, "rate", key, "--pause")
    assert answer.code == 2
    assert "Nothing was changed. Say why" in answer.err
    answer = locks(rig, "rate", key, "--pause", "--for", "1h", "--reason", "429", "--by", "ann")
    assert (answer.code, answer.out) == (0, f"Paused the rate '{key}': 0 delayed.\n")
    with pytest.raises(RateLimited, match="paused by ann"):
        rig.locks.throttle(key, "30/m")
    assert f"Rate '{key}' (no limit seen): paused by ann, until " in locks(rig, "list").out
    assert f"`locks rate {key} --resume` ends the pause" in locks(rig, "why", key).out
    assert locks(rig, "rate", key, "--resume").out == f"Resumed the rate '{key}': 0 delayed.\n"
    answer = locks(rig, "rate", key, "--resume")
    assert (answer.code, answer.err) == (1, f"The rate '{key}' was not paused.\n")
    answer = locks(rig, "rate", key, "2/m", "10/h", "--reason", "slower", "--json")
    assert answer.json["rate"]["rate_override"]["rate"] == "2/m 10/h"
    shown = locks(rig, "rate", key).out
    assert shown.startswith(f"Rate '{key}' (no limit seen): limited to 2/m and 10/h by ")
    assert [each["name"] for each in locks(rig, "rate", "--json").json if each["name"] == key]
    assert locks(rig, "rate", key, "--reset").out == f"Reset the rate '{key}': 0 delayed.\n"
    assert locks(rig, "rate", key, "--reset").code == 1
    history = locks(rig, "history", key).out
    assert f"ann paused the rate '{key}' until" in history
    assert f"set the rate '{key}' to 2/m and 10/h. Reason: slower" in history


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "10/x", "--reason", "r"), "the rate '10/x' must be"),
        (("a", "10/m", "--pause", "--reason", "r"), "Write one of RATE, --reset"),
        (("a", "--reset", "--for", "1h"), "--for has an effect only with"),
        (("--pause", "--reason", "r"), "Write the NAME of the rate."),
        (("a", "10/m"), "Say why"),
    ],
)
def test_wrong_rate_is_refused(rig: Rig, arguments: tuple[str, ...], words: str) -> None:
    answer = alone(rig.server.url, "rate", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert admin.rate_info(rig.locks, "a") is None
