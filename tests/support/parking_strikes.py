"""Kill a process at a line of parking or of waking, let two others finish, and judge.

    python -m tests.support.parking_strikes <url> <scenario> <how many>

Each strike forks a process that handles one message as a worker does, with Celery's own request and
the messages of the real broker, and kills it with SIGKILL at the n-th line. Then time passes: the
broker delivers again what was not acknowledged, leases of the dead process lapse, and what is due
is due. Two processes finish. Prints a JSON object; ``failures`` is empty if every message ran, no
two at once, and nothing is left on the server.

A line counts where it runs first and where it runs last. ``how many`` are spread evenly over all of
them, beginning at a random one; 0 means all. The scenarios are the functions below.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import redis
from celery import Celery
from celery.worker.request import Request

from celery_locks import Holder, LockedTask
from celery_locks.integration.app_locks import locks_of
from celery_locks.integration.waking import waker_of
from celery_locks.types import LockSpec

NAME, HOLDER = "job", "holder"
ROOT = "celery-locks:{0}:"
ENDED, INSIDE, TWO_AT_ONCE, STOP = "test-ended", "test-inside", "test-two", "test-stop"
LONGEST = 60.0
# Lines that count: those of the package, and Celery's way from a message to its acknowledgement.
STRUCK = ("/celery_locks/", "/celery/worker/request.py")
SKIPPED = ("/store/scripts/", "/settings.py", "/options.py", "/validation.py", "/logs.py")


def make_app(url: str) -> Celery:
    app = Celery("strikes", broker=url, set_as_current=True)
    app.conf.update(locks_url=url, locks_ttl=600, task_ignore_result=True, task_acks_late=True)
    options: dict[str, Any] = {"base": LockedTask, "bind": True, "shared": False, "lock_key": NAME}

    def body(self: Any) -> None:
        with redis.Redis.from_url(url) as client:
            if client.incr(INSIDE) > 1:
                client.rpush(TWO_AT_ONCE, self.request.id)
            self.lock.check()
            client.decr(INSIDE)
            client.sadd(ENDED, self.request.id)

    app.task(name="work", lock_on_conflict="park", **options)(body)
    app.task(name="published", lock_on_conflict="park", lock_scope="queued+running", **options)(
        body
    )
    app.finalize()
    return app


class Process:
    """What a forked process does with an app of its own."""

    def __init__(self, url: str) -> None:
        self.app = make_app(url)
        self.redis = redis.Redis.from_url(url)
        self._channel = self.app.connection_for_read().default_channel
        locks_of(self.app).is_locked(NAME)  # what is made at first use is there

    def handle_message(self) -> bool:
        """Run the next message to its acknowledgement, as the solo pool does; False if none."""
        message = self._channel.basic_get("celery")
        if message is None:
            return False
        Request(
            message,
            app=self.app,
            hostname="test",
            task=self.app.tasks[message.headers["task"]],
            on_ack=message.ack_log_error,
            on_reject=message.reject_log_error,
            connection_errors=(),
            body=message.body,
            headers=message.headers,
            decoded=False,
        ).execute()
        return True

    def finish(self) -> None:
        while not self.redis.exists(STOP):
            waker_of(self.app).wake_due()
            if not self.handle_message():
                time.sleep(0.01)


def park_message(process: Process) -> None:
    process.handle_message()


def wake_by_release(process: Process) -> None:
    process.handle_message()


def wake_by_poll(process: Process) -> None:
    waker_of(process.app).wake_due()


def publish_call(process: Process) -> None:
    process.app.tasks["published"].apply_async(task_id="third")


class Judge:
    """Prepares the server for each strike, and looks at it afterwards."""

    def __init__(self, url: str, scenario: str) -> None:
        self.url = url
        self.scenario = scenario
        self.redis = redis.Redis.from_url(url)

    def prepare(self) -> set[str]:
        """Bring the server to the state before the strike; return the ids that have to run."""
        self.redis.flushall()
        self._in_process(self._prepare)
        return {"first", "second"}

    def _prepare(self, process: Process) -> None:
        task = "published" if self.scenario == "publish_call" else "work"
        send = process.app.tasks[task].apply_async
        if task == "published":
            for task_id in ("first", "second"):
                send(task_id=task_id)
            return
        locks = locks_of(process.app)
        locks.perform(locks.commands.acquire(LockSpec(NAME, 600.0), HOLDER, Holder()))
        for task_id in ("first", "second"):
            send(task_id=task_id)
        if self.scenario == "park_message":
            return
        while process.handle_message():
            pass  # both are parked
        if self.scenario == "wake_by_poll":
            self._lapse(HOLDER)
            self._make_due()
        else:
            locks.perform(locks.commands.release(NAME, HOLDER))
            waker_of(process.app).wake_due()

    def find_lines(self) -> list[int]:
        """Run once without a strike: the numbers of the lines, counted as they run."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for _ in range(2):  # the first one loads the scripts into the server
            self.prepare()
            lines = self._trace(0)
        for number, where in enumerate(lines.split("\n"), start=1):
            first.setdefault(where, number)
            last[where] = number
        return sorted({*first.values(), *last.values()})

    def strike(self, line: int) -> str:
        """Kill a process at this line: where it was. Empty if it came to its end before."""
        lines = self._trace(line).split("\n")
        return lines[-1] if len(lines) == line else ""

    def _trace(self, line: int) -> str:
        """Run the scenario up to this line, to its end if 0; return every line that ran."""
        action: Callable[[Process], None] = globals()[self.scenario]
        read, write = os.pipe()

        def traced(process: Process) -> None:
            lines: list[str] = []

            def look(frame: FrameType, event: str, _: Any) -> Any:
                path = frame.f_code.co_filename
                if not any(it in path for it in STRUCK) or any(it in path for it in SKIPPED):
                    return None
                if event == "line":
                    lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                    if len(lines) == line:
                        send()
                        os.kill(os.getpid(), signal.SIGKILL)
                return look

            def send() -> None:
                sys.settrace(None)
                with os.fdopen(write, "w") as pipe:
                    pipe.write("\n".join(lines))

            os.close(read)
            sys.settrace(look)
            try:
                action(process)
            finally:
                send()

        pid = self._start(traced)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        return text

    def let_time_pass(self) -> None:
        self.redis.delete(INSIDE)
        for member in self.redis.zrange(f"{ROOT}h:{NAME}", 0, -1):
            if member[:1] not in (b"k", b"q", b"~"):
                self._lapse(member.decode())
        self._make_due()
        for tag, stored in self.redis.hgetall("unacked").items():
            payload = json.loads(stored)[0]
            payload["headers"]["redelivered"] = True
            payload["properties"]["delivery_info"]["redelivered"] = True
            self.redis.rpush("celery", json.dumps(payload))
            self.redis.hdel("unacked", tag)

    def finish(self, ids: set[str]) -> str:
        """Let two processes finish; return what is wrong at the end."""
        pids = [self._start(Process.finish) for _ in range(2)]
        ends = time.monotonic() + LONGEST
        while not self._is_finished(ids) and time.monotonic() < ends:
            time.sleep(0.01)
        self.redis.set(STOP, 1)
        for pid in pids:
            os.waitpid(pid, 0)
        wrong = []
        if missing := ids - self._ended():
            wrong.append(f"{sorted(missing)} did not run")
        if two := self.redis.lrange(TWO_AT_ONCE, 0, -1):
            wrong.append(f"two at once: {two}")
        if left := self._left():
            wrong.append(f"left on the server: {left}")
        return ", ".join(wrong)

    def _is_finished(self, ids: set[str]) -> bool:
        return ids <= self._ended() and not self._left()

    def _ended(self) -> set[str]:
        return {it.decode() for it in self.redis.smembers(ENDED)}

    def _left(self) -> list[str]:
        keys = ("celery", "unacked", f"{ROOT}parked", f"{ROOT}h:{NAME}", f"{ROOT}q:{NAME}")
        keys += (f"{ROOT}records", f"{ROOT}index")
        due = [it.decode() for it in self.redis.zrange(f"{ROOT}due", 0, -1)]
        return [
            *(key for key in keys if self.redis.exists(key)),
            *(it for it in due if not it.startswith("n")),  # names are forgotten at a later poll
        ]

    def _make_due(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            for member in client.zrange(f"{ROOT}due", 0, -1):
                client.zadd(f"{ROOT}due", {member: 0}, xx=True)

    def _lapse(self, token: str) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.zadd(f"{ROOT}h:{NAME}", {token: (time.time() - 1) * 1000}, xx=True)

    def _in_process(self, action: Callable[[Process], None]) -> None:
        os.waitpid(self._start(action), 0)

    def _start(self, action: Callable[[Process], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            action(Process(self.url))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(0)


def main(url: str, scenario: str, how_many: int) -> None:
    judge, failures, began = Judge(url, scenario), [], time.monotonic()
    lines = judge.find_lines()
    step = max(1, len(lines) // how_many) if how_many else 1
    chosen, strikes = lines[random.randrange(step) :: step], 0
    for line in [*chosen, lines[-1] + 1000]:
        ids = judge.prepare()
        where = judge.strike(line)
        judge.let_time_pass()
        if not where and scenario == "publish_call":
            ids |= {"third"}
        if wrong := judge.finish(ids):
            failures.append(f"line {line}, {where or 'no strike'}: {wrong}")
        strikes += bool(where)
    seconds = round(time.monotonic() - began, 1)
    answer = {"strikes": strikes, "lines": len(lines), "seconds": seconds, "failures": failures}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
