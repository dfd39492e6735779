"""``locks sweep`` after a purge: frees the places whose message is nowhere, and no other."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from celery_locks import Holder, admin
from celery_locks.integration.broker_search import find_lost_messages
from celery_locks.validation import QUEUED
from tests.servers.embedded import EmbeddedServer
from tests.servers.fork_server import run_program
from tests.support.celery_app import CONF_VARIABLE, make_app
from tests.support.celery_worker import PATIENCE, ROOT, Rig, Worker, fresh_rig, rig_on
from tests.support.rabbitmq import RabbitMQ, is_installed
from tests.support.waiting import wait_until

# Celery's result backend uses what redis-py 8.1 calls deprecated, here in the caller's process.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

_numbers = itertools.count()
NOBODYS = "nobody reads this one"
OTHERS = "nor this one, which has messages"
MINUTES = 600.0


def swept_by_command(rig: Rig, *arguments: str) -> Any:
    """``celery -A proj locks sweep``, in a process that knows nothing of the queues in use."""
    command = ["-m", "celery", "-A", "tests.support.celery_app", "locks", "sweep"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), CONF_VARIABLE: json.dumps(rig.conf)}
    command += ["--json", "--timeout", "1", *arguments]
    done = run_program(command, env, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def freed(answer: Any) -> set[str]:
    return {one["name"] for one in answer["freed"]}


def purge(rig: Rig, queue: str) -> None:
    """As ``celery purge -Q`` does."""
    with rig.app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge(queue) > 0


def place_of(rig: Rig, name: str) -> Holder:
    [holder] = rig.locks.holders(name)
    assert holder.is_queued
    return holder


@contextmanager
def stranger(rig: Rig, **conf: Any) -> Iterator[Celery]:
    """The same app in a process that has sent nothing yet."""
    app = make_app({**rig.conf, **conf})
    try:
        yield app
    finally:
        app.close()


def missing(rig: Rig, *places: Holder, **conf: Any) -> tuple[set[str], str]:
    with stranger(rig, **conf) as app:
        answer = find_lost_messages(app, places, timeout=1.0)
    return set(answer.task_ids), answer.trouble


def wait_doubt(rig: Rig, sentence: str, *places: Holder) -> None:
    """Nothing is absent, for this reason; a slow worker may give another one first."""

    def is_reported() -> bool:
        found, trouble = missing(rig, *places)
        assert found == set()
        return sentence in trouble

    wait_until(is_reported, PATIENCE, what=f"the doubt that {sentence}")


# Redis.


def crowd(rig: Rig, worker: Worker) -> Iterator[tuple[str, Any]]:
    """Messages by their lock, in every place where one can be; the worker gets none of them done.

    One of its slots waits in line for a lock, one for a gate; beyond the four that it prefetches
    it takes no message out of the queue.
    """
    sent = rig.task("sent")

    def received(result: Any) -> Any:
        wait_until(
            lambda: f"[{result.id}] received" in worker.log, PATIENCE, what="it to be received"
        )
        return result

    waits = {"scope": "queued", "on_conflict": {"run": "wait"}}
    yield "in line" + QUEUED, received(sent.apply_async(["in line"], lock=waits))
    wait_until(lambda: rig.locks.info("in line").waiters, PATIENCE, what="it to stand in line")
    rig.wait_started(rig.task("work").delay("blocker", "gate"))
    yield "delayed", received(sent.apply_async(["delayed"], countdown=MINUTES))
    yield "settled" + QUEUED, received(rig.task("settled").delay("settled", 1))
    for n in range(4):
        yield f"prefetched-{n}", received(sent.delay(f"prefetched-{n}"))
    yield "waiting", sent.delay("waiting")
    yield "urgent", sent.apply_async(["urgent"], priority=9)
    yield "elsewhere", sent.apply_async(["elsewhere"], queue=OTHERS)


@pytest.fixture
def place() -> Iterator[tuple[Rig, Worker]]:
    with fresh_rig(locks_ttl=60) as rig, rig.worker("--prefetch-multiplier", "2") as worker:
        yield rig, worker


def expect_found_with_a_silent_worker(rig: Rig, worker: Worker, *names: str) -> None:
    """It has acknowledged none of them, so the broker knows that they are with somebody."""
    places = [place_of(rig, name) for name in names]
    worker.signal(signal.SIGSTOP)
    try:
        assert missing(rig, *places) == (set(), "")
    finally:
        worker.signal(signal.SIGCONT)


def test_sweep_frees_what_was_purged_and_nothing_else(place: tuple[Rig, Worker]) -> None:
    """The next call goes through; what is in a queue or with a worker keeps its place and runs."""
    rig, sent = place[0], place[0].task("sent")
    with rig.locks.hold("in line"):
        others = dict(crowd(*place))
        assert rig.redis.llen("celery") > 0
        lost = {"lost queued" + QUEUED, "lost queued+running"}
        back = sent.apply_async(["lost queued", 1], queue=NOBODYS, lock={"scope": "queued"})
        [backup] = rig.redis.lrange(NOBODYS, 0, -1)
        sent.apply_async(["lost queued+running"], queue=NOBODYS)
        purge(rig, NOBODYS)

        early = admin.sweep(rig.locks, rig.app, timeout=0.5)
        assert early.freed == (), "they may be about to be published"
        would = admin.sweep(rig.locks, rig.app, timeout=0.5, queued_for=0.0, dry_run=True)
        assert ({one.name for one in would.freed}, would.inconclusive) == (lost, "")
        assert sent.delay("lost queued+running").deduplicated is True

        assert freed(swept_by_command(rig, "--queued-for", "0", "--by", "ann")) == lost
        [act] = admin.history(rig.locks, "lost queued+running")
        assert act.by == "ann"
        assert "in no queue and with no worker" in act.why
        kept = {lock.name for lock in admin.list_locks(rig.locks, state="queued")}
        assert kept == set(others)
        others["lost queued+running"] = sent.delay("lost queued+running")
        assert others["lost queued+running"].deduplicated is False
        expect_found_with_a_silent_worker(*place, "delayed", "settled" + QUEUED, "prefetched-0")
        # Out of a backup of the broker: it has no place any more, and is not lost for that.
        rig.redis.rpush("celery", backup)
        others["lost queued"] = back
    rig.open("gate")
    for name in others.keys() - {"delayed", "elsewhere"}:
        others[name].get(timeout=PATIENCE)
    rig.wait_started(back)


PREFIXED = {"broker_transport_options": {"global_keyprefix": "shop[1]:"}}


@pytest.fixture(scope="module")
def quiet() -> Iterator[Rig]:
    """No worker, and a prefix before the broker's keys with characters that a glob knows."""
    with fresh_rig(**PREFIXED) as rig:
        yield rig


