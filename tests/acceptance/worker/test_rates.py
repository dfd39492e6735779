"""Rates with real workers: never more starts than the rate, most of them used, in order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Self

import pytest
from celery import chain, chord

from celery_locks import RateLimited, admin
from celery_locks.rates import JITTER
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until

SECONDS, RATE, SLOTS = 20, 20, 8
# The server spaces starts; a busy machine may let one begin later, and so closer to the next.
SHORT_OF_A_SECOND = 0.75


def most_in_a_window(moments: list[float], window: float) -> int:
    most = first = 0
    for last, moment in enumerate(moments):
        while moment - moments[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


class DecidedStarts(threading.Thread):
    """Collects the starts that the server decided, to the µs: it keeps each for ten seconds."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self._rig = rig
        self.starts: dict[bytes, int] = {}
        self._over = threading.Event()

    def run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(1.0)
            keys = list(self._rig.redis.scan_iter(match="*}:p:*", count=1000))
            values = self._rig.redis.mget(keys) if keys else []
            pairs = zip(keys, values, strict=True)
            self.starts.update({key: int(value) for key, value in pairs if value})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def test_fleet_keeps_to_the_rate_and_uses_it() -> None:
    """Two workers with four slots each: no second has more starts, few are unused, in order.

    The server decides the starts, and the bodies see them: what a busy machine adds between the two
    is forgiven, if it is no more than the stalls explain. The order is that of the requests at the
    server; messages that come due while another one is late may overtake it.
    """
    count = SECONDS * RATE
    with (
        fresh_rig(task_ignore_result=True) as rig,
        rig.worker("-n", "one@%h", concurrency=SLOTS // 2),
        rig.worker("-n", "two@%h", concurrency=SLOTS // 2),
        DecidedStarts(rig) as decided,
        measure_stalls() as stalled,
    ):
        for number in range(count):
            rig.task("paced").delay(number)
        wait_until(lambda: len(rig.starts()) >= count, 3 * SECONDS + 30, what="all starts")
        starts = sorted(rig.starts(), key=lambda entry: entry["began"])
        limited = rig.all_events("limited")
    began = [entry["began"] for entry in starts]
    assert len({entry["id"] for entry in starts}) == count
    spaces = [b - a for a, b in pairwise(sorted(decided.starts.values()))]
    assert len(spaces) == count - 1
    assert min(spaces) >= (1 + JITTER) / RATE * 1e6
    assert (count - 1) / (began[-1] - began[0] - stalled()) >= 0.95 * RATE
    assert len(limited) <= count * 1.05, "a task is delayed once"
    promised = {event["task_id"]: event["starts_at"] for event in reversed(limited)}
    late = max(entry["began"] - promised.get(entry["id"], entry["began"]) for entry in starts)
    assert late <= 0.5 + stalled()
    assert most_in_a_window(began, max(0.01, 1.0 - late)) <= RATE
    order = sorted((entry["id"] for entry in starts), key=lambda it: promised.get(it, 0.0))
    places = {task_id: place for place, task_id in enumerate(order)}
    moved = [abs(places[entry["id"]] - place) for place, entry in enumerate(starts)]
    assert max(moved) <= 2 * SLOTS + RATE * late


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(broker_transport_options={"visibility_timeout": 8}) as rig, rig.worker():
        yield rig


_numbers = itertools.count()


@pytest.fixture
def tenant() -> str:
    return f"tenant-{next(_numbers)}"


def call(rig: Rig, tenant: str, rate: str, **options: Any) -> Any:
    rates = [{"rate": rate, "key": "calls:{tenant}", **options}]
    return rig.task("calls").s(tenant).set(lock={"rates": rates})


def test_task_with_lock_and_rates_starts_as_both_allow(rig: Rig, tenant: str) -> None:
    """Six calls, two at once, 5/s: all of them run, at least 0.2 s apart; a retry starts too."""
    results = [rig.task("calls").delay(tenant, retry=number == 0) for number in range(6)]
    assert [result.get(PATIENCE) for result in results] == [tenant] * 6
    began = [entry["began"] for entry in rig.starts() if entry["tenant"] == tenant]
    assert len(began) == 7
    assert most_in_a_window(sorted(began), SHORT_OF_A_SECOND) <= 5


def test_delayed_links_and_chords_have_their_results(rig: Rig, tenant: str) -> None:
    paced = call(rig, tenant, "3/s")
    result = chain(paced, rig.task("echo").s()).apply_async()
    header = [call(rig, tenant, "3/s") for _ in range(3)]
    gathered = chord(header, app=rig.app)(rig.task("gather").s())
    assert result.get(PATIENCE) == tenant
    assert gathered.get(PATIENCE) == [tenant] * 3
    assert rig.all_events("limited")


def test_delay_beyond_the_visibility_timeout_runs_once(rig: Rig, tenant: str) -> None:
    """The broker would deliver the message again: it comes back before, and keeps its promise."""
    first, second = (call(rig, tenant, "5/m").delay() for _ in range(2))
    first.get(PATIENCE)
    second.get(PATIENCE)
    began = [rig.starts(it.id)[0]["began"] for it in (first, second)]
    assert [len(rig.starts(it.id)) for it in (first, second)] == [1, 1]
    assert abs(began[1] - began[0]) >= 11.9


def test_limited_task_is_skipped_or_fails_if_told_so(rig: Rig, tenant: str) -> None:
    assert call(rig, tenant, "1/h").delay().get(PATIENCE) == tenant
    skipped = call(rig, tenant, "1/h", on_limit="skip").delay().get(PATIENCE)
    assert (skipped["skipped"], skipped["reason"]) == (True, "rate_limited")
    assert 3000 < skipped["retry_after"] <= 3601
    with pytest.raises(RateLimited) as raised:
        call(rig, tenant, "1/h", on_limit="raise").delay().get(PATIENCE)
    assert raised.value.name == f"calls:{tenant}"


def test_why_says_when_a_delayed_task_starts(rig: Rig, tenant: str) -> None:
    call(rig, tenant, "1/h").delay().get(PATIENCE)
    delayed = []
    for _ in range(3):
        delayed.append(call(rig, tenant, "1/h").delay())
        wait_until(
            lambda: delayed[-1].id in {it["task_id"] for it in rig.all_events("limited")}, PATIENCE
        )
    answer = admin.why(rig.locks, delayed[-1].id, rig.app)
    assert answer.is_known
    [sentence] = answer.sentences  # nothing about its message, which a worker keeps until then
    assert "2 ahead of it" in sentence
    assert f"'calls:{tenant}'" in sentence
    info = next(it for it in admin.list_rates(rig.locks) if it.name == f"calls:{tenant}")
    assert [caller.task_id for caller in info.callers] == [it.id for it in delayed]


def test_paused_rate_loses_no_task_and_says_who_paused_it(rig: Rig, tenant: str) -> None:
    """Delayed tasks come back again and again, none starts, and on resume each runs once."""
    name = f"calls:{tenant}"
    admin.pause_rate(rig.locks, name, reason="wrong data", by="ann")
    delayed = [call(rig, tenant, "20/s").delay() for _ in range(3)]
    skipped = call(rig, tenant, "20/s", on_limit="skip").delay().get(PATIENCE)
    assert (skipped["skipped"], skipped["reason"]) == (True, "rate_limited")
    assert (skipped["pause"]["by"], skipped["pause"]["why"]) == ("ann", "wrong data")
    with pytest.raises(RateLimited, match="is paused by ann: wrong data"):
        call(rig, tenant, "20/s", on_limit="raise").delay().get(PATIENCE)

    def times_limited(task_id: str) -> int:
        return [event["task_id"] for event in rig.all_events("limited")].count(task_id)

    wait_until(lambda: all(times_limited(it.id) >= 2 for it in delayed), PATIENCE)
    assert all(rig.starts(it.id) == [] for it in delayed)
    [sentence] = admin.why(rig.locks, delayed[0].id, rig.app).sentences
    assert sentence.endswith("(20/s), which is paused by ann: wrong data.")
    admin.resume_rate(rig.locks, name, by="ann")
    assert [it.get(PATIENCE) for it in delayed] == [tenant] * 3
    assert [len(rig.starts(it.id)) for it in delayed] == [1] * 3
    assert max(times_limited(it.id) for it in delayed) < 20, "they do not come all the time"


def test_operators_rate_slows_tasks_down(rig: Rig, tenant: str) -> None:
    admin.set_rate(rig.locks, f"calls:{tenant}", "2/s", reason="slower")
    results = [call(rig, tenant, "100/s").delay() for _ in range(4)]
    assert [result.get(PATIENCE) for result in results] == [tenant] * 4
    began = sorted(entry["began"] for entry in rig.starts() if entry["tenant"] == tenant)
    assert most_in_a_window(began, SHORT_OF_A_SECOND) <= 2
