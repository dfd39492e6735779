"""The grants of one lock, as far as replies show them.

A fence is given out once and grows with every grant. So the fences that any reply shows, to whom
it may be, are the grants in their order. A waiter that is handed the lock is among them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from tests.histories.lock import Hold
from tests.histories.requests import Request

# The claim window: a waiter that is handed the lock must renew it within this many seconds.
CLAIM = 1.0


class Grant(NamedTuple):
    """A grant, and the times between which it happened."""

    hold: Hold
    invoked: float
    replied: float


def grants_of(requests: Sequence[Request]) -> tuple[list[Grant], list[Grant]]:
    """Return the grants with a known fence in their order, and those without one.

    The second are of callers that got no reply and were holders, as a later reply says.
    """
    acquires = defaultdict(list)
    for request in requests:
        if request.operation == "acquire":
            acquires[request.token].append(request)
    known, counts = [], Counter[str]()
    for (fence, token), replied in sorted(_sightings(requests).items()):
        sent = acquires[token]
        invoked = sent[counts[token]].invoked if counts[token] < len(sent) else inf
        counts[token] += 1
        known.append(_grant(fence, token, sent, invoked, replied))
    unknown = [
        _grant(0, token, acquires[token], acquires[token][0].invoked, inf)
        for token, count in _unknown_counts(requests, acquires, counts).items()
        for _ in range(count)
    ]
    return known, unknown


def _unknown_counts(
    requests: Sequence[Request], acquires: Mapping[str, Sequence[Request]], known: Counter[str]
) -> dict[str, int]:
    """Return how many grants each token had, or may have had, besides the known ones.

    A token that held the lock, as a renewal or release says, had one. An acquire without a reply
    may be executed after the release and grant the lock again; then the known grant may be either.
    """
    held, released, shown_later = set[str](), defaultdict[str, list[float]](list), set[str]()
    for request in requests:
        if request.reply and request.reply.get("held"):
            held.add(request.token)
            if request.operation == "release":
                released[request.token].append(request.replied)
        for token in (listed["token"] for listed in request.listed):
            if token in released and request.invoked > released[token][0]:
                shown_later.add(token)
    return {
        token: max(0, min(len(acquires[token]) - known[token], max(1, len(released[token]))))
        for token in held
        if token in shown_later or known[token] < max(1, len(released[token]))
    }


def _sightings(requests: Sequence[Request]) -> dict[tuple[int, str], float]:
    """Return when the grant of a fence to a token was first known."""
    first: dict[tuple[int, str], float] = {}
    kept = {request.next_token for request in requests if request.next_token}
    for request in requests:
        for fence, token in _shown(request):
            if not token.startswith("-") and token not in kept:  # kept slots have an old fence
                first[fence, token] = min(request.replied, first.get((fence, token), inf))
    return first


def _shown(request: Request) -> Iterator[tuple[int, str]]:
    if request.reply and "fence" in request.reply:
        yield request.reply["fence"], request.token
    for listed in request.listed:
        yield listed["fence"], listed["token"]


def _grant(
    fence: int, token: str, acquires: Sequence[Request], invoked: float, replied: float
) -> Grant:
    if not acquires:  # nobody asked for it: the checker says so
        return Grant(Hold(token, fence, 1, "-", 0, inf), inf, replied)
    request = acquires[0]
    shortest = min(request.ttl, CLAIM) if any(it.waits for it in acquires) else request.ttl
    hold = Hold(
        token,
        fence,
        request.limit,
        request.job,
        request.attempt,
        lapses_from=invoked + shortest,
        lapses_by=replied + max(request.ttl, CLAIM),
    )
    return Grant(hold, invoked, replied)
