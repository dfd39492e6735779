"""The values that callers pass to the commands, and their form in the scripts' arguments. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

from celery_locks.store.resp import Arg
from celery_locks.types import RESERVATION_PREFIX, Holder

# The attempt in the mark of a superseded message; SUPERSEDED in on_grant.lua is the same number.
SUPERSEDED = 10**15


class Renewal(NamedTuple):
    """One lease of a batch to renew."""

    name: str
    token: str
    ttl: float


class Mark(NamedTuple):
    """What a release leaves behind, and for how long; see ``marks.lua``."""

    mark: str
    value: str | int
    ttl: float


class IdempotencyCheck(NamedTuple):
    """The mark of completed work that forbids a grant, and the rule for it (``idempotency.py``)."""

    mark: str
    reuse: str
    ttl: float


class AcquireExtras(NamedTuple):
    """Optional checks and side effects that run atomically with the acquire."""

    reject_if_completed: bool = False
    """Reject the call with ``Done`` if this attempt of the job has ended elsewhere."""
    release_on_grant: tuple[str, str] = ("", "")
    """Name and token of a reservation to release when the lock is granted."""
    replace: str = ""
    """Token of a reservation to replace (``ReplacedReservation``)."""
    supersede: tuple[str, float] = ("", 0.0)
    """Task id of a replaced message, marked as ended on the grant, and the seconds of the mark."""
    idempotency: IdempotencyCheck | None = None
    """Grant the lock only if its work is not completed."""

    def args(self) -> tuple[Arg, ...]:
        """Return the script's arguments 6 to 14; none without extras."""
        if self == _NO_EXTRAS:
            return ()
        check = self.idempotency
        return (
            int(self.reject_if_completed),
            *self.release_on_grant,
            self.replace,
            _quoted_job(self.supersede[0]) if self.supersede[0] else "",
            milliseconds(self.supersede[1]),
            *((check.mark, check.reuse, milliseconds(check.ttl)) if check else ("", "", 0)),
        )


_NO_EXTRAS = AcquireExtras()


def reservation_token(task_id: str, *, again: bool = False) -> str:
    """Return the token of a message's reservation: whoever knows the task id can release it.

    ``again`` is for the message of a retry. A publisher that got no reply repeats its release
    until the reservation has expired; that release must not end the reservation of the retry.
    """
    return RESERVATION_PREFIX + "+" * again + quote(task_id, safe="")


def ended_mark(holder: Holder, ttl: float, *, leaves_result: bool = True) -> Mark:
    """Return the mark that this attempt of the job has ended, for copies that are delivered late.

    The attempt is half a step higher if it leaves no result; the next attempt is still above it.
    """
    value = holder.attempt if leaves_result else f"{holder.attempt}.5"
    return Mark(f"d:{job_field(holder)}", value, ttl)


def superseded_mark(task_id: str, ttl: float) -> Mark:
    """Return the mark that no attempt of this replaced message may run."""
    return ended_mark(Holder(task_id=task_id, retries=SUPERSEDED - 1), ttl)


def job_field(holder: Holder) -> str:
    """Return the job in the form of a record, "-" for no job."""
    task_id = holder.job_id
    if task_id and _is_plain(task_id):
        return "j" + task_id
    return _quoted_job(task_id) if task_id else "-"


def _quoted_job(task_id: str) -> str:
    return "j" + quote(task_id, safe="")


# True of nearly every task id: quote() would not change it.
_is_plain = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
