"""A call with a lock from publish time: every reply of the store, and every end of the sending."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_locks import events, is_skipped
from celery_locks.errors import AlreadyQueued, LockUnavailable
from celery_locks.integration.app_locks import AppLocks
from celery_locks.integration.headers import HEADER, LockHeader
from celery_locks.integration.publishing import publish
from celery_locks.integration.reservation import REPLACES
from celery_locks.options import LockOptions
from celery_locks.policy import AWAITED, SENT_TO
from celery_locks.store.commands.locks import reservation_token, superseded_mark
from celery_locks.store.commands.replies import ReplacedReservation
from celery_locks.types import Conflict, Holder
from celery_locks.validation import QUEUED
from tests.support.scripted_store import ScriptedStore, reply_lost
from tests.support.still_renewer import StillRenewer
from tests.support.virtual_clock import VirtualClock

NAME = "bill:7"
OTHER = Holder(
    token=reservation_token("other"),
    task_id="other",
    task="bill",
    retries=-1,
    acquired_at=1000.0,
    expires_at=1100.0,
)
FROZEN = {"task_id": "j", "reply_to": "the caller"}  # as Signature.freeze leaves them
QUEUED_OTHER = Conflict(NAME, (OTHER,), 90.0, 1, as_of=1002.0)


class TimeLimit(Exception):
    """What a signal handler raises, anywhere."""


class Publisher:
    """Publishes one task over the scripted store; keeps what was sent."""

    def __init__(self, app: Celery, store: ScriptedStore) -> None:
        self.store = store
        self.sent: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.revoked: list[str] = []
        app.backend.mark_as_revoked = lambda task_id, *_, **__: self.revoked.append(task_id)  # type: ignore[method-assign]

        @app.task(name="bill", shared=False)
        def bill(n: int) -> None: ...

        self.task: Any = app.tasks["bill"]

    def publish(self, *script: Any, lock: dict[str, Any] | None = None, **options: Any) -> Any:
        self.store.expect(*script)
        words = LockOptions(**{"key": "bill:{n}", "scope": "queued+running", **(lock or {})})
        return publish(self.task, words, (7,), {}, {"task_id": None, **options}, self._send)

    def _send(self, options: dict[str, Any]) -> Any:
        self.sent.append(options)
        if self.error:
            raise self.error
        return SimpleNamespace(id=options["task_id"])

    @property
    def token(self) -> str:
        """The token of the reservation that was asked for last."""
        return self.store.acquires[-1].token

    @property
    def record(self) -> str:
        """What the store was told of the reservation."""
        return self.store.acquires[-1].record


@pytest.fixture
def publisher(scripted_app: Celery, scripted_store: ScriptedStore) -> Publisher:
    return Publisher(scripted_app, scripted_store)


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(events, "_subscribers", (lambda event: seen.append(event.kind),))
    return seen


def test_granted_reservation_travels_with_the_message(
    publisher: Publisher, still_renewer: StillRenewer
) -> None:
    result = publisher.publish(("acquire", 5), headers={"x": 1})
    [options] = publisher.sent
    assert publisher.token == reservation_token(options["task_id"])
    assert LockHeader.read(options["headers"]).queued == NAME
    assert options["headers"]["x"] == 1
    assert result.deduplicated is False
    assert still_renewer.tokens == frozenset(), "nobody renews it while it is queued"
    assert not still_renewer.pending


def test_scope_queued_reserves_a_lock_beside_that_of_the_run(publisher: Publisher) -> None:
    publisher.publish(("acquire", 5), lock={"scope": "queued"})
    assert publisher.store.acquires[0].name == NAME + QUEUED


def test_send_that_fails_releases_the_reservation_at_once(publisher: Publisher) -> None:
    """The caller may try again in a moment, and must not find itself queued."""
    publisher.error = OSError("no broker")
    with pytest.raises(OSError, match="no broker"):
        publisher.publish(("acquire", 5), ("release", True))
    assert publisher.store.releases[0][:2] == (NAME, publisher.token)


@pytest.mark.parametrize("error", [TimeLimit(), KeyboardInterrupt()], ids=repr)
def test_interrupted_send_whose_release_fails_is_released_later(
    publisher: Publisher,
    still_renewer: StillRenewer,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller gets its own error, not that of the release."""
    publisher.error = error
    with pytest.raises(type(error)):
        publisher.publish(("acquire", 5), ("release", reply_lost()))
    assert set(still_renewer.pending) == {publisher.token}
    assert len(publisher.sent) == 1, "the error of the release is no reason to send again"
    publisher.store.expect(("release", True))
    still_renewer.run_due()
    assert not still_renewer.pending
    assert NAME in caplog.text


