"""Runs mutants: which tests concern them, in child processes, and what became of each.

A child is one run of pytest with ``plugin.py``. It starts its own server, which ends with it, so a
mutant that hangs the server costs only that child: it is killed, and the next one goes on.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

from lupa import lua51

from celery_locks.store import scripts
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.plugin import PLAN, REPORT

ROOT = Path(scripts.__file__).parent
CALLS = Path(__file__).parent / "called_scripts.json"
# One store and one API: the scripts are the same for all.
_ONLY = "valkey and not async"
# Seconds without a further outcome, after which a child counts as hanging. One mutant may need all
# tests, and the first one the collection too.
_SILENCE = 420.0
_INCLUDE = re.compile(r"^--include (\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Tried:
    """What became of a mutant; ``killed_by`` is empty if no test noticed it."""

    mutant: Mutant
    killed_by: str


def all_mutants() -> list[Mutant]:
    """Return the mutants of all files; those that Lua does not even compile are left out."""
    paths = sorted([*ROOT.glob("*.lua"), *ROOT.glob("lib/*.lua")])
    found = [it for path in paths for it in mutants_of(_name(path), path.read_text())]
    lua = lua51.LuaRuntime()
    return [mutant for mutant in found if _compiles(lua, mutant)]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _compiles(lua: Any, mutant: Mutant) -> bool:
    # The include lines are comments, and a name that is not declared compiles as a global.
    try:
        lua.compile(mutant.text)
    except lua51.LuaSyntaxError:
        return False
    return True


def scripts_with(path: str) -> set[str]:
    """Return the scripts that contain a file: itself, or those that include it."""
    if not path.startswith("lib/"):
        return {path.removesuffix(".lua")}
    name = path.removeprefix("lib/").removesuffix(".lua")
    includers = [
        _name(other)
        for other in (*ROOT.glob("*.lua"), *ROOT.glob("lib/*.lua"))
        if name in _INCLUDE.findall(other.read_text())
    ]
    return {script for other in includers for script in scripts_with(other)}


def record_calls() -> None:
    """Find out which scripts each contract test calls, and keep it for later runs."""
    outcomes = list(_run_child([{"id": "calls"}], Event()))
    CALLS.write_text(json.dumps(outcomes[0]["tests"], indent=0, sort_keys=True) + "\n")


class Runner:
    """Runs mutants with the tests that call their scripts, the quickest ones first."""

    def __init__(self) -> None:
        self._tests: dict[str, Any] = json.loads(CALLS.read_text())
        self._stop = Event()

    def run(self, mutants: Sequence[Mutant], jobs: int) -> Iterator[Tried]:
        """Try all mutants in ``jobs`` children at once; yield the outcomes as they come."""
        outcomes: SimpleQueue[Tried | None] = SimpleQueue()

        def run_share(share: Sequence[Mutant]) -> None:
            try:
                for tried in self._run_share(share):
                    outcomes.put(tried)
            finally:
                outcomes.put(None)

        with ThreadPoolExecutor(jobs) as pool:
            shares = [pool.submit(run_share, mutants[start::jobs]) for start in range(jobs)]
            try:
                for _ in shares:
                    yield from iter(outcomes.get, None)
            finally:  # also if the caller wants no more
                self._stop.set()
            for share in shares:
                share.result()

    def _run_share(self, mutants: Sequence[Mutant]) -> Iterator[Tried]:
        left = list(mutants)
        while left and not self._stop.is_set():
            plan = [self._entry(mutant) for mutant in left]
            count = 0
            for outcome in _run_child(plan, self._stop):
                yield Tried(left[count], outcome["killed_by"])
                count += 1
            if (
                count < len(left) and not self._stop.is_set()
            ):  # the child hung or crashed at this one
                yield Tried(left[count], "(the test run did not end)")
                count += 1
            left = left[count:]

    def _entry(self, mutant: Mutant) -> dict[str, Any]:
        concerned = scripts_with(mutant.path)
        tests = [name for name, it in self._tests.items() if concerned & set(it["scripts"])]
        tests.sort(key=lambda name: self._order(name, concerned))
        return {"id": mutant.id, "path": mutant.path, "text": mutant.text, "tests": tests}

    def _order(self, name: str, concerned: set[str]) -> tuple[bool, int, float]:
        """Order by what finds a mistake soon: tests that call little else, and quick ones."""
        test = self._tests[name]
        return test["seconds"] > 2.0, len(set(test["scripts"]) - concerned), test["seconds"]


def _run_child(plan: list[dict[str, Any]], stop: Event) -> Iterator[dict[str, Any]]:
    """Run a plan in one process; yield its outcomes, fewer than planned if it had to be killed."""
    with tempfile.TemporaryDirectory() as folder:
        plan_file, report = Path(folder, "plan.json"), Path(folder, "report.jsonl")
        plan_file.write_text(json.dumps(plan))
        report.touch()
        arguments = ["-q", "-p", "tests.mutants.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
        arguments += ["-W", "ignore", "-p", "no:unraisableexception", "-p", "no:threadexception"]
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments, "-k", _ONLY, "tests/contract"],
            env={**os.environ, PLAN: str(plan_file), REPORT: str(report)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield from _outcomes(child, report, stop)
        finally:
            child.kill()
            child.wait()


def _outcomes(
    child: subprocess.Popen[bytes], report: Path, stop: Event
) -> Iterator[dict[str, Any]]:
    seen, last = 0, time.monotonic()
    while True:
        has_ended = child.poll() is not None
        lines = report.read_text().splitlines()
        for line in lines[seen:]:
            yield json.loads(line)
            last = time.monotonic()
        seen = len(lines)
        if has_ended or stop.is_set() or time.monotonic() - last > _SILENCE:
            return
        time.sleep(0.2)
