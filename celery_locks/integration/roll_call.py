"""Asking Celery's workers whether they are there and what they run; an answer, never an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kombu.exceptions import OperationalError

PATIENCE = 1.5


@dataclass(frozen=True, slots=True)
class RollCall:
    """Who answered, with the tasks that each runs and their pids.

    ``trouble`` says why nobody could be asked; then that a worker is missing here means nothing.
    """

    running: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    trouble: str = ""

    def answered(self, worker: str) -> bool:
        return worker in self.running

    def merged(self, later: RollCall) -> RollCall:
        """Both together: who answered once is there."""
        return RollCall({**self.running, **later.running}, self.trouble or later.trouble)


def call_the_roll(
    app: Any, workers: Iterable[str] | None = None, timeout: float = PATIENCE
) -> RollCall:
    """Ask all workers, or those named; with names it ends as soon as all of them have answered."""
    if not app.conf.worker_enable_remote_control:
        return RollCall(trouble="worker_enable_remote_control is off, so no worker can be asked")
    names = None if workers is None else sorted(workers)
    if names == []:
        return RollCall()
    ask: Any = {"destination": names, "limit": len(names)} if names else {}
    return _asked(app, lambda inspect: inspect.active(), timeout, **ask)


def _asked(app: Any, question: Any, timeout: float, **ask: Any) -> RollCall:
    with app.connection_for_write(connect_timeout=timeout) as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            inspect = app.control.inspect(connection=connection, timeout=timeout, **ask)
            answers = question(inspect) or {}
        except (OperationalError, OSError, *connection.connection_errors) as error:
            return RollCall(trouble=f"the broker gives no answer: {error}")
    return RollCall({worker: _pids(tasks) for worker, tasks in answers.items()})


def _pids(tasks: Any) -> dict[str, int | None]:
    if not isinstance(tasks, list):  # {"error": …}: it is there, and that is all we know
        return {}
    return {task["id"]: task.get("worker_pid") for task in tasks if "id" in task}


def whereabouts(app: Any, task_id: str, timeout: float = PATIENCE) -> list[tuple[str, str]]:
    """(worker, "active" or "reserved" or "scheduled") for each worker that has such a message."""
    found: list[tuple[str, str]] = []

    def question(inspect: Any) -> Any:
        answers = inspect.query_task(task_id) or {}
        found.extend(
            (worker, tasks[task_id][0])
            for worker, tasks in answers.items()
            if isinstance(tasks, dict) and task_id in tasks
        )

    if app.conf.worker_enable_remote_control:
        _asked(app, question, timeout)
    return found


def outcome(app: Any, task_id: str) -> tuple[str, Any]:
    """State and value of a task's result; ("", None) where there is no backend, or no answer."""
    result = app.AsyncResult(task_id)
    try:
        meta = result.backend.get_task_meta(task_id)
    except Exception:  # noqa: BLE001 (each backend has its own errors, and none is a lock's matter)
        return "", None
    return meta.get("status") or "", meta.get("result")
