"""Calls by name: which lock they ask for, what travels with the message, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery, Task, signals

from celery_locks import LockedTask, send_task
from celery_locks.errors import AlreadyQueued, LockUsageError
from celery_locks.integration.app_locks import unlocked_tasks
from celery_locks.integration.headers import HEADER, LockHeader
from celery_locks.integration.lock_name import lock_name, queue_name
from celery_locks.store.commands.locks import reservation_token
from celery_locks.store.commands.replies import ReplacedReservation
from celery_locks.types import Conflict, Holder
from celery_locks.validation import QUEUED
from tests.support.scripted_store import ScriptedStore

OTHER = Holder(
    token=reservation_token("other"), task_id="other", task="far.away", retries=-1, expires_at=60.0
)
BUSY = Conflict("doc:7" + QUEUED, (OTHER,), 60.0, 1)
BUSY_NEAR = replace(BUSY, holders=(OTHER._replace(task="near"),))
LOCK = {"key": "doc:{doc}", "scope": "queued"}


class Client:
    """An app on the scripted store; keeps the headers of what it publishes."""

    def __init__(self, app: Celery, store: ScriptedStore) -> None:
        self.app = app
        self.store = store
        self.sent: list[dict[str, Any]] = []
        signals.before_task_publish.connect(self._note)

    def _note(self, headers: Any = None, **_: Any) -> None:
        self.sent.append(headers)

    def send(self, *script: Any, lock: Any = LOCK, **call: Any) -> Any:
        self.store.expect(*script)
        kwargs = call.pop("kwargs", {"doc": 7})
        return send_task(self.app, call.pop("name", "far.away"), (), kwargs, lock=lock, **call)

    def header(self) -> LockHeader:
        return LockHeader.read(self.sent[-1])

    def locked(self, name: str = "near", base: Any = LockedTask, **options: Any) -> Any:
        @self.app.task(name=name, base=base, shared=False, lazy=False, **options)
        def near(doc: int, priority: int = 0) -> None: ...

        return self.app.tasks[name]


@pytest.fixture
def client(scripted_app: Celery, scripted_store: ScriptedStore) -> Client:
    return Client(scripted_app, scripted_store)


# A task that this process does not know.


def test_unknown_task_is_reserved_and_its_lock_travels(client: Client) -> None:
    result = client.send(("acquire", 5), task_id="mine", headers={"x": 1}, queue="slow")
    assert (result.id, result.deduplicated) == ("mine", False)
    assert client.store.acquires[0].name == "doc:7" + QUEUED
    assert client.store.acquires[0].token == reservation_token("mine")
    assert client.header().queued == "doc:7" + QUEUED
    assert client.header().options == {"key": "doc:7", "scope": "queued"}
    assert client.sent[0]["x"] == 1


@pytest.mark.parametrize("value", ["7", "a:b", "{doc}", "}{", "é" * 300, {"a": [1]}, None])
def test_worker_uses_the_name_of_the_publisher_whatever_its_task_is(
    client: Client, value: Any
) -> None:
    """The name that was reserved is the name that runs, also if it contains braces."""
    client.send(("acquire", 5), kwargs={"doc": value})
    reserved = client.store.acquires[0].name
    task = client.locked(lock_key="other:{doc}", lock_ttl=50)
    options = task.lock_options(client.header().options)
    assert (options.scope, options.ttl) == ("queued", 50)
    for args, kwargs in [((), {"doc": value}), ((1, 2), {}), ((), {"wrong": 1})]:
        assert queue_name(task, options, args, kwargs) == reserved
    assert f"{lock_name(task, options, (), {})}{QUEUED}" == reserved


def test_publisher_that_knows_the_task_makes_the_same_name(client: Client) -> None:
    client.send(("acquire", 5))
    task = client.locked(lock_key="doc:{doc}", lock_scope="queued")
    assert queue_name(task, task.lock_options(), (7,), {}) == client.store.acquires[0].name


@pytest.mark.parametrize(
    ("key", "kwargs", "name"),
    [
        ("doc:7", {}, "doc:7"),
        ("{task}:{doc}", {"doc": 7}, "far.away:7"),
        ("doc:{task}", {"task": "mine"}, "doc:mine"),
    ],
)
def test_key_of_an_unknown_task_is_a_text_or_a_template(
    client: Client, key: str, kwargs: dict[str, Any], name: str
) -> None:
    client.send(("acquire", 5), lock={"key": key, "scope": "queued+running"}, kwargs=kwargs)
    assert client.store.acquires[0].name == name


@pytest.mark.parametrize(
    ("lock", "why"),
    [
        (
            {**LOCK, "key": "doc:{id}"},
            "names 'id'; this process does not know .* pass it in kwargs",
        ),
        ({**LOCK, "key": "{doc}"}, "has no text besides its values"),
        ({**LOCK, "key": "doc:{doc"}, "is no template"),
        ({**LOCK, "key": lambda doc: "x"}, "its key must be a text"),
        ({**LOCK, "key": "*"}, "its key must be a text"),
        ({**LOCK, "limit": lambda doc: 3}, "a limit for one call must be a number"),
        (
            {**LOCK, "rates": [{"rate": "1/s", "cost": len}]},
            "rates of one call must have no functions",
        ),
        ({"scope": "queued"}, "has no effect on a lock by task id; write a key"),
        ({"key": "doc", "pending_ttl": 60}, "pending_ttl has no effect with scope='running'"),
        ({**LOCK, "on_conflict": "never"}, "on_conflict is 'never'"),
        ({**LOCK, "lifetime": 3}, "no lock option 'lifetime'"),
        (None, "send_task.* is None; write the options of the lock"),
    ],
)
def test_wrong_lock_is_refused_with_a_sentence(client: Client, lock: Any, why: str) -> None:
    with pytest.raises(LockUsageError, match=why) as raised:
        client.send(lock=lock)
    assert str(raised.value).startswith("task far.away: send_task(lock=…)")
    assert client.sent == []


def test_lock_option_beside_lock_is_refused(client: Client) -> None:
    with pytest.raises(LockUsageError, match="on_conflict is no option of a call"):
        client.send(on_conflict="raise")


def test_duplicate_of_an_unknown_task_is_answered_as_for_a_known_one(client: Client) -> None:
    result = client.send(("acquire", BUSY))
    assert (result.id, result.deduplicated) == ("other", True)
    with pytest.raises(AlreadyQueued):
        client.send(("acquire", BUSY), lock={**LOCK, "on_conflict": "raise"})
    assert client.sent == []


def test_duplicate_that_is_allowed_asks_the_store_once(client: Client) -> None:
    client.send(("acquire", BUSY), lock={**LOCK, "on_conflict": {"publish": "allow"}})
    assert len(client.sent) == 1


def test_unknown_task_replaces_what_is_queued(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked: list[str] = []
    backend = client.app.backend
    monkeypatch.setattr(
        backend, "mark_as_revoked", lambda task_id, *_, **__: revoked.append(task_id)
    )
    client.send(
        ("acquire", BUSY),
        ("acquire", ReplacedReservation(6)),
        ("release", False),
        lock={**LOCK, "on_conflict": {"publish": "replace"}},
    )
    assert client.header().replaced
    assert revoked == ["other"]


def test_limit_travels_where_the_run_takes_over_the_reservation(client: Client) -> None:
    """The limit of a lock must be one: the worker's task may have another one."""
    client.send(("acquire", 5), lock={"key": "doc:{doc}", "scope": "queued+running"})
    task = client.locked(lock_key="doc:{doc}", lock_limit=3)
    assert task.lock_options(client.header().options).limit == 1


