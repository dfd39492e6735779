"""The recipes with many processes on a real server, and with a kill -9 in the middle of each."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.recipes import Buffer, Tickets, claim, done_work
from tests.servers.embedded import EmbeddedServer
from tests.support.child import ROOT
from tests.support.crowd import ITEMS, KEYS, MESSAGES, USERS
from tests.support.waiting import wait_until

PROCESSES = 16
KILLED = 5


@pytest.fixture
def clean(valkey: EmbeddedServer) -> EmbeddedServer:
    valkey.flush()
    return valkey


@pytest.fixture(params=[0, KILLED], ids=["all live", "some are killed"])
def kills(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def run(server: EmbeddedServer, directory: Path, recipe: str, kills: int) -> list[dict[str, Any]]:
    """What all of them wrote; ``kills`` of them, at most, are killed, each once it is at work."""
    command = [sys.executable, "-m", "tests.support.crowd", server.url, directory, recipe]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, f"{PROCESSES}"], cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    ) as crowd:
        assert crowd.stdout is not None
        pids = [int(pid) for pid in crowd.stdout.readline().split()]
        for pid in pids[:kills]:
            log = directory / str(pid)
            wait_until(
                lambda log=log: (log.exists() and log.stat().st_size) or crowd.poll() is not None,
                30,
                what="one at work",
            )
            if crowd.poll() is not None:
                break  # on a busy machine the others left nothing for this one to do
            time.sleep(random.uniform(0, 0.02))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        out, err = crowd.communicate(timeout=90)
    assert crowd.returncode == 0, f"{out}\n{err}"
    failures = [path.read_text() for path in directory.glob("*.failed")]
    assert not failures, failures[0]
    return [
        {**json.loads(line), "pid": pid}
        for pid in pids
        for line in (directory / str(pid)).read_text().splitlines()
        if line.endswith("}")
    ]


def test_work_is_done_once(clean: EmbeddedServer, tmp_path: Path, kills: int) -> None:
    """A killed run is done by another; what was done is not, but for one death between the two."""
    wrote = run(clean, tmp_path, "once", kills)
    done = Counter(entry["done"] for entry in wrote if "done" in entry)
    assert set(done) == set(range(KEYS))
    assert sum(done.values()) - KEYS <= kills
    results: dict[int, set[int]] = {}
    for entry in wrote:
        if "number" in entry:
            results.setdefault(entry["number"], set()).add(entry["by"])
    assert all(len(by) == 1 for by in results.values()), "all get the result of the one run"
    locks = Locks.from_url(clean.url)
    assert len(list(done_work(locks))) == KEYS


def test_claims_have_one_creator(clean: EmbeddedServer, tmp_path: Path, kills: int) -> None:
    wrote = run(clean, tmp_path, "claims", kills)
    by = {}
    for entry in wrote:
        assert by.setdefault(entry["number"], entry["by"]) == entry["by"]
        assert entry["created"] == (entry["pid"] == entry["by"])
    created = Counter(entry["number"] for entry in wrote if entry["created"])
    assert set(created.values()) == {1}
    assert KEYS - kills <= len(created) <= KEYS


def test_creations_are_one_a_key(clean: EmbeddedServer, tmp_path: Path, kills: int) -> None:
    """The second gets the first's; who dies while it makes one leaves the key to the next."""
    clean_locks = Locks.from_url(clean.url)
    wrote = run(clean, tmp_path, "creations", kills)
    by: dict[int, int] = {}
    for entry in wrote:
        assert by.setdefault(entry["number"], entry["by"]) == entry["by"]
    assert set(by) == set(range(KEYS))
    created = Counter(entry["number"] for entry in wrote if entry["created"])
    assert set(created.values()) == {1}
    assert claim(clean_locks, "made:0", 0) == (False, by[0])


def test_drained_messages_are_nobody_elses(
    clean: EmbeddedServer, tmp_path: Path, kills: int
) -> None:
    """A killed process may have had one batch that it did not get to write down."""
    with clean.client() as client:
        client.rpush("messages", *range(MESSAGES))
    wrote = run(clean, tmp_path, "draining", kills)
    got = [number for entry in wrote for number in entry["got"]]
    assert len(got) == len(set(got))
    assert MESSAGES - 9 * kills <= len(got) <= MESSAGES
    for pid in {entry["pid"] for entry in wrote}:
        mine = [number for entry in wrote if entry["pid"] == pid for number in entry["got"]]
        assert mine == sorted(mine)


def test_absorbed_messages_are_neither_lost_nor_handled_twice(
    clean: EmbeddedServer, tmp_path: Path, kills: int
) -> None:
    """One batch in ten fails, some workers die: every message is absorbed, in order for its user.

    A worker that dies between the end of its work and the word of it has its batch done again.
    """
    count = 400
    locks = Locks.from_url(clean.url)
    buffer = Buffer(locks, "memory")
    for number in range(count):
        buffer.push(f"user-{number % USERS}", number)
    wrote = run(clean, tmp_path, "absorbing", kills)
    done = Counter(number for entry in wrote if "done" in entry for number in entry["done"])
    assert set(done) == set(range(count)), "none is lost"
    twice = [number for number, times in done.items() if times > 1]
    assert len(twice) <= 7 * kills
    assert buffer.users() == {}
    for entry in wrote:
        messages = entry.get("begun", [])
        assert messages == sorted(messages)
        assert {f"user-{number % USERS}" for number in messages} <= {entry["user"]}


def test_stock_is_never_oversold(clean: EmbeddedServer, tmp_path: Path, kills: int) -> None:
    locks = Locks.from_url(clean.url)
    tickets = Tickets(locks)
    tickets.stock("sale", [f"item-{number}" for number in range(ITEMS)])
    wrote = run(clean, tmp_path, "buying", kills)
    sold = tickets.sold("sale")
    assert len(sold) == len(set(sold.values())) == ITEMS - tickets.left("sale")
    assert tickets.left("sale") == 0
    for entry in wrote:
        if entry["item"]:
            assert sold[entry["user"]] == entry["item"]
        else:
            assert entry["user"] not in sold
    took = Counter(entry["user"] for entry in wrote if entry["status"] == "taken")
    assert set(took.values()) == {1}
