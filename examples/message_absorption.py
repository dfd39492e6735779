"""Users' messages pile up; several pods absorb them at a threshold; one pod gets kill -9.

Each pod locks the user, moves a batch to "in flight" in one atomic step, works, and deletes it. A
batch that fails is put back in order. The killed pod's batch is put back when its lock has lapsed.
Nothing is lost, and no two pods work on a user at the same time.

    python -m examples.message_absorption
"""

import os
import signal
import sys
import time
from collections import Counter
from typing import Any

from celery_locks import Locks
from celery_locks.recipes import Buffer
from examples import _run
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory

USERS, MESSAGES, PODS = ("ann", "bob", "eve"), 20, 3


def buffer_on(url: str) -> Buffer:
    return Buffer(Locks.from_url(url), "memory", threshold=5, batch=5, ttl=1.5)


def pod(url: str) -> None:
    """Absorb the messages, those of the users with most of them first, until there are none."""
    buffer = buffer_on(url)
    while users := buffer.users():
        for user in users:
            buffer.absorb(user, lambda messages, user=user: remember(user, messages))
        time.sleep(0.05)


def remember(user: str, messages: list[Any]) -> None:
    """Call an expensive language model and store its answer."""
    _run.note(f"{os.getpid()} begins {user}")
    time.sleep(0.2)
    for message in messages:
        _run.note(f"remembered {user} {message['n']}")


def show() -> None:
    with EmbeddedServer() as server:
        os.environ[_run.NOTEBOOK] = str(new_directory() / "notebook")
        os.environ["PYTHONPATH"] = _run.ROOT
        buffer = buffer_on(server.url)
        ready = Counter[str]()
        for number in range(MESSAGES):
            for user in USERS:
                ready[user] += buffer.push(user, {"n": number}) >= buffer.threshold
        _run.say(f"{len(USERS) * MESSAGES} messages wait; ready to be absorbed: {sorted(ready)}.")
        command = [sys.executable, "-m", "examples.message_absorption", server.url]
        pods = [Child(command, new_directory()) for _ in range(PODS)]
        victim = pods[0]
        begins = f"{victim.pid} begins"
        _run.wait_until(lambda: any(begins in line for line in _run.notes()), "a pod", victim)
        victim.signal(signal.SIGKILL)
        _run.say(f"Pod {victim.pid} gets kill -9 in the middle of its batch.")
        _run.wait_until(lambda: not buffer.users(), "all to be absorbed", pods[1])
        for child in pods:
            child.stop()
        check()


def check() -> None:
    lines = [line.split() for line in _run.notes() if line.startswith("remembered")]
    times = Counter((user, int(number)) for _, user, number in lines)
    lost = len(USERS) * MESSAGES - len(times)
    twice = sum(count > 1 for count in times.values())
    _run.say(f"{len(times)} messages remembered, {lost} lost, {twice} twice.")
    for user in USERS:
        order = [int(number) for _, owner, number in lines if owner == user]
        if order != sorted(order):
            raise SystemExit(f"Error: the messages of {user} are out of order: {order}.")
    _run.say("The messages of each user were in order.")
    if lost or twice:
        raise SystemExit("Error: messages were lost or absorbed twice.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pod(sys.argv[1])
    else:
        _run.main(show)
