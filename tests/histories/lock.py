"""A correct lock, one step at a time: who holds it, and which replies it may give.

The checker calls these functions in the order that it tries. Each returns the holders after the
step, or None if a correct lock does not do that here.

A holder may lapse from ``lapses_from`` on: its ttl after the last request that extended it was
sent. It must have lapsed by ``lapses_by``: its ttl after the last reply to such a request came.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from tests.histories.requests import Request

# The server's clock has milliseconds, and may be slewed against ours.
SLACK = 0.01
# A busy reply names no more holders than this.
LISTED = 8


class Hold(NamedTuple):
    """One holder. Limit 0 shares the lock; fence 0 is not known."""

    token: str
    fence: int
    limit: int
    job: str
    attempt: int
    since: float
    ttl: float
    lapses_by: float = inf

    @property
    def lapses_from(self) -> float:
        return self.since + self.ttl


Holders = tuple[Hold, ...]


def find(holders: Holders, token: str) -> Hold | None:
    return next((hold for hold in holders if hold.token == token), None)


def without(holders: Holders, token: str) -> Holders:
    return tuple(hold for hold in holders if hold.token != token)


def fits(holders: Holders, limit: int) -> bool:
    """Return True if a caller with this limit may be granted the lock beside these holders."""
    if any((hold.limit == 0) != (limit == 0) for hold in holders):
        return False
    return limit == 0 or len(holders) < limit


def grant(holders: Holders, new: Hold) -> Holders | None:
    """Grant the lock; a later attempt of a job takes it over from an earlier one."""
    others = tuple(hold for hold in holders if not _gives_way(hold, new))
    if find(others, new.token) or not fits(others, new.limit):
        return None
    return tuple(sorted((*others, new)))


def _replace(holders: Holders, hold: Hold, new: Hold) -> Holders:
    return tuple(sorted((*without(holders, hold.token), new)))


def step(holders: Holders, request: Request) -> Holders | None:
    """Return the holders after a request with this reply, or with its effect if it has no reply."""
    if request.operation == "force_release":
        return _force_release(holders, request)
    if request.reply and "busy" in request.reply:
        return _busy(holders, request)
    hold = find(holders, request.token)
    is_held = request.reply is None or request.reply.get("held", True)
    if not hold or not is_held:
        return holders if not hold and not is_held else None
    if request.operation == "release":
        return _release(holders, hold, request)
    fence = (request.reply or {}).get("fence", hold.fence)
    if hold.fence not in (0, fence):
        return None
    return _replace(holders, hold, _extended(hold._replace(fence=fence), request, request.ttl))


def _force_release(holders: Holders, request: Request) -> Holders:
    if request.reply is None:
        return without(holders, request.token) if request.token else ()
    return tuple(hold for hold in holders if hold.token not in request.reply["removed"])


def _release(holders: Holders, hold: Hold, request: Request) -> Holders:
    """Remove the holder; with ``keep`` the slot stays taken under another token."""
    if not request.keep:
        return without(holders, hold.token)
    kept = hold._replace(token=request.next_token or f"-{hold.token}")
    return _replace(holders, hold, _extended(kept, request, request.keep))


def _busy(holders: Holders, request: Request) -> Holders | None:
    """Check that the holders are those of the reply, and that they are a reason for it."""
    reply, rest = request.reply or {}, without(holders, request.token)
    has_job = request.job != "-"
    if len(rest) < len(holders) and not has_job:
        return None
    for listed in request.listed:
        hold = find(rest, listed["token"])
        if not hold or hold.fence not in (0, listed["fence"]):
            return None
        if request.invoked > hold.lapses_by + SLACK:
            return None
    # A copy of a running job is shown that run alone.
    if len(request.listed) < min(len(rest), LISTED) and not has_job:
        return None
    is_copy = has_job and any(hold.job == request.job for hold in rest)
    if fits(rest, request.limit) and not (reply["ahead"] or reply["paused"] or is_copy):
        return None
    return rest


def _gives_way(hold: Hold, new: Hold) -> bool:
    return hold.job == new.job != "-" and hold.attempt < new.attempt


def _extended(hold: Hold, request: Request, ttl: float) -> Hold:
    # It comes after what extended the hold before. Of two that overlap in time either may have been
    # the later one, so the later end counts.
    by = max(hold.lapses_by, request.replied + ttl)
    return hold._replace(since=max(hold.since, request.invoked), ttl=ttl, lapses_by=by)