def sent_to(rig: Rig, queue: str, name: str = "", **options: Any) -> Holder:
    name = name or f"key-{next(_numbers)}"
    rig.task("sent").apply_async([name], queue=queue, **options)
    return place_of(rig, name)


def unnoted(place: Holder) -> Holder:
    """As if its call had not named the queue."""
    return Holder(task_id=place.task_id, task=place.task, retries=-1)


def test_messages_are_found_without_any_worker(quiet: Rig) -> None:
    """By the app's queues, the broker's bindings, or what the place says of its queue."""
    lost = sent_to(quiet, NOBODYS)
    purge(quiet, NOBODYS)
    there = [sent_to(quiet, queue, priority=n) for queue in ("celery", OTHERS) for n in (0, 5)]
    bound = list(map(unnoted, there))
    assert missing(quiet, lost, *bound) == ({lost.task_id}, "")
    for exchange in ("celery", OTHERS):
        quiet.redis.delete(f"shop[1]:_kombu.binding.{exchange}")
    assert missing(quiet, lost, *there) == ({lost.task_id}, "")


def test_long_queues_are_read_to_their_end(quiet: Rig) -> None:
    """The oldest is at the far end."""
    first = sent_to(quiet, OTHERS)
    for _ in range(250):
        quiet.app.send_task("echo", queue=OTHERS)
    assert missing(quiet, first) == (set(), "")


