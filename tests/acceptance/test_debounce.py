"""Many calls that become one run, with a real worker and broker: when it runs, and with what."""

from __future__ import annotations

import collections
import itertools
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_locks import LockUnavailable, LockUsageError
from celery_locks.integration import merged_publication
from celery_locks.validation import QUEUED
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig, rig_on
from tests.support.child import start_python
from tests.support.proxy import Proxy
from tests.support.redis_keys import keys_of_locks
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until

# Celery's result backend uses what redis-py 8.1 calls deprecated, here in the caller's process.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

_numbers = itertools.count()

# Publishes items one by one, and notes each that was published; kills itself after the stage.
PUBLISHER = """
    import json, os, signal, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    from tests.support.celery_app import client_of, make_app
    from celery_locks.integration.publishing import Publication

    conf, key, name, count, stage, lock = sys.argv[1:]
    app = make_app(json.loads(conf))
    app.finalize()
    notes = client_of(app.conf.journal_url)

    def die_after(owner, method):
        inner = getattr(owner, method)
        def run(*args, **kwargs):
            inner(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(owner, method, run)

    from celery_locks.integration.merged_publication import MergedPublication
    if stage == "prepared":
        die_after(MergedPublication, "_prepare")
    if stage == "sent":
        die_after(Publication, "send_message")
    if stage == "committed":
        die_after(MergedPublication, "_commit")
    for number in range(int(count)):
        item = f"{name}-{number}"
        app.tasks["joined"].apply_async((key, [item]), lock=json.loads(lock))
        notes.rpush(f"published:{key}", item)
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig() as rig, rig.worker("-n", "one@%h"):
        yield rig


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


def starts_under(rig: Rig, key: str) -> list[dict[str, Any]]:
    return [entry for entry in rig.starts() if entry["lock"] == key]


def runs(rig: Rig, key: str) -> list[Any]:
    return [entry["value"] for entry in starts_under(rig, key)]


def published(rig: Rig, key: str) -> list[str]:
    return [item.decode() for item in rig.redis.lrange(f"published:{key}", 0, -1)]


def publisher(
    rig: Rig, key: str, name: str, count: int, stage: str = "", lock: dict[str, Any] | None = None
) -> Any:
    options = (key, name, str(count), stage, json.dumps(lock))
    return start_python(PUBLISHER, json.dumps(rig.conf), *options)


def wait_ended(process: subprocess.Popen[str], code: int = 0) -> None:
    out, err = process.communicate(timeout=3 * PATIENCE)
    assert process.returncode == code, f"{out}\n{err}"


def wait_all_ran(rig: Rig, key: str) -> None:
    """Nothing is queued or runs, and the broker has no message: those that never run too."""

    def is_empty() -> bool:
        if rig.redis.llen("celery") or rig.redis.hlen("unacked"):
            return False
        return not rig.locks.holders(key + QUEUED) and not rig.locks.holders(key)

    wait_until(is_empty, 3 * PATIENCE, every=0.1, what="the last message")


def check_exactly_once(rig: Rig, key: str) -> None:
    """Each published item is in one run. One whose publisher died is in at most one."""
    times = collections.Counter(item for items in runs(rig, key) for item in items)
    assert set(times.values()) == {1}, times
    missing = set(published(rig, key)) - set(times)
    assert not missing


# settle and max_wait.


def test_settle_waits_for_the_last_call_but_not_longer_than_max_wait(rig: Rig, key: str) -> None:
    """50 calls in two seconds: one run 1.5 s after the first call, one after the last call."""
    quiet, results, calls = rig.task("quiet"), [], []
    with measure_stalls() as stalled:
        began = time.time()
        for number in range(50):
            calls.append(time.time() - began)
            results.append(quiet.delay(key, number))
            time.sleep(max(0.0, began + (number + 1) * 0.04 - time.time()))
        assert results[-1].get(timeout=PATIENCE) == 49
    first, *_, last = starts_under(rig, key)
    if stalled() < 0.5:
        assert len(runs(rig, key)) == 2
        assert 1.4 < first["at"] - began < 1.5 + 1.5 + stalled()
    assert last["value"] == 49
    assert last["at"] - began >= calls[-1] + 0.9
    values = runs(rig, key)
    assert values == sorted(values)
    ran = {entry["id"] for entry in starts_under(rig, key)}
    for result in results:
        if result.id not in ran:
            with pytest.raises(TaskRevokedError):
                result.get(timeout=PATIENCE)


def test_settle_runs_once_for_calls_that_come_together(rig: Rig, key: str) -> None:
    results = [rig.task("quiet").delay(key, number) for number in range(3)]
    assert results[-1].get(timeout=PATIENCE) == 2
    assert runs(rig, key) == [2]


def test_stuck_message_does_not_run_after_a_later_call(rig: Rig, key: str) -> None:
    """It waits in a queue whose worker is busy, while the later call runs elsewhere."""
    quiet, lock = rig.task("quiet"), {"settle": 0.2, "max_wait": 0.2}
    stuck = quiet.apply_async((key, "old"), lock=lock, queue="slow")
    time.sleep(0.3)  # it is due now, and nobody can start it
    last = quiet.apply_async((key, "new"), lock=lock)
    assert last.get(timeout=PATIENCE) == "new"
    with rig.worker("-n", "slow@%h", "-Q", "slow"):
        with pytest.raises(TaskRevokedError):
            stuck.get(timeout=PATIENCE)
    assert runs(rig, key) == ["new"]


def test_message_that_was_left_runs_first_and_then_the_later_call(rig: Rig, key: str) -> None:
    quiet, lock = rig.task("quiet"), {"settle": 0.2, "max_wait": 0.2}
    left = quiet.apply_async((key, "old"), lock=lock, queue="slow")
    time.sleep(0.3)
    last = quiet.apply_async((key, "new"), lock=lock, countdown=None, queue="slow")
    # One process: with two, the later call may start first, and then the earlier one is dropped.
    with rig.worker("-n", "slow@%h", "-Q", "slow", "-c", "1"):
        assert (left.get(timeout=PATIENCE), last.get(timeout=PATIENCE)) == ("old", "new")
    assert runs(rig, key) == ["old", "new"]


# Which arguments.


def test_first_keeps_the_arguments_and_the_message_of_the_first_call(rig: Rig, key: str) -> None:
    first_kept = rig.task("first_kept")
    results = [first_kept.delay(key, number) for number in range(3)]
    assert {result.id for result in results} == {results[0].id}
    assert [result.deduplicated for result in results] == [False, True, True]
    assert results[0].get(timeout=PATIENCE) == 0
    again = first_kept.delay(key, 3)
    assert again.get(timeout=PATIENCE) == 3
    assert runs(rig, key) == [0, 3]


def test_first_with_settle_moves_the_time_only(rig: Rig, key: str) -> None:
    lock = {"debounce": 0, "settle": 1}
    results = [rig.task("first_kept").apply_async((key, number), lock=lock) for number in range(3)]
    assert len({result.id for result in results}) == 3
    assert results[-1].get(timeout=PATIENCE) == 0
    assert runs(rig, key) == [0]


def test_merged_call_returns_its_result_to_the_last_caller(rig: Rig, key: str) -> None:
    results = [rig.task("joined").delay(key, items=[number]) for number in range(4)]
    assert results[-1].get(timeout=PATIENCE) == [0, 1, 2, 3]
    for replaced in results[:-1]:
        with pytest.raises(TaskRevokedError):
            replaced.get(timeout=PATIENCE)
    assert runs(rig, key) == [[0, 1, 2, 3]]
    wait_all_ran(rig, key)
    kept = keys_of_locks(rig.redis.keys("celery-locks:*"))
    assert not [name for name in kept if "}:a:" in name]


def test_calls_during_a_run_are_merged_into_the_next_one(rig: Rig, key: str) -> None:
    joined = rig.task("joined")
    first = joined.delay(key, [0], gate=key)
    rig.wait_started(first)
    results = [joined.delay(key, [number]) for number in (1, 2)]
    rig.wait_event("requeued", key)
    results.append(joined.delay(key, [3]))
    rig.open(key)
    assert results[-1].get(timeout=PATIENCE) == [1, 2, 3]
    assert runs(rig, key) == [[0], [1, 2, 3]]


def test_arguments_that_are_too_large_are_published_on_their_own(
    rig: Rig, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost, and the smaller ones are still merged."""
    huge = "x" * merged_publication.ARGUMENT_BYTES
    joined = rig.task("joined")
    results = [joined.delay(key, [item]) for item in ("a", huge, "b")]
    assert "is published on its own" in caplog.text
    assert results[1].get(timeout=PATIENCE) == [huge]
    assert results[2].get(timeout=PATIENCE) == ["a", "b"]


