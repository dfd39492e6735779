"""One soak run: servers, workers, a publisher, faults, and the verdict when all is quiet again."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.histories.contradiction import Verdict as HistoryVerdict
from tests.histories.contradiction import judge as judge_history
from tests.histories.recorder import VARIABLE as HISTORY_VARIABLE
from tests.histories.requests import History
from tests.histories.requests import read as read_history
from tests.servers.embedded import EmbeddedServer
from tests.soak.faults import REPLY_WITHIN, Faults
from tests.soak.journal import Journal, Verdict, judge
from tests.soak.tasks import (
    KEPT_POLICY,
    POLICIES,
    QUEUE,
    UNPARKED_POLICIES,
    VARIABLE,
    WAKE_QUEUE,
    make_app,
)
from tests.support.worker import Worker

ACCOUNTS = 6
JOBS_PER_SECOND = 3.0
WORKERS = 2
CONCURRENCY = 4
# Seconds without the end of a job, after the last fault. A busy machine takes a minute to start a
# worker, and the messages of the one before it come back after the visibility timeout.
PATIENCE = 180.0
# Where the lock server has messages: those that are parked, and those that are kept.
STORED = ("celery-locks:{0}:parked", "celery-locks:{0}:kept")
# The publisher has its own user, so that closing the workers' connections does not disturb it.
PUBLISHER = "publisher"


@dataclass(frozen=True)
class Outcome:
    """A run's verdict, the faults that it went through, and what was left if it did not drain."""

    locked: bool
    seconds: float
    seed: int
    verdict: Verdict
    faults: dict[str, int]
    drained: bool
    left: str
    history: HistoryVerdict
    kept: frozenset[str]

    @property
    def is_good(self) -> bool:
        """Return True if the locks kept their promises and the jobs came to their end."""
        return self.verdict.excludes and self.drained and self.history.is_linearizable

    def as_dict(self) -> dict[str, Any]:
        return {
            "locked": self.locked,
            "seconds": self.seconds,
            "seed": self.seed,
            "drained": self.drained,
            "faults": self.faults,
            **self.verdict.as_dict(),
            "kept": len(self.kept),
            "kept_lost": len(self.kept.intersection(self.verdict.lost)),
            "history": self.history.as_dict(),
        }


def run(*, locked: bool, seconds: float, seed: int) -> Outcome:
    """Publish jobs under faults for ``seconds``, let the workers finish, and judge the journal."""
    with (
        EmbeddedServer() as broker,
        EmbeddedServer() as lock_server,
        tempfile.TemporaryDirectory(prefix="celery-locks-soak-") as directory,
    ):
        broker.ask("ACL", "SETUSER", PUBLISHER, "on", "nopass", "~*", "&*", "+@all")
        soak = _Soak(broker, lock_server, Path(directory), locked, seed)
        try:
            return soak.run(seconds)
        finally:
            soak.close()


def parks(account: int) -> bool:
    """Return True if jobs of this account may be parked, and have reservations."""
    return bool(account % 2)


def checkable(history: History) -> History:
    """Leave out the locks with reservations: the checker does not know those of the publisher."""
    for account in filter(parks, range(ACCOUNTS)):
        lock = f"account:{account}"
        if history.locks.pop(lock, None):
            history.unchecked[lock] = "reservations"
    return history