def test_duplicate_is_not_sent_and_returns_the_result_of_the_other(publisher: Publisher) -> None:
    result = publisher.publish(("acquire", QUEUED_OTHER))
    assert (result.id, result.deduplicated) == ("other", True)
    assert publisher.sent == []


def test_duplicate_that_raises_acquired_nothing_and_releases_nothing(
    publisher: Publisher, still_renewer: StillRenewer
) -> None:
    with pytest.raises(AlreadyQueued) as caught:
        publisher.publish(("acquire", QUEUED_OTHER), lock={"on_publish": "raise"})
    assert caught.value.task_id == "other"
    assert publisher.sent == []
    assert not still_renewer.pending


def test_duplicate_that_is_allowed_is_sent_without_a_reservation(publisher: Publisher) -> None:
    result = publisher.publish(("acquire", QUEUED_OTHER), lock={"on_publish": "allow"})
    assert result.deduplicated is False
    assert HEADER not in (publisher.sent[0].get("headers") or {})


def test_replacement_takes_the_reservation_sends_and_then_marks_the_other(
    publisher: Publisher,
) -> None:
    """In this order: a publisher that dies in between leaves one message that runs."""

    def mark(call: Any) -> bool:
        assert publisher.sent, "marked before the new message is there"
        return False

    publisher.publish(
        ("acquire", QUEUED_OTHER),
        ("acquire", ReplacedReservation(6)),
        ("release", mark),
        lock={"on_publish": "replace"},
    )
    assert OTHER.token in publisher.store.acquires[1].extras
    assert f'"{REPLACES}":["other",100.0]' in publisher.record.replace(", ", ",").replace(": ", ":")
    [supersede] = publisher.store.releases
    assert supersede[:2] == (NAME, "")
    assert supersede.marks[0][:2] == superseded_mark("other", 100.0)[:2]
    assert LockHeader.read(publisher.sent[0]["headers"]).replaced
    assert publisher.revoked == ["other"]


def test_message_that_began_before_it_was_replaced_is_not_marked(publisher: Publisher) -> None:
    """The lock came free between the two calls: the other runs or has run."""
    publisher.publish(("acquire", QUEUED_OTHER), ("acquire", 6), lock={"on_publish": "replace"})
    assert not LockHeader.read(publisher.sent[0]["headers"]).replaced
    assert publisher.revoked == []


def test_replacement_that_another_publisher_won_starts_over(publisher: Publisher) -> None:
    third = OTHER._replace(token=reservation_token("third"), task_id="third")
    publisher.publish(
        ("acquire", QUEUED_OTHER),
        ("acquire", Conflict(NAME, (third,), 90.0, 1)),
        ("acquire", ReplacedReservation(8)),
        ("release", False),
        lock={"on_publish": "replace"},
    )
    assert third.token in publisher.store.acquires[2].extras
    assert publisher.revoked == ["third"]


