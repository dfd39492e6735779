"""A call that is merged with the queued one: every reply of the store, and every end between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_locks import events
from celery_locks.errors import LockUnavailable, LockUsageError
from celery_locks.integration.headers import HEADER, LockHeader
from celery_locks.integration.idempotency import codec_for
from celery_locks.integration.merged_publication import ARGUMENT_BYTES
from celery_locks.integration.publishing import publish
from celery_locks.options import LockOptions
from celery_locks.policy import AWAITED
from celery_locks.store.commands.locks import reservation_token
from celery_locks.store.commands.replies import PreparedMessage, ReplacedReservation
from celery_locks.types import Conflict, Holder, LockInfo
from celery_locks.validation import QUEUED
from tests.support.scripted_store import ScriptedStore, reply_lost

NAME = "bill:7" + QUEUED
OTHER = Holder(
    token=reservation_token("other"),
    task_id="other",
    task="bill",
    retries=-1,
    acquired_at=1000.0,
    expires_at=1100.0,
)
NOBODY = PreparedMessage(None, "")
DUE = Conflict(NAME, (OTHER,), 90.0, 1, as_of=1020.0)


def stored(*args: Any, **kwargs: Any) -> str:
    return codec_for("json").encode([list(args), kwargs])


def queued(*items: Any, age: float = 2.0, **holder: Any) -> PreparedMessage:
    conflict = Conflict(NAME, (OTHER._replace(**holder),), 90.0, 1, as_of=1000.0 + age)
    return PreparedMessage(conflict, stored(7, list(items)))


def join(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    return {**later, "items": earlier["items"] + later["items"]}


class Publisher:
    """Publishes one task over the scripted store; keeps what was sent."""

    def __init__(self, app: Celery, store: ScriptedStore) -> None:
        self.store = store
        self.sent: list[tuple[dict[str, Any], Any]] = []
        self.error: BaseException | None = None
        self.revoked: list[str] = []
        app.backend.mark_as_revoked = lambda task_id, *_, **__: self.revoked.append(task_id)  # type: ignore[method-assign]

        @app.task(name="bill", shared=False)
        def bill(n: int, items: list[Any], note: str = "") -> None: ...

        self.task: Any = app.tasks["bill"]

    def publish(self, *script: Any, items: Any = ("b",), **more: Any) -> Any:
        self.store.expect(*script)
        lock = {"settle": 5.0, "max_wait": 8.0, "arguments": join, **more.pop("lock", {})}
        options = LockOptions(**{"key": "bill:{n}", "scope": "queued", **lock})
        return publish(self.task, options, (7, items), {}, more, self._send)

    def _send(self, options: dict[str, Any], call: Any = None) -> Any:
        self.sent.append((dict(options), call))
        if self.error:
            raise self.error
        return SimpleNamespace(id=options["task_id"])

    @property
    def items(self) -> list[Any]:
        return [call and call[0][1] for _, call in self.sent]

    @property
    def ids(self) -> list[str]:
        return [options["task_id"] for options, _ in self.sent]


@pytest.fixture
def publisher(scripted_app: Celery, scripted_store: ScriptedStore) -> Publisher:
    return Publisher(scripted_app, scripted_store)


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []

    def listener(event: Any) -> None:
        if event.kind != "renewed":  # a lease of an earlier test, at the end of a long run
            seen.append((event.kind, event.detail.get("decision")))

    monkeypatch.setattr(events, "_subscribers", (listener,))
    return seen


def test_first_call_is_sent_before_it_has_the_reservation(publisher: Publisher) -> None:
    result = publisher.publish(("prepare_message", NOBODY), ("commit_message", 5))
    [(options, _)] = publisher.sent
    assert publisher.items == [["b"]]
    assert (result.id, result.deduplicated) == (options["task_id"], False)
    assert LockHeader.read(options["headers"]).queued == NAME
    assert options["countdown"] == 5.0
    prepare, commit = publisher.store.performed
    assert prepare.keys[2] == commit.keys[2] == f"{prepare.root}e:j{options['task_id']}"
    assert commit.args[0] == reservation_token(options["task_id"])
    assert commit.args[2:4] == ("", stored(7, ["b"]))


def test_second_call_sends_both_and_ends_the_other(
    publisher: Publisher, emitted: list[Any]
) -> None:
    publisher.publish(("prepare_message", queued("a")), ("commit_message", 6))
    assert publisher.items == [["a", "b"]]
    assert publisher.store.performed[1].args[2] == OTHER.token
    assert publisher.revoked == ["other"]
    assert emitted == [("duplicate", "replace")]


@pytest.mark.parametrize(("age", "countdown"), [(0.0, 5.0), (2.0, 5.0), (4.0, 4.0), (7.5, 0.5)])
def test_due_time_moves_but_not_beyond_max_wait(
    publisher: Publisher, age: float, countdown: float
) -> None:
    publisher.publish(("prepare_message", queued("a", age=age)), ("commit_message", 6))
    assert publisher.sent[0][0]["countdown"] == pytest.approx(countdown)


def test_lost_race_is_run_again_with_another_id(publisher: Publisher) -> None:
    """What was sent is marked by the commit that failed: it never runs."""
    publisher.publish(
        ("prepare_message", queued("a")),
        ("commit_message", 0),
        ("prepare_message", queued("a", "c", task_id="third", token="qthird")),
        ("commit_message", 7),
    )
    assert publisher.items == [["a", "b"], ["a", "c", "b"]]
    assert len(set(publisher.ids)) == 2
    assert publisher.revoked == ["third"]


def test_message_that_began_meanwhile_keeps_its_arguments(publisher: Publisher) -> None:
    publisher.publish(
        ("prepare_message", queued("a")),
        ("commit_message", 0),
        ("prepare_message", NOBODY),
        ("commit_message", 7),
    )
    assert publisher.items == [["a", "b"], ["b"]]
    assert publisher.sent[1][0]["countdown"] == 5.0
    assert publisher.revoked == []


def test_due_message_is_left_and_a_new_window_begins(publisher: Publisher) -> None:
    publisher.publish(
        ("prepare_message", queued("a", age=20)),
        ("describe", None),
        ("leave_message", True),
        ("prepare_message", NOBODY),
        ("commit_message", 7),
    )
    leave = publisher.store.performed[2]
    assert (leave.keys[0], leave.args[0]) == (f"{leave.root}h:{NAME}", OTHER.token)
    assert publisher.items == [["b"]]
    assert publisher.sent[0][0]["countdown"] == 5.0


def test_due_message_behind_a_run_is_merged(publisher: Publisher) -> None:
    """It has to wait anyway; a window after the other would leave a message each."""
    info = LockInfo("bill:7", 1, (Holder(token="run"),))
    publisher.publish(
        ("prepare_message", queued("a", age=20)), ("describe", info), ("commit_message", 7)
    )
    assert publisher.items == [["a", "b"]]
    assert publisher.sent[0][0]["countdown"] == 0.0


@pytest.mark.parametrize("behind", [True, False])
def test_due_message_is_left_with_the_last_arguments_too(
    publisher: Publisher, behind: bool
) -> None:
    info = LockInfo("bill:7", 1, (Holder(token="run"),)) if behind else None
    after: tuple[Any, ...] = (("leave_message", True), ("acquire", 6))
    if behind:
        after = (("acquire", ReplacedReservation(6)), ("release", True))
    publisher.publish(("acquire", DUE), ("describe", info), *after, lock={"arguments": "last"})
    assert publisher.sent[0][0]["countdown"] == (0.0 if behind else 5.0)
    assert publisher.revoked == (["other"] if behind else [])


def test_first_returns_the_queued_call(publisher: Publisher, emitted: list[Any]) -> None:
    lock = {"arguments": "first", "settle": 0.0, "max_wait": 0.0, "debounce": 5.0}
    result = publisher.publish(("prepare_message", queued("a")), lock=lock)
    assert (result.id, result.deduplicated) == ("other", True)
    assert publisher.sent == []
    assert emitted == [("duplicate", "return_existing")]


def test_first_with_settle_sends_the_first_arguments_again(publisher: Publisher) -> None:
    publisher.publish(
        ("prepare_message", queued("a")), ("commit_message", 6), lock={"arguments": "first"}
    )
    assert publisher.items == [["a"]]
    assert publisher.sent[0][0]["countdown"] == 5.0


@pytest.mark.parametrize(
    "found",
    [
        queued("a", task="another"),
        queued("a", retries=0),
        queued("a", extra={AWAITED: True}),
        queued("a")._replace(arguments=""),
        queued("a")._replace(arguments="application/x-python-serialize binary b gA=="),
        queued("x" * ARGUMENT_BYTES),
    ],
    ids=["another task", "has begun", "awaited", "unknown", "unreadable", "too large"],
)
def test_what_cannot_be_merged_is_sent_alone_and_the_other_stays(
    publisher: Publisher, found: PreparedMessage
) -> None:
    """Under an id that was not announced: that one would wait for a commit."""
    publisher.publish(("prepare_message", found))
    [(options, call)] = publisher.sent
    assert call is None
    assert HEADER not in (options["headers"] or {})
    announced = publisher.store.performed[0].keys[2]
    assert not announced.endswith(options["task_id"])


@pytest.mark.parametrize("error", [OSError("no broker"), KeyboardInterrupt()], ids=repr)
def test_send_that_fails_changes_nothing(publisher: Publisher, error: BaseException) -> None:
    """The store hears nothing more: what was announced never runs, and the other does."""
    publisher.error = error
    with pytest.raises(type(error)):
        publisher.publish(("prepare_message", queued("a")))


def test_without_the_server_the_call_is_sent_alone(publisher: Publisher) -> None:
    publisher.publish(("prepare_message", reply_lost()))
    [(options, call)] = publisher.sent
    assert call is None
    assert HEADER not in (options["headers"] or {})
    assert not publisher.store.performed[0].keys[2].endswith(options["task_id"])
    with pytest.raises(LockUnavailable):
        publisher.publish(("prepare_message", reply_lost()), lock={"on_unavailable": "fail"})
    assert len(publisher.sent) == 1


def test_commit_without_a_reply_is_reported_and_not_sent_again(publisher: Publisher) -> None:
    """It may have been executed: a second message could run the call twice."""
    with pytest.raises(LockUnavailable, match="was sent, and it runs unless") as caught:
        publisher.publish(("prepare_message", queued("a")), ("commit_message", reply_lost()))
    assert caught.value.may_have_executed
    assert len(publisher.sent) == 1


@pytest.mark.parametrize(
    ("merged", "sentence"),
    [
        (None, "None must be the arguments by name: n, items, note"),
        ({"n": 7}, "must be the arguments by name"),
        ({"n": 7, "items": [], "nobody": 1}, "must be the arguments by name"),
        ({"n": 8, "items": []}, "for the lock 'bill:8"),
        ({"n": 7, "items": object()}, "cannot be serialised"),
    ],
)
def test_wrong_result_of_a_merge_is_refused_and_nothing_is_sent(
    publisher: Publisher, merged: Any, sentence: str
) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        publisher.publish(("prepare_message", queued("a")), lock={"arguments": lambda *_: merged})
    assert publisher.sent == []


def test_both_calls_are_as_the_worker_gets_them(publisher: Publisher) -> None:
    """A tuple has become a list in the queued call, so it is one in the new call too."""
    seen: list[Any] = []

    def look(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
        seen.extend((earlier, later))
        return later

    publisher.publish(
        ("prepare_message", queued("a")),
        ("commit_message", 6),
        items=("b", ("c",)),
        lock={"arguments": look},
    )
    assert seen == [
        {"n": 7, "items": ["a"], "note": ""},
        {"n": 7, "items": ["b", ["c"]], "note": ""},
    ]


def test_wrong_call_fails_as_without_a_lock(publisher: Publisher) -> None:
    options = LockOptions(key="bill", scope="queued", settle=1.0, arguments=join)
    with pytest.raises(TypeError):
        publish(publisher.task, options, (1, 2, 3, 4), {}, {}, publisher._send)


def test_call_with_an_id_of_its_own_never_replaces(publisher: Publisher) -> None:
    """Its arguments alone would be those of the run."""
    conflict = queued("a").conflict
    publisher.publish(("acquire", conflict), task_id="own")
    assert publisher.ids == ["own"]
    assert publisher.revoked == []