def test_running_scope_sends_the_options_and_reserves_nothing(client: Client) -> None:
    result = client.send(lock={"key": "doc:{doc}", "ttl": 60})
    assert result.deduplicated is False
    assert client.header() == LockHeader({"key": "doc:7", "ttl": 60})


def test_unlocked_tasks_reserve_nothing(client: Client) -> None:
    with unlocked_tasks():
        client.send()
    assert len(client.sent) == 1


# A task that this process knows.


def test_known_task_has_its_own_options_and_those_of_the_call(client: Client) -> None:
    client.locked(lock_key="doc:{doc}:{priority}", lock_scope="queued", lock_ttl=50)
    client.store.expect(("acquire", 5))
    send_task(client.app, "near", (7,), lock={"pending_ttl": 100})
    assert client.store.acquires[0].name == "doc:7:0" + QUEUED
    assert client.store.acquires[0].ttl == 100
    assert client.header().options == {"pending_ttl": 100}


def test_known_task_without_a_lock_is_refused(client: Client) -> None:
    """Nobody would release the reservation when it runs."""
    client.locked("plain", base=Task)
    with pytest.raises(
        LockUsageError, match="task plain: this process knows the task, and it takes"
    ):
        client.send(name="plain")


def test_wrong_option_for_a_known_task_names_the_call(client: Client) -> None:
    client.locked(lock_key="doc:{doc}")
    with pytest.raises(LockUsageError, match=r"task near: send_task\(lock=…\): no lock option"):
        client.send(name="near", lock={"lifetime": 3})