class _Soak:
    def __init__(
        self,
        broker: EmbeddedServer,
        lock_server: EmbeddedServer,
        directory: Path,
        locked: bool,
        seed: int,
    ) -> None:
        self._ask_broker = partial(broker.ask, patience=REPLY_WITHIN)
        self._ask_lock_server = partial(lock_server.ask, patience=REPLY_WITHIN)
        self._locked = locked
        self._seed = seed
        self._journal = Journal(directory)
        self._history = directory / "history"
        self._conf: dict[str, Any] = {
            "broker_url": broker.url,
            "locks_url": lock_server.url,
            "directory": str(directory),
            "locked": locked,
        }
        self._published: list[str] = []
        self._kept: list[str] = []  # those whose message the lock server keeps until they start
        self._workers = [self._start_worker() for _ in range(WORKERS)]
        self._faults = Faults(
            random.Random(f"faults {seed}"),
            self._workers,
            self._start_worker,
            broker,
            lock_server,
        )

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()

    def run(self, seconds: float) -> Outcome:
        for worker in self._workers:
            worker.wait_ready()
        until = time.monotonic() + seconds
        publisher = threading.Thread(target=self._publish, args=(until,))
        publisher.start()
        try:
            self._faults.run(until)
        finally:
            publisher.join()
        drained = self._wait_drained()
        left = "" if drained else self._describe_left()
        verdict = judge(self._published, self._journal.lines())
        history = judge_history(checkable(read_history([self._history])))
        faults = dict(self._faults.counts)
        kept = frozenset(self._kept)
        return Outcome(
            self._locked, seconds, self._seed, verdict, faults, drained, left, history, kept
        )

    def _start_worker(self) -> Worker:
        environment = {VARIABLE: json.dumps(self._conf), HISTORY_VARIABLE: str(self._history)}
        queues = ("-Q", f"{QUEUE},{WAKE_QUEUE}")
        worker = Worker(
            "tests.soak.tasks", concurrency=CONCURRENCY, arguments=queues, env=environment
        )
        worker.start()
        return worker

    def _publish(self, until: float) -> None:
        dice = random.Random(f"jobs {self._seed}")
        url = self._conf["broker_url"].replace("redis://", f"redis://{PUBLISHER}:any@")
        app = make_app({**self._conf, "broker_url": url})
        app.finalize()
        with app.connection_for_write() as connection:
            while time.monotonic() < until:
                account = dice.randrange(ACCOUNTS)
                policy = dice.choice(POLICIES if parks(account) else UNPARKED_POLICIES)
                job = f"{policy}-{len(self._published)}"
                arguments = (job, account, dice.uniform(0.02, 0.4))
                app.tasks[policy].apply_async(arguments, connection=connection)
                self._published.append(job)
                if self._locked and policy == KEPT_POLICY:
                    self._kept.append(job)
                time.sleep(dice.expovariate(JOBS_PER_SECOND))
        app.close()

    def _wait_drained(self) -> bool:
        """Wait for as long as jobs end. True when all have, or no message is left."""
        count, gives_up = 0, time.monotonic() + PATIENCE
        while not self._is_drained():
            if (ended := len(self._ended())) > count:
                count, gives_up = ended, time.monotonic() + PATIENCE
            if time.monotonic() > gives_up:
                return False
            self._faults.restart_ended_workers()
            time.sleep(0.5)
        return True

    def _is_drained(self) -> bool:
        return self._ended().issuperset(self._published) or self._has_no_message()

    def _ended(self) -> set[str]:
        return {line["job"] for line in self._journal.lines() if line["what"] == "end"}

    def _describe_left(self) -> str:
        """Say where the messages are, who has the locks, and what the workers logged last."""
        broker, locks = self._ask_broker, self._ask_lock_server
        lines = [f"{queue} {broker('LLEN', queue)} queued" for queue in (QUEUE, WAKE_QUEUE)]
        lines.append(f"unacked {broker('HLEN', 'unacked')}")
        lines += [f"{key} {locks('HLEN', key)}" for key in STORED]
        for account in range(ACCOUNTS):
            held, queue = (f"celery-locks:{{0}}:{kind}:account:{account}" for kind in "hq")
            holders = locks("ZRANGE", held, "0", "-1", "WITHSCORES")
            lines.append(f"account {account}: holders {holders}, {locks('ZCARD', queue)} wait")
        for worker in self._workers:
            lines += ["", *worker.log().splitlines()[-20:]]
        return "\n".join(lines)

    def _has_no_message(self) -> bool:
        """No message is anywhere: asked twice, as one may be between the broker's two places."""
        for _ in range(2):
            if any(self._ask_broker("LLEN", queue) for queue in (QUEUE, WAKE_QUEUE)):
                return False
            if self._ask_broker("HLEN", "unacked"):
                return False
            if any(self._ask_lock_server("HLEN", key) for key in STORED):
                return False
            time.sleep(1.0)
        return True
