"""The checker of histories: what it must accept, and what it must reject.

A checker that accepts everything proves nothing, so most histories here are of broken locks. Times
are in seconds; a request is sent at the first and replied to at the second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.histories import checker
from tests.histories.checker import Checker, Undecided
from tests.histories.contradiction import find_contradiction, judge
from tests.histories.requests import History, Request, history_of

TTL = 10.0


def acquire(token: str, sent: float, replied: float, fence: int, **options: Any) -> Request:
    return request("acquire", token, sent, replied, {"fence": fence}, **options)


def busy(
    token: str,
    sent: float,
    replied: float,
    *holders: tuple[str, int],
    ahead: int = 0,
    **options: Any,
) -> Request:
    listed = [{"token": name, "fence": fence, "limit": 1} for name, fence in holders]
    reply = {"busy": listed, "ahead": ahead, "paused": False}
    return request("acquire", token, sent, replied, reply, **options)


def renew(token: str, sent: float, replied: float, *, held: bool = True) -> Request:
    return request("renew", token, sent, replied, {"held": held})


def release(
    token: str, sent: float, replied: float, *, held: bool = True, **options: Any
) -> Request:
    return request("release", token, sent, replied, {"held": held}, **options)


def hand_over(token: str, sent: float, replied: float, fence: int) -> Request:
    return request("hand_over", token, sent, replied, {"fence": fence})


def unanswered(request: Request) -> Request:
    return replace(request, replied=float("inf"), reply=None)


def request(
    operation: str, token: str, sent: float, replied: float, reply: Any, **options: Any
) -> Request:
    return Request("lock", operation, token, sent, replied, reply, **{"ttl": TTL, **options})


ACCEPTED = {
    "one after the other": [
        acquire("a", 0, 1, 1),
        release("a", 2, 3),
        acquire("b", 4, 5, 2),
        release("b", 6, 7),
    ],
    "the next is granted while the reply to the release is on its way": [
        acquire("a", 0, 1, 1),
        release("a", 2, 9),
        acquire("b", 3, 4, 2),
    ],
    "busy while another holds it": [acquire("a", 0, 1, 1), busy("b", 2, 3, ("a", 1))],
    "busy, although the release is sent": [
        acquire("a", 0, 1, 1),
        release("a", 2, 9),
        busy("b", 3, 4, ("a", 1)),
        acquire("b", 5, 6, 2),
    ],
    "a lease lapses": [
        acquire("a", 0, 1, 1),
        acquire("b", 10, 11, 2),
        renew("a", 12, 13, held=False),
    ],
    "a lease lapses earliest its ttl after the request was sent": [
        acquire("a", 0, 5, 1),
        acquire("b", 9, 10.5, 2),
    ],
    "a lapsed lease that nobody took is renewed": [acquire("a", 0, 1, 1), renew("a", 30, 31)],
    "a request without a reply had its effect": [
        unanswered(acquire("a", 0, 1, 1)),
        busy("b", 2, 3, ("a", 1)),
        release("a", 4, 5),
    ],
    "a request without a reply never had an effect": [
        unanswered(acquire("a", 0, 1, 1)),
        acquire("b", 2, 3, 1),
        release("a", 4, 5, held=False),
    ],
    "a grant without a reply is released": [unanswered(acquire("a", 0, 1, 1)), release("a", 2, 3)],
    "an acquire without a reply is executed after the release": [
        unanswered(acquire("a", 0, 1, 1)),
        unanswered(acquire("a", 2, 3, 1)),
        release("a", 4, 5),
        busy("b", 6, 7, ("a", 2)),
    ],
    "an acquire without a reply is executed after each release": [
        unanswered(acquire("a", 0, 1, 1)),
        unanswered(acquire("a", 2, 3, 1)),
        release("a", 4, 5),
        release("a", 6, 7),
    ],
    "an acquire without a reply is executed after the first of two releases": [
        unanswered(acquire("a", 0, 1, 1)),
        unanswered(acquire("a", 2, 3, 1)),
        busy("b", 4, 5, ("a", 1)),
        release("a", 6, 7),
        release("a", 8, 9),
    ],
    "a release without a reply had its effect late": [
        acquire("a", 0, 1, 1),
        unanswered(release("a", 2, 3)),
        busy("b", 4, 5, ("a", 1)),
        acquire("b", 6, 7, 2),
    ],
    "a renewal without a reply keeps the lease": [
        acquire("a", 0, 1, 1),
        unanswered(renew("a", 8, 9)),
        busy("b", 15, 16, ("a", 1)),
    ],
    "a repeated acquire without a reply keeps the lease": [
        acquire("a", 0, 1, 1),
        unanswered(acquire("a", 8, 9, 1)),
        busy("b", 15, 16, ("a", 1)),
    ],
    "a repeated request gets the same fence": [
        unanswered(acquire("a", 0, 1, 1)),
        acquire("a", 2, 3, 1),
    ],
    "a waiter is handed the lock": [
        acquire("a", 0, 1, 1),
        busy("b", 2, 3, ("a", 1), waits=True),
        release("a", 4, 5),
        hand_over("b", 3, 6, 2),
        renew("b", 7, 8),
    ],
    "a waiter that leaves was handed the lock meanwhile": [
        acquire("a", 0, 1, 1),
        busy("b", 2, 3, ("a", 1), waits=True),
        release("a", 4, 5),
        release("b", 6, 7),
    ],
    "busy, because others wait": [busy("b", 0, 1, ahead=1)],
    "a semaphore": [
        acquire("a", 0, 1, 1, limit=2),
        acquire("b", 2, 3, 2, limit=2),
        busy("c", 4, 5, ("a", 1), ("b", 2), limit=2),
    ],
    "readers share the lock": [
        acquire("a", 0, 1, 1, limit=0),
        acquire("b", 2, 3, 2, limit=0),
        busy("c", 4, 5, ("a", 1), ("b", 2)),
    ],
    "a later attempt of the job takes over": [
        acquire("a", 0, 1, 1, job="j", attempt=1),
        acquire("b", 2, 3, 2, job="j", attempt=2),
        renew("a", 4, 5, held=False),
    ],
    "an operator takes the lock": [
        acquire("a", 0, 1, 1),
        request("force_release", "", 2, 3, {"removed": ["a"]}),
        acquire("b", 4, 5, 2),
    ],
    "a slot stays taken after the release": [
        acquire("a", 0, 1, 1),
        release("a", 2, 3, keep=4.0),
        busy("b", 4, 5, ("-a", 1)),
        acquire("b", 6, 7, 2),
    ],
}

REJECTED = {
    "two holders": [acquire("a", 0, 1, 1), acquire("b", 2, 3, 2)],
    "a lease lapses too early": [acquire("a", 0, 1, 1), acquire("b", 8, 9, 2)],
    "a lease lapses although it was renewed": [
        acquire("a", 0, 1, 1),
        renew("a", 8, 9),
        acquire("b", 12, 13, 2),
    ],
    "a renewal says lost although the lease cannot have lapsed": [
        acquire("a", 0, 1, 1),
        renew("a", 2, 3, held=False),
    ],
    "a lease never lapses": [acquire("a", 0, 1, 1), busy("b", 12, 13, ("a", 1))],
    "a release by another than the holder frees the lock": [
        acquire("a", 0, 1, 1),
        release("b", 2, 3, held=False),
        acquire("c", 4, 5, 2),
    ],
    "a release by another than the holder succeeds": [
        acquire("a", 0, 1, 1),
        acquire("b", 20, 21, 2),
        release("a", 22, 23),
    ],
    "a release is forgotten": [
        acquire("a", 0, 1, 1),
        release("a", 2, 3),
        busy("b", 4, 5, ("a", 1)),
    ],
    "a released lock comes back with a new fence": [
        acquire("a", 0, 1, 1),
        release("a", 2, 3),
        busy("b", 4, 5, ("a", 2)),
    ],
    "busy without a reason": [busy("b", 0, 1)],
    "busy, but the holder is not named": [
        acquire("a", 0, 1, 1, limit=2),
        acquire("b", 2, 3, 2, limit=2),
        busy("c", 4, 5, ("a", 1), limit=2),
    ],
    "a grant beyond the limit": [
        acquire("a", 0, 1, 1, limit=2),
        acquire("b", 2, 3, 2, limit=2),
        acquire("c", 4, 5, 3, limit=2),
    ],
    "a fence that goes back": [
        acquire("a", 0, 1, 2),
        release("a", 2, 3),
        acquire("b", 4, 5, 1),
    ],
    "a fence that goes back, of two holders": [
        acquire("a", 0, 1, 2, limit=2),
        acquire("b", 2, 3, 1, limit=2),
    ],
    "a fence that is given twice": [
        acquire("a", 0, 1, 1),
        release("a", 2, 3),
        acquire("b", 4, 5, 1),
    ],
    "a fence that changes while the lock is held": [acquire("a", 0, 1, 1), acquire("a", 2, 3, 2)],
    "a reader beside a writer": [acquire("a", 0, 1, 1), acquire("b", 2, 3, 2, limit=0)],
    "a writer beside a reader": [acquire("a", 0, 1, 1, limit=0), acquire("b", 2, 3, 2)],
    "a grant that nobody requested": [busy("b", 0, 1, ("a", 1))],
    "a grant without a reply did not exclude": [
        unanswered(acquire("a", 0, 1, 1)),
        busy("b", 2, 3, ("a", 1)),
        acquire("c", 4, 5, 2),
        release("a", 6, 7),
    ],
    "a release without a reply was executed twice": [
        acquire("a", 0, 1, 1),
        unanswered(release("a", 2, 3)),
        acquire("b", 4, 5, 2),
        acquire("c", 6, 7, 3),
    ],
    "more releases succeed than there were acquires": [
        unanswered(acquire("a", 0, 1, 1)),
        release("a", 4, 5),
        release("a", 6, 7),
    ],
    "a waiter is handed a lock that is held": [
        acquire("a", 0, 1, 1),
        busy("b", 2, 3, ("a", 1), waits=True),
        hand_over("b", 3, 4, 2),
        renew("a", 5, 6),
    ],
    "a later attempt of another job takes over": [
        acquire("a", 0, 1, 1, job="j", attempt=1),
        acquire("b", 2, 3, 2, job="k", attempt=2),
    ],
}


@pytest.mark.parametrize("requests", ACCEPTED.values(), ids=ACCEPTED)
def test_history_of_a_correct_lock_is_accepted(requests: list[Request]) -> None:
    """A false alarm would make the checker useless in a run with faults."""
    assert find_contradiction(requests) is None


@pytest.mark.parametrize("requests", REJECTED.values(), ids=REJECTED)
def test_history_of_a_broken_lock_is_rejected(requests: list[Request]) -> None:
    """What the checker does not see, nobody sees."""
    assert find_contradiction(requests) is not None


def correct_requests(count: int) -> list[Request]:
    """Return a history of callers that hold the lock in turn, a millisecond each."""
    return [
        request
        for number in range(count)
        for request in (
            acquire(f"t{number}", number / 1000, number / 1000 + 0.0003, number - count),
            release(f"t{number}", number / 1000 + 0.0004, number / 1000 + 0.0008),
        )
    ]


@pytest.mark.parametrize("requests", REJECTED.values(), ids=REJECTED)
def test_contradiction_is_found_among_other_requests(requests: list[Request]) -> None:
    """The report has the requests that matter, not the run."""
    later = [replace(it, invoked=it.invoked + 100, replied=it.replied + 100) for it in requests]
    found = find_contradiction([*correct_requests(50), *later])
    assert found is not None
    assert len(found.requests) <= len(requests)
    assert not {it.token for it in found.requests} - {it.token for it in requests}


def test_thousands_of_requests_are_checked() -> None:
    """A soak run has thousands of requests for each lock; the search has one way to go."""
    requests = correct_requests(3000)
    assert find_contradiction(requests) is None
    assert find_contradiction([*requests[:3001], *requests[3002:]]) is not None


def test_contradiction_ends_where_it_is_proven() -> None:
    """What came after it explains nothing."""
    requests = [
        acquire("a", 0, 1, 1),
        acquire("b", 2, 3, 2),
        release("a", 4, 5),
        release("b", 6, 7),
        acquire("c", 8, 9, 3),
    ]
    found = find_contradiction(requests)
    assert found is not None
    assert found.requests == tuple(requests[:2])
    assert "acquire b" in str(found)


def test_readers_that_overlap_are_checked_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty requests at once have more orders than can be tried; most of them are the same."""
    monkeypatch.setattr(checker, "MAX_STATES", 5000)
    readers = [acquire(f"r{number}", 0, 5, number + 1, limit=0) for number in range(20)]
    renewals = [renew(f"r{number}", 5, 6) for number in range(20)]
    writer = acquire("w", 7, 8, 100)
    assert Checker([*readers, *renewals]).is_linearizable()
    assert not Checker([*readers, *renewals, writer]).is_linearizable()


