"""A time limit, or Ctrl-C, strikes on the way: no lock is to wait until it lapses.

A connection that is struck between two uses is closed when Python drops it, which warns.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_locks import LockedTask, Locks
from celery_locks.core.owners import current_owner
from celery_locks.core.renewer import renewer
from celery_locks.integration.app_locks import AppLocks, locks_of
from celery_locks.integration.execution import Execution, unreleased
from celery_locks.integration.headers import HEADER
from celery_locks.integration.interrupt import main_thread
from celery_locks.recipes import Buffer, claim_or_create, idempotent
from celery_locks.store.commands.locks import reservation_token
from celery_locks.testing import lock_name_of
from celery_locks.types import Holder, LockSpec
from celery_locks.validation import QUEUED
from tests.servers.embedded import EmbeddedServer
from tests.support.keys import key_alone
from tests.support.strike import Strike
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def dropped_here() -> Iterator[None]:
    """What was struck is dropped now, not in another test."""
    yield
    gc.collect()


@pytest.mark.parametrize("where", ["verbs.release", "_store.perform"])
def test_release_interrupted_on_its_way_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    locks = AppLocks(fakeredis.FakeRedis())
    lease = locks.acquire("a", ttl=600)
    assert lease
    owner, name = (
        (locks.commands, "release") if where == "verbs.release" else (locks._store, "perform")
    )
    original = getattr(owner, name)

    def struck(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, struck)
    with pytest.raises(KeyboardInterrupt):
        lease.release()
    wait_until(lambda: locks.info("a") is None)


def _acquire(locks: Locks, name: str) -> None:
    lease = locks.acquire(name)
    sys.settrace(None)  # whoever is struck in a release has the lease still
    assert lease
    lease.release()


def _hold(locks: Locks, name: str) -> None:
    with locks.hold(name):
        pass


def _reenter(locks: Locks, name: str) -> None:
    with locks.hold(name, reentrant=True), suppress(KeyboardInterrupt):
        with locks.hold(name, reentrant=True):
            pass


def _idempotent(locks: Locks, name: str) -> None:
    idempotent(locks, key=key_alone, lock_ttl=600)(lambda name: name)(name)


def _create(locks: Locks, name: str) -> None:
    claim_or_create(locks, name, lambda: 1, lock_ttl=600)


def _absorb(locks: Locks, name: str) -> None:
    buffer = Buffer(locks, "chat", ttl=600)
    buffer.push(name, "hello")
    buffer.absorb(name, lambda messages: None)


@pytest.mark.parametrize("way", [_acquire, _hold, _reenter, _idempotent, _create, _absorb])
def test_nothing_is_left_held_by_what_is_struck_at_any_line(
    valkey: EmbeddedServer, way: Callable[[Locks, str], None]
) -> None:
    """One more line each time, until one gets through."""
    valkey.flush()
    locks = Locks.from_url(valkey.url, ttl=600)
    before = set(current_owner().leases)
    way(locks, "0")  # what is made at first use is there
    for line in range(1, 2000):
        strike = Strike(line)
        with suppress(KeyboardInterrupt), strike:
            way(locks, str(line))
        wait_until(
            lambda: not renewer.tokens and not locks.run(locks.queries.list_locks()),
            5,
            what=strike.where,
        )
        if not strike.where:
            break
    assert line > 50
    assert not strike.where
    assert current_owner().leases.keys() <= before
    locks.close()


@pytest.mark.parametrize("scope", ["queued", "queued+running"])
def test_publish_struck_at_any_line_leaves_no_place_without_its_message(
    valkey: EmbeddedServer, scope: str
) -> None:
    app = _app(valkey)
    app.conf.task_default_queue = f"struck-{scope}"

    @app.task(base=LockedTask, shared=False, lock_key="mail:{to}", lock_scope=scope)
    def mail(to: int) -> None: ...

    locks = locks_of(app)
    with app.connection() as connection:
        mail.delay(0)
        for line in range(1, 1000):
            queued = connection.default_channel._size(app.conf.task_default_queue)
            strike = Strike(line)
            with suppress(KeyboardInterrupt), strike:
                mail.delay(line)
            if connection.default_channel._size(app.conf.task_default_queue) == queued:
                name = lock_name_of(mail, line) + (QUEUED if scope == "queued" else "")
                wait_until(lambda name=name: locks.info(name) is None, 5, what=strike.where)
            if not strike.where:
                break
    assert line > 50
    locks.close()


_BESIDES = {"lock_scope": "queued+running", "lock_once": 60.0}


@pytest.mark.parametrize(
    "options", [_BESIDES, {"lock_scope": "queued"}, {"lock_on_conflict": "wait"}], ids=str
)
def test_task_struck_at_any_line_leaves_nothing_held(
    valkey: EmbeddedServer, options: dict[str, Any]
) -> None:
    """Neither its lock nor the place that its message had in the queue."""
    app = _app(valkey)

    @app.task(base=LockedTask, shared=False, lock_key="mail:{to}", lock_ttl=600, **options)
    def mail(to: int) -> None: ...

    locks = locks_of(app)
    mail.apply([0])
    before = set(current_owner().leases)
    for line in range(1, 2000):
        name, result = lock_name_of(mail, line), None
        place = name + QUEUED if options.get("lock_scope") == "queued" else name
        token = reservation_token(f"job-{line}")
        note = {"queued": [place, token]} if "lock_scope" in options else {}
        if note:
            message = Holder(task_id=f"job-{line}", task=mail.name, retries=-1)
            locks.perform(locks.commands.acquire(LockSpec(place, 600), token, message))
        strike = Strike(line, SoftTimeLimitExceeded)
        with suppress(SoftTimeLimitExceeded), strike:
            result = mail.apply([line], task_id=f"job-{line}", headers={HEADER: note})
        if result is None and note:  # struck before the run began, or after its end
            locks.perform(locks.commands.release(place, token))
        wait_until(
            lambda held=(name, place): (
                not (renewer.tokens or unreleased or any(map(locks.info, held)))
            ),
            5,
            what=strike.where,
        )
        assert not main_thread._running, strike.where
        assert current_owner().leases.keys() <= before, strike.where
        if not strike.where:
            break
    assert line > 100
    locks.close()


def test_task_interrupted_as_it_gets_its_lock_is_not_taken_for_begun(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With reuse="never" the acquire marks the work as begun, and its code has not run."""
    app, ran = _app(valkey), []

    @app.task(base=LockedTask, shared=False, lock_key="mail:{to}", lock_once=60, lock_reuse="never")
    def mail(to: int) -> None:
        ran.append(to)

    acquire = Execution._acquire

    def acquire_and_exceed(*args: Any) -> None:
        acquire(*args)
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "_acquire", acquire_and_exceed)
        assert isinstance(mail.apply([1]).result, SoftTimeLimitExceeded)
    locks = locks_of(app)
    wait_until(lambda: locks.info(lock_name_of(mail, 1)) is None)
    mail.apply([1]).get()
    assert ran == [1]
    locks.close()


def _app(server: EmbeddedServer) -> Celery:
    server.flush()
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.locks_url = server.url
    return app
