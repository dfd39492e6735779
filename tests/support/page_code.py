"""The code of a documentation page, run by real workers and processes on a server of its own.

A page marks a block with ``<!-- snippet: file NAME -->``; ``Bench`` writes these blocks, as they
stand on the page, to a directory. Only the server's address is replaced, and the constants that a
test names, such as a ttl of an hour. The work that the page's tasks call is ``work.py`` below: it
notes in a file that it runs, and ends when the test says so. No test depends on how long something
takes.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from celery.result import AsyncResult

from celery_locks import Locks
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory
from tests.support.client_app import close_client, open_client
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
_BLOCK = re.compile(
    r"<!-- snippet: file (\S+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)

_WORK = """
import ctypes, os, time, uuid
from pathlib import Path

HERE = Path(__file__).parent


def note(text):
    with open(HERE / "journal", "a") as journal:
        journal.write(text + "\\n")


def work(key):
    run = uuid.uuid4().hex
    note(f"start {run} {key} {os.getpid()}")
    if (HERE / "hold_the_interpreter_lock").exists():
        ctypes.PyDLL(None).usleep(20_000_000)
    ends = time.monotonic() + 120
    while not (HERE / run).exists():
        if time.monotonic() > ends:
            raise TimeoutError("nobody ended this run")
        time.sleep(0.005)
    note(f"end {run} {key} {os.getpid()}")


