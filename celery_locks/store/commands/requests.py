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
    """What a release leaves behind, and for how long; see ``marks.lua``.

    ``key`` is the redis key without the root of its shard.
    """

    key: str
    value: str | int
    ttl: float


class IdempotencyCheck(NamedTuple):
    """The mark of completed work that forbids a grant, and the rule for it (``idempotency.py``).

    ``mark`` is its key, as in ``Mark``.
    """

    mark: str
    reuse: str
    ttl: float


class AcquireExtras(NamedTuple):
    """Optional checks and side effects that run atomically with the acquire."""

    reject_if_ended: bool = False
    """Reject the call with ``Ended`` if this attempt of the job has ended elsewhere."""
    release_on_grant: tuple[str, str] = ("", "")
    """Name and token of a reservation to release when the lock is granted."""
    replace: str = ""
    """Token of a reservation to replace (``ReplacedReservation``)."""
    supersede: tuple[str, float] = ("", 0.0)
    """Task id of a replaced message, marked as ended on the grant, and the seconds of the mark."""
    idempotency: IdempotencyCheck | None = None
    """Grant the lock only if its work is not completed; else reject the call with ``Completed``."""

    def options(self, root: str, token: str, job: str) -> tuple[list[str], list[Arg]]:
        """Return the keys and the arguments of the script's options; see ``acquire.lua``."""
        keys: list[str] = []
        args: list[Arg] = []
        if self.reject_if_ended:
            keys += [f"{root}e:{job}"]
            args += ["ended"]
        name, reservation = self.release_on_grant
        if reservation:
            keys += lock_keys(root, name)
            args += ["release", reservation]
        if self.replace:
            keys += [f"{root}e:{_job_of_reservation(self.replace)}", f"{root}p:{token}"]
            args += ["replace", self.replace]
        task_id, seconds = self.supersede
        if task_id:
            keys += [f"{root}e:{_quoted_job(task_id)}"]
            args += ["supersede", milliseconds(seconds)]
        if self.idempotency:
            mark, reuse, ttl = self.idempotency
            keys += [root + mark]
            args += ["once", reuse, milliseconds(ttl)]
        return keys, args


def lock_keys(root: str, name: str) -> tuple[str, str]:
    """Return the redis keys of a lock: its holders and its waiters."""
    return f"{root}h:{name}", f"{root}q:{name}"


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
    return Mark(f"e:{job_field(holder)}", value, ttl)


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


def _job_of_reservation(token: str) -> str:
    """Return the job of a ``reservation_token``; a quoted task id has no "+"."""
    return "j" + token.removeprefix(RESERVATION_PREFIX).removeprefix("+")


# True of nearly every task id: quote() would not change it.
_is_plain = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
