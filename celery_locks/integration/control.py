"""The remote control commands ``celery inspect locks`` and ``celery control release_lock NAME``.

Every worker lists and releases only what its own tasks hold. If each released any holder, the
second worker would take the lock from the holder to whom the first had handed it over.
"""

from __future__ import annotations

from typing import Any

from celery_locks.store.commands.locks import CALL_LIMIT


def register(**_: Any) -> None:
    """Register the commands in this process; called by workers and by the command line.

    Not at import: this imports the worker's side of Celery, which a publisher does not need.
    """
    from celery.worker.control import control_command, inspect_command

    inspect_command(name="locks")(list_own_locks)
    control_command(
        name="release_lock", signature="<name> [reason]", args=[("name", str), ("reason", str)]
    )(release_own_lock)


def list_own_locks(state: Any, **_: Any) -> Any:
    """List the locks that tasks of the worker hold."""
    from celery_locks.core.renewer import renewer
    from celery_locks.errors import LockError
    from celery_locks.integration.app import locks_of
    from celery_locks.integration.supervisor import supervisor

    tokens = sorted(supervisor.tokens | renewer.tokens)
    try:
        return _locate(locks_of(state.app), tokens) if tokens else []
    except LockError as error:
        return {"error": str(error)}


def _locate(locks: Any, tokens: list[str]) -> list[dict[str, Any]]:
    found: dict[str, Any] = {}
    for root in locks.commands.roots:
        found |= locks.perform(locks.commands.locate(root, tokens, CALL_LIMIT))
    # The records do not contain these fields. A holder with fence 0 only waits.
    unknown = ("expires_at", "renewals")
    return [
        {"name": name, **{k: v for k, v in holder.as_dict().items() if k not in unknown}}
        for name, holder in found.values()
        if holder.fence
    ]


def release_own_lock(state: Any, name: str, reason: str = "", **_: Any) -> Any:
    """Take a lock from the worker's tasks that hold it; they are notified."""
    from celery_locks.core.requests import new_token
    from celery_locks.errors import LockError
    from celery_locks.integration.app import locks_of
    from celery_locks.store.commands.admin import AdminCommands

    # Celery does not tell who sent the command: only the worker that runs it is known.
    about = f"celery control at {state.hostname}", reason
    try:
        locks = locks_of(state.app)
        commands = AdminCommands(locks.commands)
        freed = [
            released.as_dict()
            for holder in locks.holders(name)
            if holder.worker == state.hostname
            for released in locks.perform(
                commands.force_release(name, holder.token, *about, request_id=new_token())
            )
        ]
    except LockError as error:
        return {"error": str(error)}
    return {"ok": {"freed": freed}}