import_feed = rebuild_pages = build_report = call_api = copy_stock = work
send_invoices = write_export = work
"""

_SETTINGS = """
SECRET_KEY = "x"
REDIS = "django.core.cache.backends.redis.RedisCache"
CACHES = {{"default": {{"BACKEND": REDIS, "LOCATION": {url!r}}}}}
"""


class Run(NamedTuple):
    """One call of the work: it runs until ``Bench.finish``."""

    id: str
    key: str
    pid: int


class Bench:
    """A server, the files of a page beside the work that they call, and an app that sends tasks.

    ``module`` is the file that is tested; ``conf`` are settings for its app; ``constants`` replace
    constants in its text, each of which has to be there exactly once.
    """

    def __init__(
        self, page: Path, module: str, constants: dict[str, str], conf: dict[str, Any]
    ) -> None:
        self._page, self.module, self._constants, self._conf = page, module, constants, conf
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(EmbeddedServer())
            self.directory = new_directory()
            self._write_files()
            self.client = self.server.client(decode_responses=True)
            stack.callback(self.client.close)
            self.locks = Locks.from_url(self.server.url)
            stack.callback(self.locks.close)
            self.app = open_client(self.server.url)
            stack.callback(close_client, self.app)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _write_files(self) -> None:
        blocks = dict(_BLOCK.findall(self._page.read_text()))
        text = blocks[f"{self.module}.py"]
        for constant, value in self._constants.items():
            text, found = re.subn(rf"^{constant} = \d+", f"{constant} = {value}", text, flags=re.M)
            assert found == 1, f"{self._page.name} sets {constant} {found} times"
        text = text.replace("redis://localhost:6379/0", self.server.url)
        assert self.server.url in text
        files = {
            f"{self.module}.py": text,
            "work.py": _WORK,
            "settings.py": _SETTINGS.format(url=self.server.url),
            # What the worker is started with: the page's app, with settings for the test.
            "configured.py": f"from {self.module} import app\napp.conf.update({self._conf!r})\n",
            "journal": "",
        }
        for name, content in files.items():
            (self.directory / name).write_text(content)

    def _command(self, *arguments: str, **env: str) -> list[str]:
        path = os.pathsep.join([str(self.directory), str(ROOT)])
        words = {"PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "settings", **env}
        # Celery warns of its own future; that is not what is tested here.
        settings = [f"{name}={value}" for name, value in words.items()]
        return ["/usr/bin/env", "PYTHONWARNINGS=ignore", *settings, sys.executable, *arguments]

    @contextmanager
    def worker(self, concurrency: int = 3, queue: str = "celery") -> Iterator[Child]:
        """A prefork worker of the page's app."""
        celery = self._command(
            *("-m", "celery", "-A", "configured", "worker", "-l", "INFO", "-Q", queue),
            *("-c", str(concurrency), "-n", f"{queue}@bench", "--prefetch-multiplier", "1"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        )
        child = Child(celery, new_directory())
        try:
            wait_until(lambda: " ready." in child.log(1000), PATIENCE, what="a worker to be ready")
            yield child
        except BaseException:
            print(f"--- worker {child.pid}:\n{child.log(200)}")
            raise
        finally:
            child.signal(signal.SIGCONT)
            child.kill()

    def python(self, code: str, **env: str) -> Any:
        """Run code in a process of its own, as a web server would; the value that it prints."""
        done = subprocess.run(
            self._command("-c", f"import configured, json\n{code}", **env),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def call(self, expression: str, **env: str) -> Any:
        """The value of an expression of the page's module, such as ``view('ann')``."""
        module = self.module
        return self.python(f"import {module}\nprint(json.dumps({module}.{expression}))", **env)

    @contextmanager
    def process(self, expression: str) -> Iterator[Child]:
        """Evaluate an expression of the page's module in a process; it ends with the block."""
        code = f"import configured, {self.module}\n{self.module}.{expression}"
        child = Child(self._command("-c", code), new_directory())
        try:
            yield child
        finally:
            child.kill()

    def send(self, task: str, key: str | int, queue: str = "celery") -> AsyncResult:
        return self.app.send_task(f"{self.module}.{task}", (key,), queue=queue)

    def _journal(self, what: str) -> list[Run]:
        lines = [line.split() for line in (self.directory / "journal").read_text().splitlines()]
        return [Run(run, key, int(pid)) for kind, run, key, pid in lines if kind == what]

    def runs(self) -> list[Run]:
        """All that have started, in order."""
        return self._journal("start")

    def running(self) -> list[Run]:
        """Those that have started and not ended; a killed run ends as well."""
        ended = self._journal("end")
        return [run for run in self.runs() if run not in ended and is_alive(run.pid)]

    def wait_run(self, number: int) -> Run:
        """Return the run with this number, from 1, when it has started."""
        wait_until(lambda: len(self.runs()) >= number, PATIENCE, what=f"run {number} to start")
        return self.runs()[number - 1]

    def finish(self, *runs: Run) -> None:
        """Let these runs end, and wait until they have."""
        for run in runs:
            (self.directory / run.id).touch()
        wait_until(lambda: set(runs) <= set(self._journal("end")), PATIENCE, what="the runs to end")

    def wait_state(self, result: AsyncResult, state: str) -> AsyncResult:
        wait_until(
            lambda: result.state == state, PATIENCE, what=f"state {state}, it is {result.state}"
        )
        return result

    def get(self, result: AsyncResult) -> Any:
        return result.get(timeout=PATIENCE)

    def hold_the_interpreter_lock(self) -> None:
        """Make every later run hold the interpreter lock for twenty seconds."""
        (self.directory / "hold_the_interpreter_lock").touch()

    def wait_lapsed(self, key: str) -> None:
        """Wait until a hand-made lock has lapsed on the server."""
        wait_until(lambda: not self.client.exists(key), PATIENCE, what=f"{key} to lapse")

    def let_lapse(self, key: str) -> None:
        """Let the hours pass that a hand-made lock has left."""
        assert self.client.pexpire(key, 1)
        self.wait_lapsed(key)

    def wait_beyond_ttl(self, name: str) -> None:
        """Wait until a lock is past the expiry it was granted with: only renewal explains that."""
        [holder, *_] = wait_until(lambda: self.locks.holders(name), PATIENCE, what="a holder")
        granted_until = holder.acquired_at + holder.ttl

        def is_beyond() -> bool:
            seconds, _ = self.client.time()
            return seconds > granted_until + 1

        wait_until(is_beyond, PATIENCE, what="the lock to be past its first expiry")
