"""A server, the tasks of ``outcome_app`` on it, and the questions every worker test asks."""

import uuid
from typing import Any

from celery.result import AsyncResult

from celery_locks import Locks
from celery_locks.types import LockInfo
from tests.servers.embedded import EmbeddedServer
from tests.support.client_app import close_client, open_client
from tests.support.journal import Journal, Run
from tests.support.redis_keys import keys_of_locks
from tests.support.stalls import measure_stalls
from tests.support.waiting import wait_until
from tests.support.worker import Worker

APP = "tests.support.outcome_app"
# Well below the ttl of 30 s that the tasks have; on an idle machine it takes milliseconds.
AT_ONCE = 2.0
SOON = 10.0


class Stage:
    """Broker and results in database 0, locks in 1, the journal in 2; a context manager.

    ``locks_on`` names another server for the locks.
    """

    def __init__(self, *, locks_on: EmbeddedServer | None = None) -> None:
        self.server = EmbeddedServer()
        self._locks_on = locks_on
        self._stalls = measure_stalls()

    def __enter__(self) -> "Stage":
        self._stalled = self._stalls.__enter__()
        self.server.start()
        lock_server = self._locks_on or self.server
        self.broker_url = self.server.url
        self.locks_url = lock_server.url.removesuffix("0") + "1"
        journal_url = lock_server.url.removesuffix("0") + "2"
        self.env = {
            "OUTCOME_BROKER": self.broker_url,
            "OUTCOME_LOCKS": self.locks_url,
            "OUTCOME_JOURNAL": journal_url,
        }
        self.app = open_client(self.broker_url)
        self.locks = Locks.from_url(self.locks_url)
        self.store = lock_server.client(db=1)
        self.journal = Journal(journal_url)
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        self.store.close()
        self.locks.close()
        close_client(self.app)
        self.server.stop()
        self._stalls.__exit__(None, None, None)

    def worker(
        self, pool: str = "prefork", concurrency: int = 2, *arguments: str, **env: str
    ) -> Worker:
        return Worker(
            APP, pool=pool, concurrency=concurrency, arguments=arguments, env={**self.env, **env}
        )

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult:
        self._stalled_before = self._stalled()
        return self.app.send_task(f"{APP}.{task}", args, **options)

    def info(self, key: str) -> LockInfo | None:
        return self.locks.info(key)

    def wait_held(self, key: str, deadline: float = 20.0) -> LockInfo:
        return wait_until(
            lambda: (i := self.info(key)) and i.holders and i, deadline, what=f"{key} to be held"
        )

    def wait_free(self, key: str, deadline: float = SOON) -> None:
        wait_until(lambda: not self.locks.is_locked(key), deadline, what=f"{key} to be free")

    def wait_wrote(self, key: str, what: str, deadline: float = 20.0) -> None:
        wait_until(
            lambda: self.journal.wrote(key, what),
            deadline,
            what=f"{what!r} in the journal of {key}",
        )

    def wait_runs(self, key: str, count: int, deadline: float = 20.0) -> list[Run]:
        return wait_until(
            lambda: len(runs := self.journal.runs(key)) >= count and runs,
            deadline,
            what=f"{count} runs for {key}",
        )

    def line_up(self, task: str, *args: Any, **options: Any) -> tuple[str, Any, Any]:
        """The first task holds the lock and waits at its gate, the next one stands in line."""
        key = new_key("-".join(("lock", *map(str, args))))
        first = self.send(task, key, *args, **options)
        self.wait_wrote(key, "start")
        following = self.send("follow", key)
        wait_until(
            lambda: (info := self.info(key)) and info.waiters, 20, what="the next one in line"
        )
        return key, first, following

    def check_next_runs(self, key: str, following: Any, within: float = AT_ONCE) -> None:
        """The next one ran, alone, soon after the first one's last sign of life."""
        following.get(timeout=20)
        runs = self.journal.runs(key)
        self.journal.check_exclusive(key)
        took = next(run.began for run in runs if "follow" in run.task) - runs[0].last_sign
        print(f"{key}: free {took * 1000:.0f} ms after the last sign of life")
        assert took < within + self._stalled() - self._stalled_before
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """No key of any lock is there but the fence, logs, and marks and notes that lapse."""
        wait_until(lambda: not self.leftovers(), SOON, what="the locks' keys to be gone")

    def leftovers(self) -> list[str]:
        keys = keys_of_locks(self.store.keys("*"))  # type: ignore[arg-type]
        kept = ("}:log", "}:e:", "}:notices")
        return [key for key in keys if not any(one in key for one in kept)]


def new_key(about: str) -> str:
    return f"{about}-{uuid.uuid4().hex[:8]}"