def test_call_with_an_id_of_its_own_is_not_merged(rig: Rig, key: str) -> None:
    """Somebody knows the id and waits for this very message."""
    joined = rig.task("joined")
    joined.delay(key, ["a"])
    own = joined.apply_async((key, ["own"]), task_id=f"own-{key}")
    last = joined.delay(key, ["b"])
    assert own.get(timeout=PATIENCE) == ["own"]
    assert last.get(timeout=PATIENCE) == ["a", "b"]


def test_merge_that_fails_publishes_nothing_and_the_queued_call_runs(
    rig: Rig, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = rig.task("joined")
    first = joined.delay(key, ["a"])
    with pytest.raises(TypeError):
        joined.delay(key, 7)
    values = type(joined)._lock_values
    for result, sentence in (({"items": []}, "by name"), ({"key": "z", "items": []}, "lock 'z")):
        merge = {"arguments": lambda earlier, later, result=result: result}
        monkeypatch.setattr(type(joined), "_lock_values", {**values, **merge})
        with pytest.raises(LockUsageError, match=sentence):
            joined.delay(key, ["b"])
    assert first.get(timeout=PATIENCE) == ["a"]
    assert runs(rig, key) == [["a"]]


# Several publishers, and publishers that die.


def test_four_publishers_lose_nothing_and_repeat_nothing(rig: Rig, key: str) -> None:
    publishers = [publisher(rig, key, f"p{number}", 50) for number in range(4)]
    for process in publishers:
        wait_ended(process)
    wait_all_ran(rig, key)
    assert len(published(rig, key)) == 200
    check_exactly_once(rig, key)
    assert len(runs(rig, key)) < 100


@pytest.mark.parametrize("stage", ["prepared", "sent", "committed"])
@pytest.mark.parametrize("is_first", [True, False])
def test_publisher_that_dies_between_two_steps_costs_at_most_its_own_call(
    rig: Rig, key: str, stage: str, is_first: bool
) -> None:
    joined = rig.task("joined")
    lock = {"settle": 3, "max_wait": 20}  # it stays open until the publisher has died
    if not is_first:
        joined.apply_async((key, ["before"]), lock=lock)
    wait_ended(publisher(rig, key, "dead", 1, stage, lock), -signal.SIGKILL)
    last = joined.apply_async((key, ["after"]), lock=lock)
    dead = ["dead-0"] if stage == "committed" else []
    items = [*([] if is_first else ["before"]), *dead, "after"]
    last.get(timeout=PATIENCE)
    wait_all_ran(rig, key)
    assert sorted(itertools.chain(*runs(rig, key))) == sorted(items)


def test_publishers_that_are_killed_at_any_moment(rig: Rig, key: str) -> None:
    """Every call that returned is in one run; of the others none is in two."""
    dice = random.Random(7)
    steady = [publisher(rig, key, f"s{number}", 60) for number in range(2)]
    killed = 0
    while killed < 4:
        process = publisher(rig, key, f"k{killed}", 10_000)
        mark = f"k{killed}-".encode()
        wait_until(
            lambda mark=mark: any(
                item.startswith(mark) for item in rig.redis.lrange(f"published:{key}", 0, -1)
            ),
            PATIENCE,
            what="its first call",
        )
        time.sleep(dice.uniform(0.0, 0.5))
        process.kill()
        wait_ended(process, -signal.SIGKILL)
        killed += 1
    for process in steady:
        wait_ended(process)
    wait_all_ran(rig, key)
    check_exactly_once(rig, key)


# Faults of the servers.


def test_broker_that_refuses_the_message_leaves_the_queued_one(rig: Rig, key: str) -> None:
    """Also if it accepted the message and only its reply was lost."""
    first = rig.task("joined").delay(key, ["a"])
    with EmbeddedServer() as nobody:
        gone = nobody.url
    conf = {**rig.conf, "broker_url": gone, "locks_url": rig.server.url}
    conf["broker_transport_options"] = {"max_retries": 0, "socket_connect_timeout": 1}
    with rig_on(rig.server, **conf) as away:
        with pytest.raises(Exception, match="refused"):
            away.task("joined").apply_async((key, ["b"]), retry=False)
    assert first.get(timeout=PATIENCE) == ["a"]
    assert runs(rig, key) == [["a"]]


def test_lost_reply_of_the_commit_is_asked_for_again(rig: Rig, key: str) -> None:
    """The server has executed it; the second try gets the same reply."""
    with Proxy("127.0.0.1", rig.server.port) as proxy:
        conf = {**rig.conf, "locks_url": proxy.url}
        with rig_on(rig.server, **conf) as far:
            joined = far.task("joined")
            joined.delay(key, ["a"])
            proxy.drop_next_reply(b'["a", "b"]')
            last = joined.delay(key, ["b"])
            assert proxy.dropped == 1
            assert last.get(timeout=PATIENCE) == ["a", "b"]
    assert runs(rig, key) == [["a", "b"]]


def test_lock_server_that_is_away_publishes_each_call_on_its_own() -> None:
    with EmbeddedServer() as of_locks:
        away = of_locks.url
    with fresh_rig(locks_url=away) as rig:
        joined = rig.task("joined")
        for item in ("a", "b"):
            joined.delay("k", [item])
        assert rig.redis.llen("celery") == 2
        with pytest.raises(LockUnavailable):
            joined.apply_async(("k", ["c"]), lock={"on_unavailable": "fail"})