def test_search_that_takes_too_long_is_not_called_linearizable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checker, "MAX_STATES", 2)
    requests = REJECTED["two holders"] + ACCEPTED["a lease lapses"]
    with pytest.raises(Undecided):
        Checker(ACCEPTED["one after the other"]).is_linearizable()
    verdict = judge(History({"lock": requests}))
    assert not verdict.is_linearizable


def test_lines_become_requests() -> None:
    """A process that was killed leaves a request without a reply; NOSCRIPT had no effect."""
    sent = {"operation": "release", "lock": "l", "token": "t", "process": 1}
    lines = [
        {"id": "1-0", "at": 1.0, **sent},
        {"id": "1-1", "at": 2.0, **sent},
        {"id": "1-1", "at": 2.5, "reply": {"not_executed": True}},
        {"id": "1-2", "at": 3.0, **sent},
        {"id": "1-2", "at": 4.0, "reply": {"held": True}},
        {"id": "1-3", "at": 5.0, **sent},
        {"id": "1-3", "at": 6.0, "reply": None, "error": "TimeoutError"},
    ]
    first, second, third = history_of(lines).locks["l"]
    assert (first.reply, second.replied, second.reply, third.reply) == (
        None,
        4.0,
        {"held": True},
        None,
    )


def test_lock_that_is_used_in_other_ways_is_not_checked() -> None:
    """Silence about such a lock would look like a proof."""
    sent = {
        "id": "1-0",
        "at": 1.0,
        "operation": "unchecked",
        "lock": "l",
        "token": "",
        "why": "park",
    }
    verdict = judge(history_of([sent]))
    assert (verdict.locks, verdict.unchecked) == (0, ("l (park)",))
    assert "not checked: l (park)" in str(verdict)