@pytest.mark.parametrize("error", [reply_lost(), ValueError("a bug of ours")], ids=repr)
def test_mark_that_fails_does_not_fail_the_call(
    publisher: Publisher, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is sent; its run marks the other."""
    result = publisher.publish(
        ("acquire", QUEUED_OTHER),
        ("acquire", ReplacedReservation(6)),
        ("release", error),
        lock={"on_publish": "replace"},
    )
    assert result.deduplicated is False
    assert "task other is replaced, but could not be marked so" in caplog.text


def test_replacement_whose_send_fails_leaves_the_other_unmarked(publisher: Publisher) -> None:
    publisher.error = OSError("no broker")
    with pytest.raises(OSError, match="no broker"):
        publisher.publish(
            ("acquire", QUEUED_OTHER),
            ("acquire", ReplacedReservation(6)),
            ("release", True),
            lock={"on_publish": "replace"},
        )
    assert publisher.store.releases[0][:2] == (NAME, publisher.token)
    assert publisher.revoked == []


def test_debounce_window_counts_from_the_first_call(publisher: Publisher) -> None:
    """A call every second would else put the work off for ever."""
    publisher.publish(
        ("acquire", QUEUED_OTHER),
        ("acquire", ReplacedReservation(6)),
        ("release", False),
        lock={"debounce": 5.0},
    )
    assert publisher.sent[0]["countdown"] == pytest.approx(3.0)


def test_message_is_sent_without_a_reservation_if_the_server_is_away(
    publisher: Publisher, still_renewer: StillRenewer, emitted: list[str]
) -> None:
    """The run decides; what the call may have reserved is released."""
    publisher.publish(("acquire", reply_lost()))
    assert HEADER not in (publisher.sent[0].get("headers") or {})
    assert set(still_renewer.pending) == {publisher.token}
    assert emitted == ["unavailable", "unlocked"]


def test_call_fails_if_the_server_is_away_and_the_task_may_not_run_without_it(
    publisher: Publisher, still_renewer: StillRenewer
) -> None:
    with pytest.raises(LockUnavailable):
        publisher.publish(("acquire", reply_lost()), lock={"on_unavailable": "fail"})
    assert publisher.sent == []
    assert set(still_renewer.pending) == {publisher.token}


@pytest.mark.parametrize("answer", [LockUnavailable("away"), QUEUED_OTHER], ids=repr)
@pytest.mark.parametrize("frozen", [FROZEN, {"chain": ["next"]}, {"link": ["next"]}])
def test_call_that_others_wait_for_is_sent_whatever_the_store_answers(
    publisher: Publisher, answer: Any, frozen: dict[str, Any]
) -> None:
    """In a canvas the error belongs into the result, where those who wait see it."""
    options = {"on_unavailable": "fail", "on_publish": "raise"}
    publisher.publish(("acquire", answer), lock=options, **frozen)
    assert len(publisher.sent) == 1
    assert HEADER not in (publisher.sent[0].get("headers") or {})


def test_reservation_says_that_others_wait_for_it(publisher: Publisher) -> None:
    """Such a message is not replaced."""
    publisher.publish(("acquire", 5), **FROZEN)
    assert f'"{AWAITED}"' in publisher.record


def test_chosen_task_id_leaves_the_decision_to_the_publish(publisher: Publisher) -> None:
    """Applications pass an id of their own to find the task again; nothing waits for it."""
    result = publisher.publish(("acquire", QUEUED_OTHER), task_id="mine")
    assert (result.id, result.deduplicated) == ("other", True)
    with pytest.raises(AlreadyQueued):
        publisher.publish(("acquire", QUEUED_OTHER), task_id="mine", lock={"on_publish": "raise"})
    with pytest.raises(LockUnavailable):
        away = LockUnavailable("away")
        publisher.publish(("acquire", away), task_id="mine", lock={"on_unavailable": "fail"})
    assert publisher.sent == []


def test_chosen_task_id_is_that_of_the_message_and_can_be_replaced(publisher: Publisher) -> None:
    result = publisher.publish(("acquire", 5), task_id="mine")
    assert (result.id, result.deduplicated) == ("mine", False)
    assert f'"{AWAITED}"' not in publisher.record


def test_two_calls_with_one_task_id_have_different_records(publisher: Publisher) -> None:
    """The store tells a second call from a repeated one by it; a usual call has no such field."""
    records = []
    for _ in range(2):
        publisher.publish(("acquire", 5), task_id="mine")
        records.append(publisher.record)
    assert records[0] != records[1]
    publisher.publish(("acquire", 5))
    assert "extra" not in publisher.record


@pytest.mark.parametrize(
    ("options", "queue"),
    [({"queue": "slow"}, '"slow"'), ({"exchange": "x"}, "null"), ({"routing_key": "r"}, "null")],
)
def test_reservation_says_where_its_message_is(
    publisher: Publisher, options: dict[str, Any], queue: str
) -> None:
    """A sweep looks for it there."""
    publisher.publish(("acquire", 5), **options)
    assert f'"{SENT_TO}":{queue}' in publisher.record.replace(": ", ":")


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 100.0),
        ({"countdown": 20}, 120.0),
        ({"expires": 30}, 30.0),
        ({"countdown": 20, "expires": 600}, 120.0),
        ({"expires": 0.01}, 1.0),
    ],
)
def test_reservation_lives_until_its_message_is_overdue_or_expired(
    publisher: Publisher, options: dict[str, Any], seconds: float
) -> None:
    publisher.publish(("acquire", 5), lock={"pending_ttl": 100.0}, **options)
    assert publisher.store.acquires[0].ttl == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize("of_task", [False, True])
def test_message_expires_at_a_moment_that_its_reservation_does_not_end_before(
    publisher: Publisher, of_task: bool
) -> None:
    """Seconds would be counted from when the message is made, after the reservation."""
    publisher.task.expires = 30 if of_task else None
    before = datetime.now(UTC)
    publisher.publish(("acquire", 5), **({} if of_task else {"expires": 30}))
    after = datetime.now(UTC)
    [sent] = publisher.sent
    assert before <= sent["expires"] - timedelta(seconds=30) <= after


@pytest.mark.parametrize("expires", [-5, 10**12, "2030-01-01T00:00:00+00:00"])
def test_other_values_of_expires_are_left_to_celery(publisher: Publisher, expires: Any) -> None:
    publisher.publish(("acquire", 5), expires=expires)
    assert publisher.sent[0]["expires"] == expires


@pytest.mark.parametrize(
    ("lock", "options"),
    [
        ({"enabled": False}, {}),
        ({}, {"retries": 1}),
        ({}, {"headers": LockHeader(since=1000.0).write({})}),
    ],
    ids=["disabled", "a retry", "a requeued message"],
)
def test_message_that_has_its_reservation_or_needs_none_is_sent_as_it_is(
    publisher: Publisher, lock: dict[str, Any], options: dict[str, Any]
) -> None:
    assert publisher.publish(lock=lock, **options).deduplicated is False
    assert len(publisher.sent) == 1


def test_eager_call_has_no_message_and_no_reservation(
    publisher: Publisher, scripted_app: Celery
) -> None:
    scripted_app.conf.task_always_eager = True
    publisher.publish()
    assert len(publisher.sent) == 1


def strike_in(target: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise a time limit after this function has done its work, before its caller gets it."""
    original: Callable[..., Any] = getattr(target, name)

    def struck(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        raise TimeLimit

    monkeypatch.setattr(target, name, struck)


def test_time_limit_between_the_grant_and_the_send_releases_the_reservation(
    publisher: Publisher,
    scripted_locks: AppLocks,
    still_renewer: StillRenewer,
    virtual_clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease is nobody's: it was never assigned. It may be released as long as it would live."""
    strike_in(scripted_locks, "run", monkeypatch)
    with pytest.raises(TimeLimit):
        publisher.publish(("acquire", 5), lock={"pending_ttl": 100.0})
    assert publisher.sent == []
    pending = still_renewer.pending[publisher.token]
    assert pending.give_up_at == pytest.approx(virtual_clock() + 100.0)


def test_time_limit_after_the_send_keeps_the_reservation(
    publisher: Publisher, still_renewer: StillRenewer
) -> None:
    """The message is in the queue: its reservation is its own."""
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(
            ("acquire", QUEUED_OTHER),
            ("acquire", ReplacedReservation(6)),
            ("release", KeyboardInterrupt()),
            lock={"on_publish": "replace"},
        )
    assert len(publisher.sent) == 1
    assert not still_renewer.pending


def test_call_whose_key_function_returns_none_is_published_as_without_a_lock(
    publisher: Publisher,
) -> None:
    """No reservation, no window: the call has nothing to share with another."""
    result = publisher.publish(lock={"key": lambda n: None, "debounce": 5.0, "scope": "queued"})
    [options] = publisher.sent
    assert not publisher.store.acquires
    assert not options.get("countdown")
    assert not options.get("headers")
    assert result.deduplicated is False


# max_queued.

FULL = Conflict(NAME + QUEUED, (OTHER, OTHER._replace(token="qx", task_id="x")), 90.0, 1, 1002.0)
SEVERAL = {"scope": "queued", "limit": 2, "max_queued": 5}


def test_reservation_has_the_limit_of_the_queue(publisher: Publisher) -> None:
    """That of the run is another lock, with another limit."""
    publisher.publish(("acquire", 5), lock=SEVERAL)
    assert publisher.record.split()[1] == "5"


def test_call_that_is_skipped_has_a_result_that_says_so(publisher: Publisher) -> None:
    """Ready at once: nobody waits for a message that was never sent."""
    result = publisher.publish(("acquire", FULL), lock={**SEVERAL, "on_publish": "skip"})
    assert is_skipped(result.get())
    assert result.get()["lock"] == NAME
    assert result.get()["holder"]["task_id"] == "other"
    assert (result.state, result.deduplicated) == ("SUCCESS", True)
    assert result.id not in ("other", "x")
    assert publisher.sent == []


def test_publisher_waits_for_room_and_then_sends(publisher: Publisher) -> None:
    """In the line of the lock, behind messages too; a run would not wait for those."""
    result = publisher.publish(
        ("subscribe", None),
        ("acquire", FULL),
        ("subscribe", "channel"),
        ("acquire", FULL),
        ("wait", 9),
        ("acquire", 9),
        lock={**SEVERAL, "on_publish": "wait", "wait": 5.0},
    )
    assert result.deduplicated is False
    assert LockHeader.read(publisher.sent[0]["headers"]).queued == NAME + QUEUED


def test_publisher_whose_patience_ends_raises(
    publisher: Publisher, virtual_clock: VirtualClock
) -> None:
    """And leaves the line of the waiters."""
    with pytest.raises(AlreadyQueued):
        publisher.publish(
            ("subscribe", None),
            ("acquire", FULL),
            ("subscribe", "channel"),
            ("acquire", FULL),
            ("wait", lambda _: virtual_clock.advance(6.0) or 0),
            ("subscribe", "channel"),
            ("acquire", FULL),
            ("release", True),
            lock={**SEVERAL, "on_publish": "wait", "wait": 5.0},
        )
    assert publisher.sent == []


def test_publisher_without_patience_asks_once(publisher: Publisher) -> None:
    with pytest.raises(AlreadyQueued):
        publisher.publish(("acquire", FULL), lock={**SEVERAL, "on_publish": "wait", "wait": 0})


def test_canvas_does_not_wait_for_room(publisher: Publisher) -> None:
    publisher.publish(("acquire", FULL), lock={**SEVERAL, "on_publish": "wait"}, **FROZEN)
    assert len(publisher.sent) == 1


def test_interrupted_wait_for_room_leaves_no_waiter(
    publisher: Publisher, still_renewer: StillRenewer
) -> None:
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(
            ("subscribe", None),
            ("acquire", FULL),
            ("subscribe", "channel"),
            ("acquire", FULL),
            ("wait", KeyboardInterrupt()),
            lock={**SEVERAL, "on_publish": "wait"},
        )
    assert publisher.sent == []
    assert set(still_renewer.pending) == {publisher.token}
