"""An app that locks its tasks in one way only: all that a worker does for locks is there for each.

Our other tests have every way in one app, where what one way brings is there for the others too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from celery_locks import LockedTask, Locks
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.keys import key_alone
from tests.support.monitor import captured
from tests.support.waiting import wait_until
from tests.support.worker import ROOT

PATIENCE = 30.0
APP = """
from celery import Celery, Task
from tests.support.keys import key_alone
{imports}

app = Celery("ways", broker={url!r}, backend={url!r})

class Failing(Task):
    def before_start(self, task_id, args, kwargs):
        if args[0].startswith("fails"):
            raise KeyError("before it starts")

{task}
def job(key):
    return key
"""
WAYS = {
    "base": (
        "from celery_locks import LockedTask\nfrom tests.support.keys import key_alone",
        "class Base(LockedTask, Failing): abstract = True\n"
        "@app.task(name='job', base=Base, lock_key=key_alone, lock_scope='queued+running')",
    ),
    "decorator": (
        "from celery_locks import single_instance\nfrom tests.support.keys import key_alone",
        "@app.task(name='job', base=Failing)\n"
        "@single_instance(key=key_alone, scope='queued+running')",
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="module", params=WAYS)
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    """The caller's side of it, with a worker that knows no other way."""
    imports, task = WAYS[request.param]
    with EmbeddedServer() as server:
        directory = new_directory()
        (directory / "ways.py").write_text(APP.format(imports=imports, task=task, url=server.url))
        with worker(directory):
            # No results: older Celerys hang at their end when a server they listened to is gone.
            app = Celery("caller", broker=server.url, set_as_current=False)
            locked = {"base": LockedTask, "lock_key": key_alone, "lock_scope": "queued+running"}
            app.task(name="job", shared=False, **locked)(job)
            app.finalize()
            yield app
            app.close()


def job(key: str) -> str:
    return key


@contextmanager
def worker(directory: Path) -> Iterator[None]:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    celery = f"{sys.executable} -m celery -A ways worker -c 2 -E -l INFO".split()
    child = Child(["/usr/bin/env", f"PYTHONPATH={directory}:{ROOT}", *celery, *quiet], directory)
    try:
        wait_until(lambda: " ready." in child.log_path.read_text(), PATIENCE, what="the worker")
        yield
    finally:
        child.stop(10.0)


def wait_free(app: Celery, name: str) -> None:
    locks = Locks.from_app(app)
    wait_until(lambda: locks.info(name) is None, PATIENCE, what=f"lock {name} to be free")


def test_a_revoked_message_gives_its_place_back(app: Celery) -> None:
    result = app.tasks["job"].apply_async(("revoked",), countdown=600)
    assert Locks.from_app(app).info("revoked")
    result.revoke()
    wait_free(app, "revoked")


def test_a_message_that_fails_before_it_starts_gives_its_place_back(app: Celery) -> None:
    app.tasks["job"].delay("fails")
    wait_free(app, "fails")


def test_monitors_see_the_locks(app: Celery) -> None:
    with captured(app) as seen:

        def are_seen() -> bool:
            app.tasks["job"].delay("seen")
            return {"lock-acquired", "lock-released"} <= {event["type"] for event in seen}

        wait_until(are_seen, PATIENCE, every=0.2, what="the events of a lock")


def test_workers_are_asked_for_their_locks(app: Celery) -> None:
    [(_, answer)] = (app.control.inspect(timeout=PATIENCE, limit=1)._request("locks") or {}).items()
    assert answer == []
