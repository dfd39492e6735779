"""On call: liveness in the list, arguments, many releases at once, completed work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from celery_locks import Locks, admin
from celery_locks.admin import liveness
from celery_locks.recipes import idempotent
from celery_locks.types import Holder, LockSpec
from celery_locks.web import create_app
from tests.support.celery_app import make_app
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig
from tests.support.waiting import wait_until
from tests.support.web import MAY_READ, MAY_WRITE, READ, WRITE, ask

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker("-n", "one@%h"):
        yield rig


def app_over(rig: Rig, **conf: Any) -> Any:
    source = make_app({**rig.conf, **conf})
    return create_app(source, read_keys=[READ], write_keys=[WRITE], requests_per_minute=1_000_000)


@pytest.fixture
def app(rig: Rig) -> Any:
    return app_over(rig)


@pytest.fixture
def key(rig: Rig) -> Iterator[str]:
    key = f"oncall-{next(_numbers)}"
    yield key
    rig.open(key)


def get(app: Any, path: str, **parameters: Any) -> Any:
    answer = ask(app, "GET", f"/api/v1/{path}", params=parameters, headers=MAY_READ)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(app: Any, path: str, **body: Any) -> Any:
    answer = ask(app, "POST", f"/api/v1/{path}", json=body, headers=MAY_WRITE)
    assert answer.status_code == 200, answer.text
    return answer.json()


def take(locks: Locks, name: str, token: str = "", ttl: float = 600, **fields: Any) -> str:
    """Hold a lock that nobody renews."""
    token = token or f"t-{next(_numbers)}"
    locks.perform(locks.commands.acquire(LockSpec(name, ttl), token, Holder(**fields)))
    return token


def running(rig: Rig, key: str) -> Any:
    result = rig.task("work").delay(key, key)
    rig.wait_started(result)
    return result


def test_list_shows_which_holders_are_alive(rig: Rig, app: Any, key: str) -> None:
    """The locks of a dead worker must be visible in the list, not only in the details."""
    running(rig, key)
    take(rig.locks, f"{key}-left", task_id="x", task="work", worker="gone@nowhere")

    def judged() -> Any:
        found = get(app, "locks", glob=f"{key}*")
        verdicts = {lock["name"]: lock["holders"][0]["liveness"] for lock in found["locks"]}
        found_verdicts = [verdicts.get(name, {}).get("verdict") for name in (key, f"{key}-left")]
        return found if found_verdicts == ["running", "silent"] else None

    found = wait_until(judged, PATIENCE, what="the workers' answers in the list")
    assert found["workers"]["asked"] >= 2
    assert found["workers"]["answered"] >= 1
    assert 0 <= found["workers"]["age"] < 30
    assert found["suspect"] >= 1
    suspects = get(app, "locks", state="suspect", glob=f"{key}*")
    assert [lock["name"] for lock in suspects["locks"]] == [f"{key}-left"]


def test_workers_are_asked_once_for_all_viewers(
    rig: Rig, app: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broadcast per viewer and second would load the broker."""
    running(rig, key)
    calls: list[Any] = []
    real = liveness.inspect_active

    def counted(*args: Any, **how: Any) -> Any:
        calls.append(args)
        return real(*args, **how)

    monkeypatch.setattr(liveness, "inspect_active", counted)
    get(app, "locks/info", name=key)
    before = len(calls)
    for _ in range(20):
        get(app, "locks")
        get(app, "locks/info", name=key)
        get(app, "locks/why", subject=key)
    # A silent worker (of another test) is asked twice each time; 60 requests take a few seconds.
    assert len(calls) - before <= 8


def test_list_shows_the_usual_duration(rig: Rig, app: Any, key: str) -> None:
    """Only the usual duration tells whether 7 minutes are long."""
    holder = Holder(task=f"usual.{key}", task_id="t")
    with rig.locks.hold(f"{key}-past", holder=holder):
        wait_until(lambda: _age(rig.locks, f"{key}-past") > 1.1, PATIENCE)
    with rig.locks.hold(key, holder=holder):

        def usual() -> Any:
            [lock] = get(app, "locks", glob=key)["locks"] or [{"usual": None}]
            return lock["usual"]

        found = wait_until(usual, PATIENCE, what="the usual duration in the list")
    assert found["holds"] == 1
    assert 1.0 < found["held_for"] < PATIENCE


