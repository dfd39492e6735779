"""The promises in short, on a real worker: also run on the oldest Celery that we support.

Nothing of Celery's client side is used beyond publishing: results are read from the server itself,
as older Celerys hang at their end when a server they listened to is gone.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
APP = "tests.support.smoke_app"


class Shop:
    """A worker, the locks it uses, and somebody who calls its tasks."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.locks = Locks.from_url(server.url)
        self._app = Celery(broker=server.url, set_as_current=False)
        self._client = server.client(decode_responses=True)

    def call(self, task: str, *args: Any, **kwargs: Any) -> str:
        return str(self._app.send_task(f"{APP}.{task}", args, kwargs).id)

    def result(self, task_id: str, deadline: float = 30.0) -> Any:
        meta = wait_until(lambda: self._meta(task_id), deadline, what=f"the result of {task_id}")
        assert meta["status"] == "SUCCESS", meta
        return meta["result"]

    def _meta(self, task_id: str) -> dict[str, Any] | None:
        text: Any = self._client.get(f"celery-task-meta-{task_id}")
        meta: dict[str, Any] = json.loads(text or "{}")
        return meta if meta.get("status") in ("SUCCESS", "FAILURE") else None

    def close(self) -> None:
        self._app.close()
        self._client.close()
        self.locks.close()


@pytest.fixture(scope="module")
def shop(no_server_left: None) -> Iterator[Shop]:
    with EmbeddedServer() as server:
        places = {"CELERY_BROKER_URL": server.url, "CELERY_RESULT_BACKEND": server.url}
        words = [f"{name}={value}" for name, value in {**places, "PYTHONPATH": ROOT}.items()]
        celery = [sys.executable, "-m", "celery", "-A", APP, "worker", "--loglevel=INFO"]
        # Celery warns of its own future; that is not what is tested here.
        worker = Child(
            ["/usr/bin/env", "PYTHONWARNINGS=ignore", *words, *celery, "--concurrency=3"],
            new_directory(),
        )
        shop = Shop(server)
        try:
            wait_until(lambda: " ready." in worker.log(1000), 60, what="the worker to be ready")
            yield shop
        finally:
            shop.close()
            worker.kill()


def test_smoke_locks_and_skips(shop: Shop) -> None:
    first = shop.call("bill", 1, seconds=1.0)
    holder = wait_until(lambda: shop.locks.holders("invoice:1"), 10, what="the lock to be taken")
    second = shop.result(shop.call("bill", number=1))
    assert second["skipped"] is True
    assert second["holder"]["task_id"] == holder[0].task_id == first
    assert shop.result(first) == "invoice:1"
    assert not shop.locks.is_locked("invoice:1")


def test_smoke_renews_beyond_the_ttl(shop: Shop) -> None:
    """The ttl is 3 s; the worker's main process renews for its child."""
    assert shop.result(shop.call("bill", 2, seconds=4.5)) == "invoice:2"


def test_smoke_retries_are_no_conflict(shop: Shop) -> None:
    assert shop.result(shop.call("bill", 3, retries=2)) == "invoice:3"


def test_smoke_waits_in_line(shop: Shop) -> None:
    calls = [shop.call("book", "ann", 0.2) for _ in range(3)]
    assert [shop.result(call) for call in calls] == ["booked"] * 3


def test_smoke_requeues(shop: Shop) -> None:
    calls = [shop.call("export", "ann", 0.2) for _ in range(2)]
    assert [shop.result(call) for call in calls] == ["exported"] * 2


def test_smoke_frees_what_a_killed_child_held(shop: Shop) -> None:
    """kill -9: free before the ttl of 3 s can be over, renewed a second ago at most."""
    shop.call("bill", 4, seconds=60)
    [holder] = wait_until(lambda: shop.locks.holders("invoice:4"), 10, what="the lock to be taken")
    assert holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: not shop.locks.is_locked("invoice:4"), 1.8, what="the lock to be free")
    assert shop.result(shop.call("bill", 4)) == "invoice:4"
