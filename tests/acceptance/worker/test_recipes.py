"""Work that is done once and holders that are asked to stop, in real workers."""

import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import chain

from celery_locks import LeaseLost, Locks, admin
from tests.servers.embedded import EmbeddedServer
from tests.support.client_app import close_client, open_client
from tests.support.waiting import wait_until
from tests.support.worker import Worker

APP = "tests.support.recipe_app"
DONE = {"skipped": True, "reason": "already_done"}


class Site:
    def __init__(self, server: EmbeddedServer, pool: str) -> None:
        self.pool = pool
        self.redis: redis.Redis = server.client()
        self.app = open_client(server.url)
        self.locks = Locks.from_url(server.url)

    def send(self, task: str, *args: Any, **kwargs: Any) -> Any:
        return self.app.send_task(f"{APP}.{task}", args, kwargs)

    def count(self, word: str) -> int:
        return self.redis.lrange("notes", 0, -1).count(word.encode())  # type: ignore[union-attr]

    def wait_noted(self, word: str) -> None:
        wait_until(lambda: self.count(word), 20, what=word)

    def close(self) -> None:
        close_client(self.app)
        self.redis.close()
        self.locks.close()


@pytest.fixture(scope="module", params=["prefork", "threads", "solo", "gevent"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with EmbeddedServer() as server:
        env = {"RECIPE_URL": server.url}
        with Worker(APP, pool=request.param, concurrency=3, env=env):
            made = Site(server, request.param)
            yield made
            made.close()


@pytest.fixture
def key() -> str:
    """A key that never looks like a number: the text of a number is quoted in a lock's name."""
    return f"key-{uuid.uuid4().hex[:8]}"


def test_task_is_done_once_and_a_repeat_gets_the_result(site: Site, key: str) -> None:
    results = [site.send("pay", key, pause=0.05) for _ in range(5)]
    assert [result.get(timeout=20) for result in results] == [{"paid": key}] * 5
    assert site.count(f"pay {key}") == 1
    assert [d.state for d in admin.list_done(site.locks) if d.key == f"pay:{key}"] == [
        "already_done"
    ]
    assert admin.reset_done(site.locks, f"pay:{key}")
    assert site.send("pay", key).get(timeout=20) == {"paid": key}
    assert site.count(f"pay {key}") == 2


def test_task_that_failed_is_done_again(site: Site, key: str) -> None:
    with pytest.raises(OSError):
        site.send("pay", key, fail=-1).get(timeout=20)
    assert site.send("pay", key).get(timeout=20) == {"paid": key}
    assert site.count(f"pay {key}") == 2


def test_retry_is_no_end(site: Site, key: str) -> None:
    """Each attempt runs; only the last one's end counts."""
    assert site.send("pay", key, fail=2).get(timeout=20) == {"paid": key}
    assert site.count(f"pay {key}") == 3


def test_result_that_is_too_big_is_not_kept(site: Site, key: str) -> None:
    assert len(site.send("book", key).get(timeout=20)) == 70_000
    assert site.send("book", key).get(timeout=20) == DONE
    assert site.count(f"book {key}") == 1


def test_next_link_is_run_on_the_saved_result_or_not_at_all(site: Site, key: str) -> None:
    results = {}
    for task in ("pay", "book"):
        site.send(task, key).get(timeout=20)
        first, second = (site.app.signature(f"{APP}.{name}") for name in (task, "echo"))
        results[task] = chain(first.clone(args=(key,)), second).apply_async()
    assert results["pay"].get(timeout=20) == {"paid": key}
    link = results["book"].parent
    wait_until(lambda: link.state == "FAILURE", 20, what="the link to fail")
    assert "AlreadyDone" in repr(link.result)


def test_reuse_never_is_at_most_once(site: Site, key: str) -> None:
    with pytest.raises(OSError):
        site.send("risk", key).get(timeout=20)
    assert site.send("risk", key).get(timeout=20) == {"skipped": True, "reason": "already_failed"}
    assert site.count(f"risk {key}") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_reuse_never_after_a_signal(site: Site, key: str, number: int) -> None:
    """As after ``kill -9``, a hard time limit, or a revoke that terminates."""
    if site.pool != "prefork":
        pytest.skip("Elsewhere the whole worker dies.")
    site.send("risk", key, die=int(number), pause=20)
    site.wait_noted(f"risk {key}")
    wait_until(lambda: not site.locks.is_locked(f"risk:{key}"), 10, what="the lock to be freed")
    assert site.send("risk", key).get(timeout=20) == {"skipped": True, "reason": "already_begun"}
    assert site.count(f"risk {key}") == 1


def test_reuse_never_after_a_lost_lease(site: Site, key: str) -> None:
    result = site.send("risk", key, pause=20)
    site.wait_noted(f"risk {key}")
    admin.force_release(site.locks, f"risk:{key}")
    with pytest.raises(LeaseLost):
        result.get(timeout=15)
    assert site.send("risk", key).get(timeout=20) == {"skipped": True, "reason": "already_failed"}
    assert site.count(f"risk {key}") == 1


def test_once_failed_counts_from_the_last_attempt(site: Site, key: str) -> None:
    """A retry goes on at once; then the failure stands for a while, and then the work runs."""
    with pytest.raises(OSError):
        site.send("flaky", key).get(timeout=20)
    assert site.count(f"flaky {key}") == 2
    answer = site.send("flaky", key, fail=False).get(timeout=20)
    assert answer == {
        "skipped": True,
        "reason": "already_failed",
        "error": "OSError: no luck",
        "failed_at": answer["failed_at"],
    }
    assert site.count(f"flaky {key}") == 2
    wait_until(
        lambda: site.send("flaky", key, fail=False).get(timeout=20) == "well",
        30,
        what="the work to run again",
    )
    assert site.count(f"flaky {key}") == 3


def test_once_failed_stops_the_next_link_and_says_why(site: Site, key: str) -> None:
    with pytest.raises(OSError):
        site.send("flaky", key).get(timeout=20)
    first, second = (site.app.signature(f"{APP}.{name}") for name in ("flaky", "echo"))
    link = chain(first.clone(args=(key,)), second).apply_async().parent
    wait_until(lambda: link.state == "FAILURE", 20, what="the link to fail")
    assert "AlreadyDone" in repr(link.result)
    assert "ago with OSError: no luck" in repr(link.result)
    assert admin.reset_done(site.locks, f"flaky:{key}")
    assert site.send("flaky", key, fail=False).get(timeout=20) == "well"


def test_once_failed_after_a_kill_runs_again(site: Site, key: str) -> None:
    if site.pool != "prefork":
        pytest.skip("Elsewhere the whole worker dies.")
    site.send("flaky", key, pause=30)
    site.wait_noted(f"flaky {key}")
    os.kill(site.locks.holders(f"flaky:{key}")[0].pid or 0, signal.SIGKILL)
    assert site.send("flaky", key, fail=False).get(timeout=20) == "well"


def test_what_a_recycled_child_owes_is_given_back_before_it_ends() -> None:
    """The lock server is away for two seconds, and the child has had its one task."""
    with EmbeddedServer() as server, EmbeddedServer() as of_locks:
        env = {"RECIPE_URL": server.url, "RECIPE_LOCKS_URL": of_locks.url}
        with Worker(APP, concurrency=1, arguments=("--max-tasks-per-child", "1"), env=env):
            site = Site(server, "prefork")
            result = site.send("pay", "k", pause=0.5)
            site.wait_noted("pay k")
            of_locks.ask("CLIENT", "PAUSE", "2500", "ALL")
            result.get(timeout=20)
            assert site.send("pay", "k").get(timeout=20) == {"paid": "k"}
            assert site.count("pay k") == 1
            site.close()


def test_task_killed_in_the_middle_is_done_by_the_next(site: Site, key: str) -> None:
    if site.pool != "prefork":
        pytest.skip("Elsewhere the whole worker dies.")
    site.send("pay", key, pause=30)
    site.wait_noted(f"pay {key}")
    os.kill(site.locks.holders(f"pay:{key}")[0].pid or 0, 9)
    assert site.send("pay", key).get(timeout=20) == {"paid": key}
    assert site.count(f"pay {key}") == 2


@pytest.mark.parametrize("task", ["polite", "rude"])
def test_stop_reaches_the_running_task(site: Site, key: str, task: str) -> None:
    result = site.send(task, key)
    site.wait_noted(f"{task} {key}")
    [run] = [run for run in site.locks.active() if run.name == key]
    assert run in site.locks.active(worker=run.holder.worker)
    assert len(site.locks.stop(key)) == 1
    if task == "polite":
        assert result.get(timeout=10) == "stopped"
    else:
        wait_until(lambda: result.state == "FAILURE", 10, what="StopRequested in the task")
        assert "StopRequested" in repr(result.result)
        assert site.count(f"rude {key} cleaned up") == 1
    wait_until(lambda: not site.locks.is_locked(key), 15, what="the lock to be free")
    again = site.send("pay", key)
    assert again.get(timeout=20) == {"paid": key}, "the worker's next task is untouched"