def _age(locks: Locks, name: str) -> float:
    lock = locks.info(name)
    return lock.as_of - lock.holders[0].acquired_at if lock else 0.0


def test_arguments_are_shown_only_if_the_app_allows_it(rig: Rig, app: Any, key: str) -> None:
    """Arguments may contain secrets that not everybody who sees locks may see."""
    running(rig, key)
    allowed = app_over(rig, locks_show_arguments=True)

    def describe_entry() -> Any:
        [holder] = get(allowed, "locks/info", name=key)["holders"]
        return holder["arguments"]

    found = wait_until(describe_entry, PATIENCE, what="the arguments")
    assert key in found["args"]
    [holder] = get(app, "locks/info", name=key)["holders"]
    assert holder["arguments"] is None
    assert key not in str([value for word, value in holder.items() if word != "liveness"])


def test_search_finds_a_lock_by_a_task_id(rig: Rig, app: Any, key: str) -> None:
    """Logs have the task id, not the lock name."""
    take(rig.locks, key, task_id=f"id-{key}-holder")
    for text in (f"*{key}-hold*", f"id-{key}-holder", key):
        wait_until(lambda text=text: names(app, search=text) == [key], PATIENCE)
    assert names(app, glob=f"id-{key}-holder") == []


def names(app: Any, **parameters: Any) -> list[str]:
    return [lock["name"] for lock in get(app, "locks", **parameters)["locks"]]


def test_release_many_affects_only_the_given_holders(rig: Rig, app: Any, key: str) -> None:
    """A holder changed while the user typed the reason: the new holder keeps the lock."""
    holders = [{"name": f"{key}-{n}", "token": take(rig.locks, f"{key}-{n}")} for n in range(3)]
    admin.force_release(rig.locks, f"{key}-1", reason="", by="ann")
    take(rig.locks, f"{key}-1", token="somebody-else")
    done = post(app, "locks/release-many", holders=holders, reason="deploy", by="ann", grace=0.2)
    assert sorted(holder["name"] for holder in done["freed"]) == [f"{key}-0", f"{key}-2"]
    assert done["not_held"] == [holders[1]]
    assert (done["unknown"], done["trouble"]) == ([], "")
    assert [holder.token for holder in rig.locks.holders(f"{key}-1")] == ["somebody-else"]
    acts = get(app, "locks/history", name=f"{key}-0", only_acts="true")["acts"]
    assert [(act["act"], act["why"]) for act in acts] == [
        ("force_release", "deploy"),
        ("stop", "deploy"),
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"holders": [{"name": "a", "token": "t"}]}, "The field reason is missing"),
        ({"holders": [{"name": "a", "token": "t"}], "reason": ""}, "reason must be a text from 1"),
        ({"holders": [], "reason": "x"}, "holders must be a list of 1 to 100 holders"),
        ({"holders": [{"name": "a"}], "reason": "x"}, "an object with name and token"),
        ({"holders": [{"name": "a", "token": ""}], "reason": "x"}, "token must be a text"),
        ({"holders": [{"name": "", "token": "t"}], "reason": "x"}, "name must be a text"),
    ],
)
def test_release_many_refuses_with_a_sentence(app: Any, body: Any, sentence: str) -> None:
    answer = ask(app, "POST", "/api/v1/locks/release-many", json=body, headers=MAY_WRITE)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_completed_work_is_found_by_its_key(rig: Rig, app: Any, key: str) -> None:
    """One key is found among many, and the answer tells whether the list is complete."""
    done = idempotent(rig.locks, key=key + ":{n}", ttl=60)(lambda n: n)
    for n in range(3):
        done(n)
    found = get(app, "locks/done", glob=f"{key}:1")
    assert [work["key"] for work in found["done"]] == [f"{key}:1"]
    assert found["complete"] is True
    assert get(app, "locks/done", glob=f"{key}:*", limit=2)["complete"] is False
    post(app, "locks/done/reset", key=f"{key}:1", reason="the bank lost it", by="ann")
    [act] = get(app, "locks/history", name=f"{key}:1", only_acts="true")["acts"]
    assert (act["act"], act["why"]) == ("reset", "the bank lost it")


def test_me_shows_where_the_locks_are(rig: Rig, app: Any) -> None:
    me = get(app, "me")
    assert (me["app_name"], me["db"], me["prefix"]) == ("tests", 0, rig.locks.commands.prefix)
    assert rig.server.url.removeprefix("redis://").startswith(me["server"])
