"""What the examples share: a server, a worker, and a notebook that tasks write to.

Each example is an ordinary Celery app that would run on any Redis. Here it gets a server of its
own: Celery reads CELERY_BROKER_URL and CELERY_RESULT_BACKEND, and the locks use the same server.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child, new_directory

ROOT = str(Path(__file__).parents[1])
NOTEBOOK = "EXAMPLE_NOTEBOOK"
_began = time.monotonic()


def main(show: Callable[[], None]) -> None:
    """Run an example on a server of its own; Ctrl-C stops everything, without a traceback."""
    sys.unraisablehook = _repeat_ignored_interrupt
    try:
        # Around everything: Celery unsubscribes from results when they are garbage collected.
        with EmbeddedServer() as server:
            os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = server.url
            os.environ[NOTEBOOK] = str(new_directory() / "notebook")
            os.environ["PYTHONPATH"] = ROOT
            show()
    except KeyboardInterrupt:
        print("\nStopped.")
        raise SystemExit(130) from None


def _repeat_ignored_interrupt(unraisable: Any) -> None:
    """Interrupt again if Ctrl-C came during a ``__del__``, where Python prints and ignores it."""
    if unraisable.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        threading.Timer(0.01, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


@contextmanager
def running(app: Celery, *options: str, beat: bool = False) -> Iterator[Child]:
    """Run a prefork worker of the app, and its beat on request, until the block ends."""
    with ExitStack() as stack:
        app.conf.broker_connection_retry_on_startup = True
        worker = _celery(stack, app, "worker", "--without-gossip", "--without-mingle", *options)
        wait_until(lambda: " ready." in worker.log(1000), "the worker to be ready", worker)
        if beat:
            _celery(stack, app, "beat", "--schedule", str(new_directory() / "schedule"))
        yield worker


@contextmanager
def running_beat(app: Celery) -> Iterator[Child]:
    """Run one beat of the app, beside others, until the block ends."""
    with ExitStack() as stack:
        yield _celery(stack, app, "beat", "--pidfile=")


def _celery(stack: ExitStack, app: Celery, command: str, *options: str) -> Child:
    python = [sys.executable, "-W", "ignore", "-m", "celery", "-A", str(app.main)]
    child = Child([*python, command, "--loglevel=INFO", *options], new_directory())
    stack.callback(_stop, child)
    return child


def _stop(child: Child, patience: float = 5.0) -> None:
    """Send SIGTERM to the main process only, which stops its children."""
    if child.is_running:
        os.kill(child.pid, signal.SIGTERM)
    ends = time.monotonic() + patience
    while child.is_running and time.monotonic() < ends:
        time.sleep(0.02)
    child.kill()


def wait_until(
    condition: Callable[[], Any], what: str, child: Child | None = None, seconds: float = 15.0
) -> Any:
    """Wait until ``condition`` returns a true value, and return it; exit if it does not in time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if value := condition():
            return value
        time.sleep(0.01)
    log = f"\nIts log ends:\n{child.log()}" if child else ""
    raise SystemExit(f"Waited {seconds:g} s for {what}.{log}")


def say(sentence: str) -> None:
    print(f"{time.monotonic() - _began:6.2f} s  {sentence}", flush=True)


def note(line: str) -> None:
    """Write a line to the notebook, in order; called by tasks."""
    path = os.environ.get(NOTEBOOK)
    if path:
        with open(path, "a") as notebook:
            notebook.write(f"{line}\n")


def notes() -> list[str]:
    """Return the lines that the tasks have written so far."""
    path = Path(os.environ[NOTEBOOK])
    return path.read_text().splitlines() if path.exists() else []
