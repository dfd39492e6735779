"""Asking Celery's workers whether they are there and what they run; an answer, never an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError

PATIENCE = 1.5
_UNASKABLE = "worker_enable_remote_control is off, so no worker can be asked"
_IDS_AT_ONCE = 500
_LONGEST = 10.0


class Arguments(NamedTuple):
    """A task's arguments as Celery shows them: the text that ``argsrepr`` and its pair hide in."""

    args: str
    kwargs: str


@dataclass(frozen=True, slots=True)
class ActiveReport:
    """Who answered, with the tasks that each runs and their pids.

    ``trouble`` says why nobody could be asked; then that a worker is missing here means nothing.
    ``asked`` are the workers that were asked, None for all; ``at`` is the lock server's time when
    they were, None for just now. ``arguments`` has those of the running tasks, if asked for.
    """

    running: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    trouble: str = ""
    asked: frozenset[str] | None = None
    at: float | None = None
    arguments: Mapping[str, Arguments] = field(default_factory=dict)

    def answered(self, worker: str) -> bool:
        return worker in self.running

    def merged(self, later: ActiveReport) -> ActiveReport:
        """Both together: who answered once is there."""
        return replace(
            self,
            running={**self.running, **later.running},
            trouble=self.trouble or later.trouble,
            arguments={**self.arguments, **later.arguments},
        )


def inspect_active(
    app: Any,
    workers: Iterable[str] | None = None,
    timeout: float = PATIENCE,
    *,
    arguments: bool = False,
) -> ActiveReport:
    """Ask all workers, or those named; with names it ends as soon as all of them have answered."""
    if not app.conf.worker_enable_remote_control:
        return ActiveReport(trouble=_UNASKABLE)
    names = None if workers is None else sorted(workers)
    if names == []:
        return ActiveReport(asked=frozenset())
    ask: Any = {"destination": names, "limit": len(names)} if names else {}
    # Safe: as texts. The arguments themselves may be secret, large, or impossible to encode.
    active: Any = {}

    def question(inspect: Any) -> Any:
        active.update(inspect.active(safe=True) or {})
        return active

    roll = _asked(app, question, timeout, **ask)
    asked = None if names is None else frozenset(names)
    return replace(roll, asked=asked, arguments=_arguments(active) if arguments else {})


def _arguments(active: Mapping[str, Any]) -> dict[str, Arguments]:
    tasks = (task for tasks in active.values() if isinstance(tasks, list) for task in tasks)
    return {
        task["id"]: Arguments(str(task.get("args") or ""), str(task.get("kwargs") or ""))
        for task in tasks
        if "id" in task
    }


def _asked(app: Any, question: Any, timeout: float, **ask: Any) -> ActiveReport:
    with app.connection_for_write(connect_timeout=timeout) as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            inspect = app.control.inspect(connection=connection, timeout=timeout, **ask)
            answers = question(inspect) or {}
        except (OperationalError, OSError, *connection.connection_errors) as error:
            return ActiveReport(trouble=f"the broker gives no answer: {error}")
    return ActiveReport({worker: _pids(tasks) for worker, tasks in answers.items()})


def _pids(tasks: Any) -> dict[str, int | None]:
    if not isinstance(tasks, list):  # {"error": …}: it is there, and that is all we know
        return {}
    return {task["id"]: task.get("worker_pid") for task in tasks if "id" in task}


def find_task(app: Any, task_id: str, timeout: float = PATIENCE) -> list[tuple[str, str]]:
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


@dataclass(frozen=True, slots=True)
class MessageReport:
    """What the workers that answered read from, and which of the tasks asked for they have.

    ``queues`` is by worker. ``limited`` are the tasks whose rate a worker limits: Celery shows no
    message that waits for that. ``trouble`` says why the answer is not whole.
    """

    queues: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    task_ids: frozenset[str] = frozenset()
    limited: frozenset[str] = frozenset()
    trouble: str = ""


def inspect_messages(app: Any, task_ids: Sequence[str], timeout: float = PATIENCE) -> MessageReport:
    """Ask every worker which of these messages it has: begun, reserved or waiting for its time."""
    if not app.conf.worker_enable_remote_control:
        return MessageReport(trouble=_UNASKABLE)
    found: list[MessageReport] = []
    roll = _asked(app, lambda inspect: found.append(_stock(inspect, task_ids)), timeout)
    return MessageReport(trouble=roll.trouble) if roll.trouble else found[0]


def _stock(inspect: Any, task_ids: Sequence[str]) -> MessageReport:
    queues = inspect.active_queues() or {}
    if not queues:
        return MessageReport()
    # From here on it is known who there is: patience costs nothing when all of them answer.
    inspect.destination, inspect.limit, inspect.timeout = list(queues), len(queues), _LONGEST
    batches = [task_ids[n : n + _IDS_AT_ONCE] for n in range(0, len(task_ids), _IDS_AT_ONCE)]
    known = [inspect.query_task(*ids) or {} for ids in batches]
    # An older Celery does not count a message with an eta among those that query_task finds.
    scheduled, registered = inspect.scheduled() or {}, inspect.registered("rate_limit") or {}
    for answer in (*known, scheduled, registered):
        if missing := [worker for worker in queues if worker not in answer]:
            return MessageReport(trouble=f"worker {missing[0]} answers no more")
    if refused := [one for one in (queues, *known, scheduled, registered) if _has_error(one)]:
        return MessageReport(trouble=f"a worker cannot say what it has: {refused[0]}")
    return MessageReport(
        queues,
        frozenset(i for answer in known for tasks in answer.values() for i in tasks)
        | frozenset(one["request"]["id"] for ones in scheduled.values() for one in ones),
        frozenset(_limited(registered)),
    )


def _has_error(answer: Mapping[str, Any]) -> bool:
    return any(isinstance(said, dict) and "error" in said for said in answer.values())


def _limited(registered: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Those with an entry of "name [rate_limit=10/m]"."""
    for entries in registered.values():
        for name, _, limit in (entry.partition(" [rate_limit=") for entry in entries):
            if limit:
                yield name


def outcome(app: Any, task_id: str) -> tuple[str, Any]:
    """State and value of a task's result; ("", None) where there is no backend, or no answer."""
    result = app.AsyncResult(task_id)
    try:
        meta = result.backend.get_task_meta(task_id)
    except Exception:  # noqa: BLE001 (each backend has its own errors, and none is a lock's matter)
        return "", None
    return meta.get("status") or "", meta.get("result")
