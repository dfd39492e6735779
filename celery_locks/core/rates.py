"""Rates outside locks, written once for ``Locks`` and ``AsyncLocks``. No I/O."""

from __future__ import annotations

from celery_locks.clock import now
from celery_locks.core.requests import new_token
from celery_locks.errors import RateLimited
from celery_locks.rates import Rate
from celery_locks.store.commands.locks import LockCommands, RateCheck
from celery_locks.store.commands.rates import RateCommands
from celery_locks.store.commands.replies import Limited
from celery_locks.store.effects import Operation, Sleep
from celery_locks.types import RateInfo
from celery_locks.validation import Wait, check_name, check_seconds, patience_of


class RateOperations:
    """The operations on rates; ``commands`` builds their calls."""

    def __init__(self, commands: LockCommands) -> None:
        self.commands = RateCommands(commands)

    def throttle(self, name: str, rate: Rate, wait: Wait | None) -> Operation[None]:
        """Return when it is the caller's turn; raise ``RateLimited`` if that is not in ``wait``."""
        check_name(name)
        patience_ends, token = now() + (patience_of(wait) or 0.0), new_token()
        while True:
            patience = max(0.0, patience_ends - now())
            answer = yield self.commands.throttle(RateCheck(name, rate.text, patience), token)
            if not isinstance(answer, Limited):
                yield Sleep(answer)
                return
            if not answer.is_promised:
                raise RateLimited(name, answer.seconds, answer.pause)
            yield Sleep(answer.seconds)

    def push_back(self, name: str, seconds: float) -> Operation[None]:
        check_name(name)
        check_seconds("seconds", seconds)
        yield self.commands.push_back(name, seconds)

    def list_rates(self, task_id: str | None = None) -> Operation[list[RateInfo]]:
        """Return the rates that delay callers, are pushed back, or that operators set, each once.

        With a ``task_id``: those that delay this task (see ``RateCommands.page``).
        """
        found: dict[str, RateInfo] = {}
        cursor, at_end = "", False
        while not at_end:
            page = yield from self.commands.page(cursor, task_id=task_id)
            for info in page.rates:
                found.setdefault(info.name, info)
            cursor, at_end = page.cursor, not page.cursor
        return list(found.values())