# app.send_task.


def test_app_send_task_reserves_for_a_task_that_is_known_to_be_locked(client: Client) -> None:
    client.locked(lock_key="doc:{doc}", lock_scope="queued")
    client.store.expect(("acquire", 5), ("acquire", BUSY_NEAR))
    first = client.app.send_task("near", (7,))
    second = client.app.send_task("near", kwargs={"doc": 7})
    assert [each.deduplicated for each in (first, second)] == [False, True]
    assert second.id == "other"
    assert [message["id"] for message in client.sent] == [first.id]
    assert client.header().queued == "doc:7" + QUEUED


def test_app_send_task_takes_positional_options(client: Client) -> None:
    client.locked(lock_key="doc:{doc}", lock_scope="queued", lock_pending_ttl=100)
    client.store.expect(("acquire", 5))
    client.app.send_task("near", (7,), None, 20)
    assert client.store.acquires[0].ttl == pytest.approx(120)


def test_app_send_task_finds_a_task_that_was_not_created_yet(client: Client) -> None:
    """``@app.task`` creates it when the app is finalized; nobody else may do that before."""

    @client.app.task(
        name="lazy", base=LockedTask, shared=False, lock_key="doc:{doc}", lock_scope="queued"
    )
    def lazy(doc: int) -> None: ...

    client.store.expect(("acquire", 5))
    client.app.send_task("lazy", (7,))
    assert client.header().queued == "doc:7" + QUEUED


@pytest.mark.parametrize("name", ["far.away", "plain", "running"])
def test_app_send_task_is_celerys_own_for_all_others(client: Client, name: str) -> None:
    client.locked("plain", base=Task)
    client.locked("running", lock_key="doc:{doc}")
    client.app.send_task(name, (7,), headers={"x": 1})
    assert client.sent[0]["x"] == 1
    assert HEADER not in client.sent[0]
    assert client.store.performed == []


def test_app_send_task_refuses_options_of_a_lock_that_it_would_ignore(client: Client) -> None:
    client.locked(lock_key="doc:{doc}")
    with pytest.raises(LockUsageError, match=r"write celery_locks\.send_task\(app, name, …, lock"):
        client.app.send_task("near", (7,), lock={"key": "doc:8"})
    with pytest.raises(LockUsageError, match="on_conflict is no option of a call"):
        client.app.send_task("near", (7,), on_conflict="raise")
    assert client.sent == []


def test_apply_async_reserves_once(client: Client) -> None:
    """It calls ``app.send_task`` itself."""
    task = client.locked(lock_key="doc:{doc}", lock_scope="queued")
    client.store.expect(("acquire", 5), ("acquire", BUSY_NEAR))
    task.delay(7)
    task.apply_async((7,), lock={"on_conflict": {"publish": "allow"}})
    assert len(client.sent) == 2


def test_apply_async_of_the_users_own_that_sends_by_name_reserves_once(client: Client) -> None:
    class ByName(Task):
        abstract = True

        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return self.app.send_task(self.name, args, kwargs, **options)

    class Both(LockedTask, ByName):
        abstract = True

    task = client.locked(base=Both, lock_key="doc:{doc}", lock_scope="queued")
    client.store.expect(("acquire", 5), ("acquire", BUSY_NEAR))
    assert task.delay(7).deduplicated is False
    task.apply_async((7,), lock={"on_conflict": {"publish": "allow"}})
    assert len(client.sent) == 2
    assert HEADER in client.sent[0]
