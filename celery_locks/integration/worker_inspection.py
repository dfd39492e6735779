"""Inspect Celery's workers: which ones reply and what they run. Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError

PATIENCE = 1.5
_NO_CONTROL = "worker_enable_remote_control is off, so no worker can be asked"
_IDS_AT_ONCE = 500
_LONGEST = 10.0


class Arguments(NamedTuple):
    """A task's arguments as Celery shows them: ``argsrepr`` and ``kwargsrepr``."""

    args: str
    kwargs: str


@dataclass(frozen=True, slots=True)
class ActiveReport:
    """The workers that replied, with the tasks that each runs and their pids.

    ``trouble`` says why no worker could be asked; then a missing worker means nothing.
    ``queried`` has the workers that were asked, None for all; ``at`` is the lock server's time of
    the request, None for just now. ``arguments`` has those of the running tasks, on request.
    """

    running: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    trouble: str = ""
    queried: frozenset[str] | None = None
    at: float | None = None
    arguments: Mapping[str, Arguments] = field(default_factory=dict)

    def answered(self, worker: str) -> bool:
        return worker in self.running

    def merged(self, later: ActiveReport) -> ActiveReport:
        """Merge two reports: a worker that replied once is alive."""
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
    """Ask all workers, or those named; with names, return as soon as all of them have replied."""
    if not app.conf.worker_enable_remote_control:
        return ActiveReport(trouble=_NO_CONTROL)
    names = None if workers is None else sorted(workers)
    if names == []:
        return ActiveReport(queried=frozenset())
    destination: Any = {"destination": names, "limit": len(names)} if names else {}
    # safe: as text. The arguments themselves may be secret, large, or impossible to encode.
    active: Any = {}

    def read_active(inspect: Any) -> Any:
        active.update(inspect.active(safe=True) or {})
        return active

    report = _query(app, read_active, timeout, **destination)
    queried = None if names is None else frozenset(names)
    return replace(report, queried=queried, arguments=_arguments(active) if arguments else {})


def _arguments(active: Mapping[str, Any]) -> dict[str, Arguments]:
    tasks = (task for tasks in active.values() if isinstance(tasks, list) for task in tasks)
    return {
        task["id"]: Arguments(str(task.get("args") or ""), str(task.get("kwargs") or ""))
        for task in tasks
        if "id" in task
    }


def _query(app: Any, read: Any, timeout: float, **destination: Any) -> ActiveReport:
    with app.connection_for_write(connect_timeout=timeout) as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            inspect = app.control.inspect(connection=connection, timeout=timeout, **destination)
            replies = read(inspect) or {}
        except (OperationalError, OSError, *connection.connection_errors) as error:
            return ActiveReport(trouble=f"the broker gives no answer: {error}")
    return ActiveReport({worker: _pids(tasks) for worker, tasks in replies.items()})


def _pids(tasks: Any) -> dict[str, int | None]:
    if not isinstance(tasks, list):  # {"error": …}: it is alive, and that is all we know
        return {}
    return {task["id"]: task.get("worker_pid") for task in tasks if "id" in task}


def _ids(listed: Any) -> list[str]:
    """Return the ids in a worker's list of messages; none if it could not answer."""
    entries = listed if isinstance(listed, list) else []
    return [entry.get("request", entry)["id"] for entry in entries]


def find_task(app: Any, task_id: str, timeout: float = PATIENCE) -> list[tuple[str, str]]:
    """List (worker, "active", "reserved" or "scheduled") for each worker that has the message."""
    found: list[tuple[str, str]] = []

    def read_task(inspect: Any) -> Any:
        replies = inspect.query_task(task_id) or {}
        found.extend(
            (worker, tasks[task_id][0])
            for worker, tasks in replies.items()
            if isinstance(tasks, dict) and task_id in tasks
        )
        if replies and not found:
            # A requeued message has the id of the one before it. When that one ends, Celery forgets
            # the id, and only its lists still have the new message.
            inspect.destination, inspect.limit = list(replies), len(replies)
            for state in ("scheduled", "reserved"):
                listed = getattr(inspect, state)() or {}
                found.extend((name, state) for name in listed if task_id in _ids(listed[name]))

    if app.conf.worker_enable_remote_control:
        _query(app, read_task, timeout)
    return found


@dataclass(frozen=True, slots=True)
class MessageReport:
    """The queues that the workers consume, and which of the given tasks they have.

    ``queues`` is by worker. ``limited`` are the tasks with a rate limit: Celery does not show a
    message that waits for it. ``trouble`` says why the report is incomplete.
    """

    queues: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    task_ids: frozenset[str] = frozenset()
    limited: frozenset[str] = frozenset()
    trouble: str = ""


def inspect_messages(app: Any, task_ids: Sequence[str], timeout: float = PATIENCE) -> MessageReport:
    """Ask every worker which of these messages it has: active, reserved or scheduled."""
    if not app.conf.worker_enable_remote_control:
        return MessageReport(trouble=_NO_CONTROL)
    found: list[MessageReport] = []
    report = _query(app, lambda inspect: found.append(_read_messages(inspect, task_ids)), timeout)
    return MessageReport(trouble=report.trouble) if report.trouble else found[0]


def _read_messages(inspect: Any, task_ids: Sequence[str]) -> MessageReport:
    queues = inspect.active_queues() or {}
    if not queues:
        return MessageReport()
    # The workers are known now: a long timeout costs nothing if all of them reply.
    inspect.destination, inspect.limit, inspect.timeout = list(queues), len(queues), _LONGEST
    batches = [task_ids[n : n + _IDS_AT_ONCE] for n in range(0, len(task_ids), _IDS_AT_ONCE)]
    known = [inspect.query_task(*ids) or {} for ids in batches]
    # In older Celery query_task does not find a message with an eta.
    scheduled, registered = inspect.scheduled() or {}, inspect.registered("rate_limit") or {}
    for answer in (*known, scheduled, registered):
        if missing := [worker for worker in queues if worker not in answer]:
            return MessageReport(trouble=f"worker {missing[0]} no longer replies")
    if failed := [reply for reply in (queues, *known, scheduled, registered) if _has_error(reply)]:
        return MessageReport(trouble=f"a worker cannot report its messages: {failed[0]}")
    return MessageReport(
        queues,
        frozenset(i for answer in known for tasks in answer.values() for i in tasks)
        | frozenset(entry["request"]["id"] for listed in scheduled.values() for entry in listed),
        frozenset(_limited(registered)),
    )


def _has_error(replies: Mapping[str, Any]) -> bool:
    return any(isinstance(reply, dict) and "error" in reply for reply in replies.values())


def _limited(registered: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the tasks with an entry like "name [rate_limit=10/m]"."""
    for entries in registered.values():
        for name, _, limit in (entry.partition(" [rate_limit=") for entry in entries):
            if limit:
                yield name


def outcome(app: Any, task_id: str) -> tuple[str, Any]:
    """Return state and value of a task's result; ("", None) without a backend or a reply."""
    result = app.AsyncResult(task_id)
    try:
        meta = result.backend.get_task_meta(task_id)
    except Exception:  # noqa: BLE001 (each backend has its own errors; none concerns the lock)
        return "", None
    return meta.get("status") or "", meta.get("result")
