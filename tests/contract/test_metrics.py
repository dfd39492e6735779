"""The commands of the metrics on every store: correct sums, and a correct count of locks."""

from __future__ import annotations

import time

import pytest

from celery_locks import Holder, Locks
from celery_locks.metrics.collector import read_counts, read_tallies
from celery_locks.store.commands import metrics as metrics_commands
from celery_locks.store.commands.locks import reservation_token
from celery_locks.store.commands.metrics import MetricField, MetricsCommands, Tally
from celery_locks.types import LockSpec
from tests.contract.backends import Backend

BILL = MetricField("acquired", "bill")


@pytest.fixture
def commands(locks: Locks) -> MetricsCommands:
    return MetricsCommands(locks.commands)


def test_counts_of_all_processes_are_summed(locks: Locks, commands: MetricsCommands) -> None:
    odd = MetricField("conflicts", "tâche\tnoire", "skip")
    assert locks.perform(commands.count("one", 1, [(BILL, 2), (odd, 1)])) is True
    assert locks.perform(commands.count("two", 1, [(BILL, 3)])) is True
    assert read_counts(locks) == {BILL: 5, MetricField("conflicts", "tâche noire", "skip"): 1}


def test_batch_sent_again_counts_once(
    locks: Locks, commands: MetricsCommands, backend: Backend
) -> None:
    """A lost reply must not double the numbers of a day."""
    batch = commands.count("one", 1, [(BILL, 2)])
    assert locks.perform(batch) is True
    assert locks.perform(batch) is False
    assert locks.perform(commands.count("one", 2, [(BILL, 1)])) is True
    assert read_counts(locks) == {BILL: 3}
    root = locks.commands.roots[0]
    assert backend.keys() == {"metrics", "metrics:one"}
    for key in ("metrics", "metrics:one"):
        assert backend.raw.pttl(root + key) > 0


def test_counts_are_bounded(
    locks: Locks, commands: MetricsCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million generated task names must not fill the server."""
    monkeypatch.setattr(metrics_commands, "_MAX_FIELDS", 10)
    made_up = [(MetricField("acquired", f"task-{n}"), 1) for n in range(50)]
    locks.perform(commands.count("one", 1, made_up))
    locks.perform(commands.count("one", 2, made_up))
    counts = read_counts(locks)
    assert len(counts) == 11
    assert counts[MetricField("acquired", "(other)")] == 80
    assert sum(counts.values()) == 100


def test_counts_come_in_pages(locks: Locks, commands: MetricsCommands) -> None:
    for batch in range(5):
        fields = [(MetricField("acquired", f"task-{batch}-{n}"), n) for n in range(500)]
        locks.perform(commands.count("one", batch + 1, fields))
    counts = read_counts(locks)
    assert len(counts) == 2500
    assert counts[MetricField("acquired", "task-4-499")] == 499


def _last_renewed(backend: Backend, name: str, token: str, ago: float) -> None:
    """Pretend that the holder acquired it then and never renewed it, with a ttl of 30 s."""
    then = (time.time() - ago) * 1000
    records = backend.key("records", name)
    fence, _, rest = backend.raw.hget(records, token).split(b" ", 2)
    backend.raw.hset(records, token, b"%b %d %b" % (fence, then, rest))
    backend.raw.zadd(backend.key("h:", name), {token: then + 30_000})


def test_tally_counts_who_is_there(locks: Locks, backend: Backend) -> None:
    """Every kind of holder and waiter is counted, and none that is gone."""
    assert read_tallies(locks) == {"": Tally()}
    kept = locks.acquire("kept", at_least=60)
    assert kept
    kept.release()
    for n in range(300):
        locks.perform(locks.commands.acquire(LockSpec(f"n{n}", 30), f"t{n}", Holder()))
    message = Holder(task_id="j", task="mail", retries=-1)
    locks.perform(locks.commands.acquire(LockSpec("reserved", 60), reservation_token("j"), message))
    asking = locks.commands.acquire(LockSpec("n0", 30), "waiter", Holder(task="mail"), alive=60)
    locks.perform(asking)
    _last_renewed(backend, "n1", "t1", ago=25)
    backend.lapse("n2", "t2")
    tallies = read_tallies(locks)
    assert tallies.keys() == {"", "mail"}
    assert tallies[""][:2] == (299, 1)
    assert 25 <= tallies[""].oldest < 85
    assert tallies[""][3:] == Tally()[3:]
    assert tallies["mail"] == Tally(queued=1, waiting=1)


def test_tally_is_bounded_and_takes_any_name(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may have any name, and each name is a Prometheus series."""
    monkeypatch.setattr("celery_locks.admin.metric_sums._MOST_TASKS", 3)
    names = ['"quoted" \\', "tab\tand é", *(f"task-{n}" for n in range(10))]
    for number, name in enumerate(names):
        holder = Holder(task=name, extra={"task": "another"})
        locks.perform(locks.commands.acquire(LockSpec(f"n{number}", 30), f"t{number}", holder))
    tallies = read_tallies(locks)
    assert len(tallies) == 4
    assert tallies["(other)"].held == len(names) - 2
    monkeypatch.setattr("celery_locks.admin.metric_sums._MOST_TASKS", 100)
    assert read_tallies(locks).keys() == {"", '"quoted" \\', "tab and é", *names[2:]}


def test_tally_counts_a_long_line(locks: Locks) -> None:
    """Only the first hundred are checked; all of them are counted."""
    for number in range(131):
        holder = Holder(task="bill")
        locks.perform(locks.commands.acquire(LockSpec("a", 30), f"t{number}", holder, alive=60))
    tally = read_tallies(locks)["bill"]
    assert (tally.held, tally.waiting) == (1, 130)
