"""Orders that need not be tried, because a later request could not get its reply any more.

Replies show who holds the lock: a busy reply names all holders, and a renewal or release says
whether its token was one. A token with a single grant holds the lock from that grant to its end
without a gap. So its hold may not end before every request that shows it has its point; and a busy
reply that does not name it comes before its grant, if a later request shows that it still holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from tests.histories.grants import Grant
from tests.histories.lock import LISTED, Hold
from tests.histories.requests import Request

IsOpen = Callable[[int], bool]


class Pruning:
    """What the replies to ``requests``, by their numbers, say about the holds of ``grants``."""

    def __init__(
        self, requests: Sequence[Request], grants: Sequence[Grant], unknown: Sequence[Grant]
    ) -> None:
        counts = Counter(it.hold.token for it in (*grants, *unknown))
        self._shown_by: dict[str, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            for token in _shown(request):
                if counts[token] == 1:
                    self._shown_by[token].append(number)
        self._requests = requests
        complete = [number for number, request in enumerate(requests) if _names_all(request)]
        self._busy = sorted(complete, key=lambda number: requests[number].replied)
        ends = [requests[number].replied for number in self._busy]
        self._before = [self._numbers_before(grant, ends) for grant in grants]

    def may_end(self, token: str, is_open: IsOpen, ending: int = -1) -> bool:
        """Return True if no open request but ``ending`` shows that the token holds the lock."""
        numbers = self._shown_by.get(token, ())
        return not any(is_open(number) and number != ending for number in reversed(numbers))

    def may_extend(self, hold: Hold, is_open: IsOpen) -> bool:
        """Return True if an open request shows the hold after it must have lapsed by itself."""
        numbers = self._shown_by.get(hold.token)
        return numbers is None or any(
            is_open(number) and self._requests[number].invoked > hold.lapses_by
            for number in reversed(numbers)
        )

    def may_grant(self, number: int, is_open: IsOpen) -> bool:
        """Return True if no open request must come before this grant."""
        return not any(map(is_open, self._before[number]))

    def _numbers_before(self, grant: Grant, ends: Sequence[float]) -> list[int]:
        """Return the busy replies without this holder that came before it was last shown."""
        token = grant.hold.token
        shown = [self._requests[number].invoked for number in self._shown_by.get(token, ())]
        first, last = bisect_left(ends, grant.invoked), bisect_left(ends, max(shown, default=0.0))
        naming = {*self._shown_by.get(token, ())}
        return [number for number in self._busy[first:last] if number not in naming]


def _shown(request: Request) -> Iterator[str]:
    """Return the tokens that hold the lock, as the reply shows."""
    yield from (listed["token"] for listed in request.listed)
    reply = request.reply or {}
    if request.operation != "force_release" and (reply.get("held") or "fence" in reply):
        yield request.token


def _names_all(request: Request) -> bool:
    return request.job == "-" and "busy" in (request.reply or {}) and len(request.listed) < LISTED
