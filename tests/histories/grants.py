"""The grants of one lock, as far as replies show them.

A fence is given out once and grows with every grant. So the fences that any reply shows, to whom
it may be, are the grants in their order. A waiter that is handed the lock is among them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
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


def grants_of(
    requests: Sequence[Request], regranted: Set[str] = frozenset()
) -> tuple[list[Grant], list[Grant]]:
    """Return the grants with a known fence in their order, and those without one.

    The second are of callers that got no reply and held the lock, as a renewal or release says. A
    token of ``regranted`` may have had such grants besides those with a known fence: an acquire
    that got no reply may be executed after the release, and the next release ends that grant.
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
    unknown = []
    for token, replies in Counter(it.token for it in requests if _shows_hold(it)).items():
        if token in regranted or not counts[token]:
            most = min(len(acquires[token]) - counts[token], replies)
            first = acquires[token][0].invoked if acquires[token] else inf
            unknown += [_grant(0, token, acquires[token], first, inf)] * most
    return known, unknown


def may_be_regranted(requests: Sequence[Request]) -> set[str]:
    """Return the tokens that have more acquires than known grants, and held the lock."""
    known = Counter(token for _, token in _sightings(requests))
    sent = Counter(it.token for it in requests if it.operation == "acquire")
    return {it.token for it in requests if _shows_hold(it) and sent[it.token] > known[it.token]}


def _shows_hold(request: Request) -> bool:
    return bool(request.reply and request.reply.get("held"))


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
        return Grant(Hold(token, fence, 1, "-", 0, inf, inf), inf, replied)
    request = acquires[0]
    shortest = min(request.ttl, CLAIM) if any(it.waits for it in acquires) else request.ttl
    hold = Hold(
        token,
        fence,
        request.limit,
        request.job,
        request.attempt,
        since=invoked,
        ttl=shortest,
        lapses_by=replied + max(request.ttl, CLAIM),
    )
    return Grant(hold, invoked, replied)
