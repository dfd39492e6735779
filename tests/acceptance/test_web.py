"""The web app as an operator uses it: a real server, a real worker, a real process."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from celery_locks import admin
from celery_locks.recipes import idempotent
from celery_locks.types import Holder, LockSpec
from celery_locks.web import create_app
from tests.support.celery_app import CONF_VARIABLE
from tests.support.celery_worker import PATIENCE, ROOT, Rig, fresh_rig
from tests.support.parked import park
from tests.support.waiting import wait_until
from tests.support.web import MAY_READ, MAY_WRITE, OURS, READ, WRITE, ask, error_of

_numbers = itertools.count()
HOSTILE = (
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "a/b?c=d&e=f#g%2Fh",
    "in\nvoice\r\n\x00\x1b[31m",
    "\u202e'\"`{{7*7}}${x}\u2028é😀",
    "x" * 512,
    "*?",
)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker("-n", "one@%h"):
        yield rig


@pytest.fixture(scope="module")
def app(rig: Rig) -> Any:
    return create_app(rig.app, read_keys=[READ], write_keys=[WRITE], requests_per_minute=1_000_000)


@pytest.fixture(scope="module")
def plain(rig: Rig) -> Any:
    """Build the app without Celery, which waits for workers that do not answer."""
    return create_app(
        rig.locks, read_keys=[READ], write_keys=[WRITE], requests_per_minute=1_000_000
    )


@pytest.fixture
def key(rig: Rig) -> Iterator[str]:
    key = f"key-{next(_numbers)}"
    yield key
    rig.open(key)


def get(app: Any, path: str, status: int = 200, **parameters: Any) -> Any:
    answer = ask(app, "GET", f"/api/v1/{path}", params=parameters, headers=MAY_READ)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else error_of(answer)


def post(app: Any, path: str, status: int = 200, **body: Any) -> Any:
    answer = ask(app, "POST", f"/api/v1/{path}", json=body, headers=MAY_WRITE)
    assert answer.status_code == status, answer.text
    return answer.json() if status == 200 else error_of(answer)


def running(rig: Rig, key: str) -> Any:
    """Start a task that holds the lock until the test ends."""
    result = rig.task("work").delay(key, key)
    rig.wait_started(result)
    return result


def take(rig: Rig, name: str, **fields: Any) -> None:
    """Hold a lock that nobody renews."""
    spec, token = LockSpec(name, 600), f"t-{next(_numbers)}"
    rig.locks.perform(rig.locks.commands.acquire(spec, token, Holder(**fields)))


def listed(app: Any, **parameters: Any) -> list[str]:
    return [lock["name"] for lock in get(app, "locks", **parameters)["locks"]]


def wait_listed(app: Any, name: str) -> None:
    """Wait until the list shows it: a list may be a second old."""
    wait_until(lambda: name in listed(app, limit=500), PATIENCE, what=f"lock {name!r} in the list")


def test_operator_finds_a_task_and_releases_its_lock(rig: Rig, app: Any, key: str) -> None:
    """From the list to the history: this is what the REST API is for."""
    result = running(rig, key)
    wait_listed(app, key)
    [lock] = get(app, "locks", glob=key, task="wor*", state="held")["locks"]
    assert lock["holders"][0]["task_id"] == result.id

    def seen_running() -> Any:
        """Try again: a worker on a busy machine may answer too late the first time."""
        [holder] = get(app, "locks/info", name=key)["holders"]
        return holder if holder["liveness"]["verdict"] == "running" else None

    holder = wait_until(seen_running, PATIENCE, what="the worker's answer")
    assert "is alive and runs it" in holder["liveness"]["sentence"]
    assert (
        f"Task {result.id} holds lock" in get(app, "locks/why", subject=result.id)["sentences"][0]
    )

    held = get(app, f"tasks/{result.id}/lock")
    assert (held["task_id"], held["locked"]) == (result.id, True)
    assert [row["name"] for row in held["locks"]] == [key]
    rows = get(app, "tasks/locks", task="work", worker=holder["worker"])["locks"]
    assert result.id in [row["task_id"] for row in rows]

    freed = post(app, f"tasks/{result.id}/release-lock", by="ann", reason="it hangs")
    assert [row["name"] for row in freed["freed"]] == [key]
    assert not rig.locks.holders(key)
    assert key not in listed(app, limit=500)
    held = get(app, f"tasks/{result.id}/lock")
    assert (held["locked"], held["locks"]) == (False, [])
    [act] = get(app, "locks/history", name=key, only_acts="true")["acts"]
    assert (act["act"], act["why"]) == ("force_release", "it hangs")
    assert act["by"] == "write key 1 over the web from 10.0.0.7, claimed name 'ann'"
    assert act["holders"][0]["task_id"] == result.id
    sentence = post(app, f"tasks/{result.id}/release-lock", 404)
    assert sentence == f"Task '{result.id}' holds no lock."


def test_release_with_a_grace_lets_the_task_stop_on_its_own(rig: Rig, app: Any, key: str) -> None:
    """The holder is asked with its next renewal; if it releases the lock, nothing is taken."""
    take(rig, key, task_id="t1")
    assert post(app, "locks/stop", name=key, reason="enough")["asked"][0]["task_id"] == "t1"
    assert post(app, "locks/release", 404, name=key, token="another").startswith("Nobody holds")
    assert post(app, "locks/release", name=key, grace=0.3)["freed"][0]["task_id"] == "t1"
    assert post(app, "locks/release", 404, name=key) == f"Nobody holds lock '{key}'."
    assert get(app, "locks/info", 404, name=key).startswith(f"Nobody holds lock '{key}'")
    acts = [act["act"] for act in get(app, "locks/history", name=key, only_acts="true")["acts"]]
    assert acts == ["force_release", "stop", "stop"]


def test_token_releases_one_holder_only(rig: Rig, app: Any, key: str) -> None:
    for holder in ("t1", "t2"):
        spec = LockSpec(key, 60, limit=2)
        rig.locks.perform(rig.locks.commands.acquire(spec, holder, Holder(task_id=holder)))
    assert len(post(app, "locks/release", name=key, token="t1")["freed"]) == 1
    assert [holder.token for holder in rig.locks.holders(key)] == ["t2"]
    assert post(app, "locks/release", name=key)["freed"][0]["token"] == "t2"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_a_name_like_any_other(rig: Rig, plain: Any, name: str) -> None:
    """A name is data: it comes back unchanged and addresses exactly its own lock."""
    take(rig, name, task_id=f"id of {name[:50]}", task=name, worker=name)
    wait_listed(plain, name)
    assert get(plain, "locks/info", name=name)["name"] == name
    assert name in listed(plain, worker=name, limit=500)
    assert get(plain, "locks/why", subject=name)["locks"][0]["name"] == name
    assert post(plain, "locks/release", name=name, reason=name[:500])["freed"][0]["task"] == name
    assert get(plain, "locks/history", name=name, only_acts="true")["acts"][0]["why"] == name[:500]
    assert get(plain, "locks/info", 404, name=name)


def test_list_is_sorted_and_paged(rig: Rig, app: Any) -> None:
    names = [f"sorted-{number}" for number in range(3)]
    for name in names:
        take(rig, name)
        time.sleep(0.002)  # the server counts in milliseconds
    wait_listed(app, names[-1])
    only = {"glob": "sorted-*"}
    assert listed(app, **only) == names
    assert listed(app, **only, order="desc") == names[::-1]
    assert listed(app, **only, sort="held") == names
    assert listed(app, **only, sort="held", order="asc") == names[::-1]
    assert listed(app, **only, sort="remaining") == names
    assert listed(app, **only, limit=1, offset=1) == [names[1]]
    answer = get(app, "locks", **only, limit=1)
    assert answer["total"] == 3
    assert answer["held"] >= 3
    assert abs(answer["as_of"] - time.time()) < PATIENCE
    assert 0 < answer["read_in"] < PATIENCE


def test_check_stale_and_sweep_are_served(rig: Rig, app: Any) -> None:
    me = get(app, "me")
    assert (me["role"], me["app"]) == ("read", True)
    assert abs(me["now"] - time.time()) < PATIENCE
    assert {finding["where"] for finding in get(app, "locks/check")["findings"]}
    take(rig, "left behind", task_id="x", worker="gone@nowhere")
    stale = {lock["name"]: lock for lock in get(app, "locks/stale", older_than=0)["stale"]}
    assert stale["left behind"]["verdict"] == "silent"
    assert all(lock["is_old"] for lock in stale.values())
    swept = post(app, "locks/sweep", dry_run=True)
    assert "left behind" in [lock["name"] for lock in swept["spared"]]


def test_done_work_is_listed_and_reset(rig: Rig, app: Any) -> None:
    done = idempotent(rig.locks, key="paid:{n}", ttl=60)(lambda n: n)
    done(7)
    [work] = get(app, "locks/done")["done"]
    assert work["key"] == "paid:7"
    answer = post(app, "locks/done/reset", key="paid:7", by="ann", reason="paid the wrong one")
    assert answer == {"key": "paid:7", "reset": True}
    sentence = post(app, "locks/done/reset", 404, key="paid:7")
    assert sentence == "No work is marked as done for 'paid:7'."
    [act] = get(app, "locks/history", name="paid:7", only_acts="true")["acts"]
    assert (act["act"], act["why"]) == ("reset", "paid the wrong one")
    assert act["by"] == "write key 1 over the web from 10.0.0.7, claimed name 'ann'"


@pytest.mark.parametrize(
    ("verdict", "who"),
    [
        (("write", "bob"), "user 'bob' over the web from 10.0.0.7, claimed name 'ceo'"),
        (("write", "b\ud800"), "user 'b?' over the web from 10.0.0.7, claimed name 'ceo'"),
        ("write", "somebody over the web from 10.0.0.7, claimed name 'ceo'"),
    ],
)
def test_history_separates_the_verified_name_from_the_claimed(
    rig: Rig, key: str, verdict: Any, who: str
) -> None:
    """Any user may claim to be the ceo; the name of the login comes first."""
    app = create_app(rig.locks, authorize=lambda request: verdict)
    take(rig, key)
    body = {"name": key, "by": "ceo", "reason": "x" * 500}
    answer = ask(app, "POST", "/api/v1/locks/release", json=body, headers=OURS)
    assert answer.status_code == 200, answer.text
    [act] = admin.history(rig.locks, key, only_actions=True)
    assert act.by == who


def test_default_grace_exceeds_what_the_holder_needs_to_notice(
    rig: Rig, plain: Any, key: str
) -> None:
    """The page shows it for each lock; null requests it, and too long a wait is refused."""
    take(rig, key)  # a ttl of 600 s
    wait_listed(plain, key)
    assert get(plain, "locks/info", name=key)["default_grace"] == 205
    [lock] = get(plain, "locks", glob=key)["locks"]
    assert lock["default_grace"] == 205
    sentence = post(plain, "locks/release", 400, name=key, grace=None)
    assert "needs up to 205 s to stop" in sentence
    assert rig.locks.holders(key)


def test_sweep_needs_an_app(plain: Any) -> None:
    assert "no Celery app is configured" in post(plain, "locks/sweep", 409)


ALONE = "from celery_locks.cli import main; main(prog_name='celery-locks')"


def command(rig: Rig, *arguments: str, alone: bool = True) -> list[str]:
    python = [sys.executable, "-W", "ignore"]
    if alone:
        return [*python, "-c", ALONE, "--url", rig.server.url, "web", *arguments]
    return [*python, "-m", "celery", "-A", "tests.support.celery_app", "locks", "web", *arguments]


def environment(rig: Rig, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CELERY_LOCKS_")}
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    return {**kept, "PYTHONPATH": path, CONF_VARIABLE: json.dumps(rig.conf), **more}


@contextmanager
def served(
    rig: Rig, *arguments: str, alone: bool = True, warning: str = "", **more: str
) -> Iterator[str]:
    """Run ``celery-locks web`` and yield its address; Ctrl-C ends it without further output."""
    process = subprocess.Popen(
        command(rig, "--port", "0", *arguments, alone=alone),
        env=environment(rig, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://\S+/", line)
        assert address, line + process.communicate(timeout=PATIENCE)[1]
        yield address.group()
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=PATIENCE)[1]
        assert output.startswith(warning) if warning else output == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def fetched(address: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_command_serves_with_keys(rig: Rig, key: str) -> None:
    """With `celery -A proj locks web` the app is known, so the worker can be asked."""
    running(rig, key)
    keys = {"CELERY_LOCKS_READ_KEYS": f"other, {READ}", "CELERY_LOCKS_WRITE_KEYS": WRITE}
    with served(rig, alone=False, **keys) as address:
        assert fetched(address)[0] == 200
        assert fetched(f"{address}api/v1/me")[0] == 401
        info = f"{address}api/v1/locks/info?name={key}"
        wait_until(lambda: "is alive and runs it" in fetched(info, **MAY_READ)[1], PATIENCE)
        freed = httpx.post(
            f"{address}api/v1/locks/release",
            json={"name": key},
            headers=MAY_WRITE,
            timeout=PATIENCE,
        )
        assert freed.status_code == 200
        assert "uvicorn" not in freed.headers.get("Server", "")


def test_command_serves_open_on_this_machine_only(rig: Rig) -> None:
    with served(rig, "--open") as address:
        assert json.loads(fetched(f"{address}api/v1/me")[1])["role"] == "write"
        status, text = fetched(f"{address}api/v1/me", Host="evil.example")
        assert (status, "accepts local requests only" in text) == (403, True)
        status, _ = fetched(address, Host="localhost:1")
        assert status == 200


def release(address: str, name: str, **headers: str) -> None:
    answer = httpx.post(
        f"{address}api/v1/locks/release",
        json={"name": name},
        headers={**MAY_WRITE, **headers},
        timeout=PATIENCE,
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("arguments", "forwarded", "known_as"),
    [
        ([], "203.0.113.9", "127.0.0.1"),
        (["--behind-proxy", "10.0.0.0/8"], "203.0.113.9", "127.0.0.1"),
        (["--behind-proxy", "127.0.0.1"], "6.6.6.6, 203.0.113.9", "203.0.113.9"),
        (["--behind-proxy", "127.0.0.1"], "the CTO's", "an unknown address"),
    ],
)
def test_command_trusts_only_a_named_proxy(
    rig: Rig, key: str, arguments: list[str], forwarded: str, known_as: str
) -> None:
    """Otherwise any local caller could forge its address and bypass the limit."""
    take(rig, key)
    with served(rig, *arguments, CELERY_LOCKS_WRITE_KEYS=WRITE) as address:
        release(address, key, **{"X-Forwarded-For": forwarded})
    [act] = admin.history(rig.locks, key, only_actions=True)
    assert act.by == f"write key 1 over the web from {known_as}"


def test_command_warns_of_keys_over_http(rig: Rig) -> None:
    keys = {"CELERY_LOCKS_READ_KEYS": READ}
    warning = "Warning: API keys are sent unencrypted over HTTP"
    with served(rig, "--host", "0.0.0.0", warning=warning, **keys) as address:
        assert fetched(address.replace("0.0.0.0", "127.0.0.1"))[0] == 200
    # Behind a proxy there is no warning: a word on stderr would fail this.
    with served(rig, "--host", "0.0.0.0", "--behind-proxy", "10.0.0.1", **keys) as address:
        assert fetched(address.replace("0.0.0.0", "127.0.0.1"))[0] == 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--behind-proxy", "*"], "does not appear to be an IPv4 or IPv6 network"),
        ([], "Set CELERY_LOCKS_READ_KEYS or CELERY_LOCKS_WRITE_KEYS, or use --open"),
        (["--open", "--host", "0.0.0.0"], "--open serves this machine only, and 0.0.0.0 is not"),
        (
            ["--open", "--host", "::", "--port", "0"],
            "--open serves this machine only, and :: is not",
        ),
        (["--open", "--port", "{taken}"], "Cannot listen on"),
    ],
)
def test_command_refuses_with_a_sentence(rig: Rig, arguments: list[str], sentence: str) -> None:
    taken = str(urlsplit(rig.server.url).port)
    arguments = [word.replace("{taken}", taken) for word in arguments]
    done = subprocess.run(
        command(rig, *arguments),
        env=environment(rig),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stdout
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_command_without_the_extra_names_what_to_install(rig: Rig) -> None:
    """The core installs without a web server."""
    code = f"import sys; sys.modules['uvicorn'] = None; {ALONE}"
    done = subprocess.run(
        [sys.executable, "-c", code, "--url", rig.server.url, "web", "--open"],
        env=environment(rig),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install celery-locks[web]" in done.stderr


def test_pause_and_limit_over_rest(rig: Rig, app: Any, key: str) -> None:
    """Who and why are in the history; the list and the details show the pause."""
    take(rig, key, task_id="t1")
    done = post(app, "locks/pause", name=key, reason="bad data", by="ann", seconds=3600)
    assert (done["was_set"], len(done["locks"][0]["holders"])) == (False, 1)
    assert key in listed(app, state="paused")
    assert get(app, "locks/info", name=key)["pause"]["why"] == "bad data"
    post(app, "locks/limit", name=key, limit=4, reason="more")
    assert get(app, "locks/info", name=key)["limit"] == 4
    post(app, "locks/limit/reset", name=key)
    assert post(app, "locks/limit/reset", 404, name=key) == f"No limit is set for lock '{key}'."
    assert post(app, "locks/resume", name=key)["was_set"]
    assert post(app, "locks/resume", 404, name=key) == f"Nobody paused '{key}'."
    assert key not in listed(app, state="paused")
    acts = get(app, "locks/history", name=key, only_acts="true")["acts"]
    assert [act["act"] for act in acts] == ["resume", "limit_reset", "limit", "pause"]
    assert acts[-1]["by"] == "write key 1 over the web from 10.0.0.7, claimed name 'ann'"
    assert "reason is missing" in post(app, "locks/pause", 400, name=key)


def test_pause_of_a_pattern_over_rest(rig: Rig, app: Any, key: str) -> None:
    post(app, "locks/pause", name=f"{key}*", reason="all")
    [pattern] = get(app, "locks/patterns")["patterns"]
    assert (pattern["glob"], pattern["why"]) == (f"{key}*", "all")
    assert get(app, "locks/info", name=f"{key}:new")["pause"]["glob"] == f"{key}*"
    post(app, "locks/resume", name=f"{key}*")
    assert get(app, "locks/patterns")["patterns"] == []


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_parked_tasks_are_seen_and_purged_over_rest(rig: Rig, app: Any, key: str) -> None:
    """One message that a worker parked, then all; the result and the history say who and why."""
    running(rig, key)
    results = []
    for number in (1, 2, 3):
        results.append(rig.task("work").apply_async((key, key), lock={"on_conflict": "park"}))
        wait_until(
            lambda n=number: get(app, "locks/info", name=key)["parked"] == n,
            PATIENCE,
            what="the parked message",
        )
    wait_until(lambda: key in listed(app, state="parked"), PATIENCE, what="the list")
    second = results[1].id
    [sentence, *_] = get(app, "locks/why", subject=second)["sentences"]
    assert sentence.startswith(f"Task {second} is parked for lock '{key}': second in line of 3")
    waiters = get(app, "locks/info", name=key)["waiters"]
    assert [(waiter["task_id"], waiter["parked"]) for waiter in waiters] == [
        (result.id, True) for result in results
    ]
    assert "reason is missing" in post(app, "locks/purge", 400, name=key)
    assert "No message of task 'x' is parked" in (
        post(app, "locks/purge", 404, name=key, reason="r", task_id="x")
    )
    done = post(app, "locks/purge", name=key, reason="wrong day", by="ann", task_id=second)
    assert [holder["task_id"] for holder in done["purged"]] == [second]
    assert (done["unmarked"], done["trouble"]) == ("", "")
    wait_until(lambda: results[1].state == "REVOKED", PATIENCE, what="the result")
    assert "wrong day" in str(results[1].result)
    assert len(post(app, "locks/purge", name=key, reason="all")["purged"]) == 2
    assert key not in listed(app, state="parked")
    acts = get(app, "locks/history", name=key, only_acts="true")["acts"]
    assert [(act["act"], act["count"]) for act in acts] == [("purge", 2), ("purge", 1)]
    assert acts[1]["by"] == "write key 1 over the web from 10.0.0.7, claimed name 'ann'"


def test_purge_without_a_celery_app_says_so(rig: Rig, plain: Any, key: str) -> None:
    take(rig, key)
    park(rig.locks, key, f"id-{key}")
    done = post(plain, "locks/purge", name=key, reason="all")
    assert "no Celery app is known here" in done["unmarked"]


def test_rates_over_rest(rig: Rig, app: Any, key: str) -> None:
    """Who and why are in the history; the list shows the pause and the operator's rate."""
    sentence = get(app, "rates/info", 404, name=key)
    assert sentence == f"Nothing has started at rate '{key}' in its last period."
    done = post(app, "rates/pause", name=key, reason="429", by="ann", seconds=3600)
    assert (done["was_set"], done["rate"]["pause"]["why"]) == (False, "429")
    [rate] = [rate for rate in get(app, "rates")["rates"] if rate["name"] == key]
    assert "claimed name 'ann'" in rate["pause"]["by"]
    post(app, "rates/set", name=key, rate="2/h", reason="slower", by="bob")
    assert get(app, "rates/info", name=key)["rate_override"]["rate"] == "2/h"
    post(app, "rates/resume", name=key)
    assert post(app, "rates/resume", 404, name=key) == f"Nobody paused the rate '{key}'."
    rig.locks.throttle(key, "100/s")
    assert 1700 < get(app, "rates/info", name=key)["free_in"] <= 1801
    post(app, "rates/reset", name=key)
    assert post(app, "rates/reset", 404, name=key) == f"No operator set the rate '{key}'."
    acts = get(app, "locks/history", name=key)["acts"]
    kinds = ["rate_reset", "rate_resume", "rate", "rate_pause"]
    assert [act["act"] for act in acts] == kinds
    assert (acts[1]["rate"], acts[2]["rate"]) == ("", "2/h")
    assert "must be a number" in post(app, "rates/set", 400, name=key, rate="fast", reason="x")
    assert "reason is missing" in post(app, "rates/pause", 400, name=key)
