"""A pytest plugin that runs the collected tests against one mutant after the other, in one process.

The plan is a file with a list of ``{"id", "path", "text", "tests"}``; each outcome is appended to
the report as one line of JSON. A plan with one entry without a text records which scripts each test
calls and how long it takes, on the original.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from celery_locks.store import scripts
from celery_locks.store.scripts import Script
from tests.support import declared_keys

PLAN, REPORT = "CELERY_LOCKS_MUTANTS_PLAN", "CELERY_LOCKS_MUTANTS_REPORT"
# Seconds for one test; a mutant may make a caller wait for ever.
_TEST_LIMIT = 15.0


class TestTookTooLong(Exception):
    """The mutant made a test hang."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    items = {item.nodeid: item for item in session.items}
    _SessionOnly.session = session
    # It makes every command of a script ask the server once more, and is about other mistakes.
    declared_keys.checked = lambda *more: nullcontext()  # type: ignore[assignment]
    with open(os.environ[REPORT], "a") as report:
        for entry in plan:
            outcome = _record(session.items) if "text" not in entry else _try(entry, items)
            report.write(json.dumps({"id": entry["id"], **outcome}) + "\n")
            report.flush()
    return True


def _try(entry: dict[str, Any], items: dict[str, pytest.Item]) -> dict[str, Any]:
    """Run the tests of a mutant until one fails, twice: the machine may be busy."""
    began = time.monotonic()
    with _mutated(entry["path"], entry["text"]):
        tests = [items[name] for name in entry["tests"] if name in items]
        for item in tests:
            if _fails(item) and _fails(item):
                return {"killed_by": item.nodeid, "seconds": time.monotonic() - began}
    return {"killed_by": "", "seconds": time.monotonic() - began}


@contextmanager
def _mutated(path: str, text: str) -> Iterator[None]:
    """Load this text in place of a file of ``scripts``."""
    read = scripts._read

    def read_mutated(wanted: str) -> str:
        if wanted != path:
            return read(wanted)
        return scripts._INCLUDE.sub(lambda found: scripts._read(f"lib/{found[1]}.lua"), text)

    scripts._read = read_mutated
    _forget_texts()
    try:
        yield
    finally:
        scripts._read = read
        _forget_texts()


def _forget_texts() -> None:
    for script in vars(scripts).values():
        if isinstance(script, Script):
            script._text, script._sha, script._heads = "", "", {}


class _SessionOnly:
    """Stands for the next test: it keeps what the session shares, such as the server."""

    session: pytest.Session

    def listchain(self) -> list[pytest.Session]:
        return [self.session]


def _fails(item: pytest.Item) -> bool:
    item._initrequest()  # type: ignore[attr-defined]  # or it could not run a second time
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, _TEST_LIMIT, 1.0)
    try:
        reports = runtestprotocol(item, log=False, nextitem=_SessionOnly())  # type: ignore[arg-type]
    except TestTookTooLong:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for name in ("last_value", "last_exc", "last_traceback"):
            vars(sys).pop(name, None)
    return any(report.failed for report in reports)


def _on_alarm(number: int, frame: Any) -> None:
    raise TestTookTooLong


def _record(items: list[pytest.Item]) -> dict[str, Any]:
    """Return for each test that passes the scripts that it calls and the seconds it takes."""
    called: set[str] = set()
    by_sha = Script.by_sha

    def noting(self: Script, *args: Any) -> bytes:
        called.add(self.name)
        return by_sha(self, *args)

    Script.by_sha = noting  # type: ignore[method-assign]
    tests = {}
    for item in items:
        called.clear()
        began = time.monotonic()
        if not _fails(item):
            seconds = round(time.monotonic() - began, 2)
            tests[item.nodeid] = {"seconds": seconds, "scripts": sorted(called)}
    Script.by_sha = by_sha  # type: ignore[method-assign]
    return {"tests": tests}
