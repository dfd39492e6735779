"""Many processes at one recipe, each writing down what it got.

    python -m tests.support.crowd URL DIRECTORY RECIPE PROCESSES

One Python that forks. It prints the pids, and ends when all have ended. A line of a process's file
is one thing it got; one that is killed has written all it knew of, as each line is flushed first.
"""

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from celery_locks import Locks
from celery_locks.recipes import Buffer, Tickets, claim, claim_or_create, drain, idempotent

KEYS, ITEMS, MESSAGES, USERS = 60, 100, 2000, 5
TTL = 6.0  # a third of it is what a call may take, on a busy machine too


def note(log: TextIO, **got: Any) -> None:
    log.write(json.dumps(got) + "\n")
    log.flush()


def once(locks: Locks, log: TextIO) -> None:
    @idempotent(locks, key="once:{number}", wait=20, lock_ttl=TTL)
    def work(number: int) -> int:
        note(log, begun=number)
        time.sleep(random.uniform(0, 0.01))
        note(log, done=number)
        return os.getpid()

    for number in shuffled(KEYS):
        note(log, number=number, by=work(number))


def claims(locks: Locks, log: TextIO) -> None:
    for number in shuffled(KEYS):
        created, value = claim(locks, f"claim:{number}", os.getpid())
        note(log, number=number, created=created, by=value)


def creations(locks: Locks, log: TextIO) -> None:
    def factory() -> int:
        time.sleep(random.uniform(0, 0.01))
        return os.getpid()

    for number in shuffled(KEYS):
        created, value = claim_or_create(locks, f"made:{number}", factory, wait=30, lock_ttl=TTL)
        note(log, number=number, created=created, by=value)


def draining(locks: Locks, log: TextIO) -> None:
    while batch := drain(locks, "messages", random.randint(1, 9)):
        note(log, got=[int(message) for message in batch])


def absorbing(locks: Locks, log: TextIO) -> None:
    buffer = Buffer(locks, "memory", batch=7, ttl=TTL)
    while users := buffer.users():
        user = random.choice(list(users))

        def work(messages: list[Any], user: str = user) -> None:
            note(log, begun=messages, user=user)
            time.sleep(random.uniform(0, 0.01))
            if random.random() < 0.1:
                raise OSError("no luck")
            note(log, done=messages, user=user)

        try:
            buffer.absorb(user, work, wait=random.choice([None, 0.1]))
        except OSError:
            pass


def buying(locks: Locks, log: TextIO) -> None:
    tickets = Tickets(locks)
    for _ in range(200):
        user = f"user-{random.randrange(400)}"
        taken = tickets.take("sale", user)
        note(log, user=user, item=taken.item, status=taken.status)


def shuffled(count: int) -> list[int]:
    numbers = list(range(count))
    random.shuffle(numbers)
    return numbers


RECIPES: dict[str, Callable[[Locks, TextIO], None]] = {
    "once": once,
    "claims": claims,
    "creations": creations,
    "draining": draining,
    "absorbing": absorbing,
    "buying": buying,
}


def main(url: str, directory: str, recipe: str, count: str) -> None:
    locks = Locks.from_url(url)
    pids = [os.fork() or _child(locks, Path(directory), recipe) for _ in range(int(count))]
    print(*pids, flush=True)
    for pid in pids:
        os.waitpid(pid, 0)


def _child(locks: Locks, directory: Path, recipe: str) -> int:
    random.seed()
    try:
        with (directory / str(os.getpid())).open("w") as log:
            RECIPES[recipe](locks, log)
    except Exception:
        (directory / f"{os.getpid()}.failed").write_text(traceback.format_exc())
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