def with_broker(**options: Any) -> dict[str, Any]:
    return {"broker_transport_options": {**PREFIXED["broker_transport_options"], **options}}


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        (with_broker(ack_emulation=False), "without acknowledging"),
        ({"worker_enable_remote_control": False}, "no worker can be asked"),
        ({"broker_url": "memory://"}, "of type 'memory' cannot be read"),
        ({"broker_url": "redis://127.0.0.1:1/0"}, "the broker gives no answer"),
        ({"broker_read_url": "redis://127.0.0.1:1/0"}, "another broker"),
        (with_broker(unacked_key="a text"), "cannot be searched: .*WRONGTYPE"),
    ],
    ids=["unacknowledged", "unasked", "memory", "down", "two", "unreadable"],
)
def test_nothing_is_absent_when_in_doubt(quiet: Rig, conf: dict[str, Any], sentence: str) -> None:
    """And the answer says why."""
    quiet.redis.set("shop[1]:a text", "of somebody else")
    place = Holder(task_id="lost", task="sent", retries=-1)
    found, trouble = missing(quiet, place, **conf)
    assert found == set()
    assert re.search(sentence, trouble), trouble


# RabbitMQ.


@pytest.fixture(scope="module")
def rabbit(no_server_left: None) -> Iterator[tuple[Rig, Worker]]:
    """A worker with its only slot taken."""
    if not is_installed():
        sentence = "No rabbitmq-server here (Debian: apt-get install rabbitmq-server)."
        if os.environ.get("CI") and not os.environ.get("CELERY_LOCKS_WITHOUT_RABBITMQ"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    with (
        RabbitMQ() as broker,
        EmbeddedServer() as server,
        rig_on(server, broker_url=broker.url, locks_ttl=60) as rig,
        rig.worker(concurrency=1) as worker,
    ):
        rig.wait_started(rig.task("work").delay("blocker", "gate"))
        yield rig, worker
        rig.open("gate")


def test_sweep_with_amqp_is_certain_only_if_nothing_is_hidden(rabbit: tuple[Rig, Worker]) -> None:
    """What a worker has is spared; what waits in any queue, or a reader's silence, spares all."""
    rig, worker = rabbit
    sent = rig.task("sent")
    reserved, delayed = sent.delay("reserved"), sent.apply_async(["delayed"], countdown=MINUTES)
    for result in (reserved, delayed):
        wait_until(lambda r=result: f"[{r.id}] received" in worker.log, PATIENCE)
    lost = sent_to(rig, NOBODYS, "lost")
    purge(rig, NOBODYS)

    held_up = sent_to(rig, OTHERS, "held up")
    wait_doubt(rig, f"queue {OTHERS!r} has messages", lost, held_up)
    assert " left alone: " in admin.stale(rig.locks, rig.app, queued_for=0.0).inconclusive
    purge(rig, OTHERS)
    worker.signal(signal.SIGSTOP)
    try:
        wait_doubt(rig, "1 of 1 readers of 'celery' do not reply", lost)
    finally:
        worker.signal(signal.SIGCONT)

    def certain() -> Any:
        answer = swept_by_command(rig, "--queued-for", "0")
        return None if answer["doubt"] else answer

    answer = wait_until(certain, PATIENCE, what="the worker to answer again")
    assert freed(answer) == {"lost", "held up"}
    assert {place_of(rig, name).task_id for name in ("reserved", "delayed")} == {
        reserved.id,
        delayed.id,
    }
    assert sent.delay("lost").deduplicated is False


@pytest.mark.parametrize("queue", ["celery_delayed_5", NOBODYS])
def test_messages_that_rabbitmq_keeps_back_are_heeded(
    rabbit: tuple[Rig, Worker], queue: str
) -> None:
    """Native delayed delivery has queues of its own; a place says to which queue it was sent."""
    rig, _ = rabbit
    place = sent_to(rig, NOBODYS)
    purge(rig, NOBODYS)
    with rig.app.connection_for_write() as connection:
        held_back = connection.SimpleQueue(queue)
        held_back.put("anything")
        wait_doubt(rig, f"queue {queue!r} has messages", place)
        held_back.clear()
        held_back.close()


def test_messages_that_a_worker_does_not_show_are_spared(rabbit: tuple[Rig, Worker]) -> None:
    """Those that wait for the rate of their task; and of retries it is not said where they went."""
    rig, worker = rabbit
    rig.app.control.rate_limit("also_sent", "1/h", reply=True, timeout=PATIENCE, limit=1)
    limited = [rig.task("also_sent").delay(f"limited-{n}") for n in range(2)]
    for result in limited:
        wait_until(lambda r=result: f"[{r.id}] received" in worker.log, PATIENCE)
    retry = Holder(token="q-r", task_id="retry", task="sent", retries=1)
    wait_doubt(rig, "2 cannot be searched for", place_of(rig, "limited-1"), retry)
