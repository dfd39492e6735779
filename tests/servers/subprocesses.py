"""Child processes that cannot outlive us, and the directories they work in.

What ends a child, whichever comes first: `stop` or `kill`; the end of our interpreter (atexit,
so Ctrl-C too); the kernel, when we die without a word (PR_SET_PDEATHSIG, Linux only). Each child
leads a process group of its own, so the terminal's Ctrl-C reaches us and not the child.

Knows nothing about Redis; what the child is and when it is ready is the caller's business.
"""

import atexit
import fcntl
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.servers.fork_server import ForkedProcess, Process, program_of

DIRECTORY_VARIABLE = "CELERY_LOCKS_SERVERS_DIR"
"""Names the directory under which children get theirs; the system's temporary one by default."""

_PREFIX = "celery-locks-servers-"
_OWNER_FILE = "owner"

# Runs in the child and becomes the server by exec, so pid and parent stay. It stands here and not
# in a preexec_fn because running Python between fork and exec can deadlock when we have threads.
# The parent is asked for after prctl: had it died before, no signal would ever come.
_LEASH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One running child process, output going to a log file in its directory."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self.log_path = directory / "log"
        with self.log_path.open("ab") as log:
            self._process = _in_lasting_thread(lambda: _spawn(command, directory, log))
        self._siblings = _owner().children
        self._siblings.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole group; nothing when it is gone already."""
        if self.is_running:
            os.killpg(self.pid, number)

    def stop(self, patience: float = 5.0) -> None:
        """Ask it to end, insist after `patience` seconds. A paused child is woken to hear it."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
        self._siblings.discard(self)

    def kill(self) -> None:
        """End it with SIGKILL and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._siblings.discard(self)

    def log(self, lines: int = 20) -> str:
        """The last lines it wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def new_directory() -> Path:
    """A fresh directory for one child, gone at our end; if we are killed, the next one sweeps."""
    return Path(tempfile.mkdtemp(dir=_owner().root))


def _spawn(command: Sequence[str], directory: Path, log: IO[bytes]) -> Process:
    program = program_of(command, directory)
    if program:
        return ForkedProcess(program, os.devnull, log.name, log.name)
    return subprocess.Popen(
        [*_leash(), *command],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


def _leash() -> list[str]:
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())]


class _Owner:
    """What this process owns: its children and the directory they live under.

    One per process: after a fork the children stay the parent's, and the fork starts anew.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.children: set[Child] = set()
        parent = Path(os.environ.get(DIRECTORY_VARIABLE) or tempfile.gettempdir())
        _sweep(parent)
        self.root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Held until we die, however we die: its being free tells others that we are gone.
        self._alive = (self.root / _OWNER_FILE).open("w")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        atexit.register(self.end)

    def end(self) -> None:
        if os.getpid() != self.pid:
            return
        for child in list(self.children):
            child.kill()
        shutil.rmtree(self.root, ignore_errors=True)
        self._alive.close()


_current: _Owner | None = None
_guard = threading.Lock()


def _owner() -> _Owner:
    global _current
    with _guard:
        if _current is None or _current.pid != os.getpid():
            _current = _Owner()
        return _current


def _sweep(parent: Path) -> None:
    """Remove the directories of owners that were killed before they could tidy."""
    for root in parent.glob(_PREFIX + "*"):
        try:
            if _is_orphaned(root):
                shutil.rmtree(root, ignore_errors=True)
        except OSError:
            continue  # another user's, or just swept by somebody else


def _is_orphaned(root: Path) -> bool:
    # The minute is for an owner that has made its directory and not yet locked it.
    if time.time() - root.stat().st_mtime < 60:
        return False
    with (root / _OWNER_FILE).open("r") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


_Job = Callable[[], Process]


def _in_lasting_thread(job: _Job) -> Process:
    """Run `job` in a thread that lives as long as the process.

    PDEATHSIG comes at the death of the *thread* that made the child. The main thread lasts; any
    other may end before its server should, so those hand the job to a thread kept for this.
    """
    if threading.current_thread() is threading.main_thread():
        return job()
    return _spawner().run(job)


class _Spawner:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[_Job, queue.SimpleQueue[object]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="celery-locks-spawner", daemon=True).start()

    def run(self, job: _Job) -> Process:
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._jobs.put((job, answer))
        result = answer.get()
        if isinstance(result, subprocess.Popen | ForkedProcess):
            return result
        assert isinstance(result, BaseException)
        raise result

    def _work(self) -> None:
        while True:
            job, answer = self._jobs.get()
            try:
                answer.put(job())
            except Exception as error:
                answer.put(error)


_current_spawner: _Spawner | None = None


def _spawner() -> _Spawner:
    global _current_spawner
    with _guard:
        if _current_spawner is None or _current_spawner.pid != os.getpid():
            _current_spawner = _Spawner()
        return _current_spawner
