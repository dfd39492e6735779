"""Is there an order of the requests that a correct lock allows? After Wing and Gong, for one lock.

Every request has its effect at one point between its sending and its reply. The search tries the
orders that agree with these times, and remembers the states that it has seen. Grants come in the
order of their fences (``grants.py``). Besides the requests with a reply there are steps that the
search may insert: a lease that lapses, from the moment at which its ttl can have passed; and
requests without a reply, which have their effect at any later time or never.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from tests.histories.grants import grants_of
from tests.histories.lock import SLACK, Holders, grant, step, without
from tests.histories.pruning import Pruning
from tests.histories.requests import Request

MAX_STATES = 200_000


class Undecided(Exception):
    """The search has seen too many states; the history may be linearizable or not."""


class State(NamedTuple):
    """How far the search is: the requests before ``base`` are done, and some after it.

    ``inserted`` are the requests without a reply that had an effect, and the grants without a
    known fence, which are counted from -1 down.
    """

    base: int
    done: frozenset[int]
    granted: int
    holders: Holders
    inserted: frozenset[int]


class Checker:
    """The search for one lock; ``deepest`` is the state with most requests done.

    ``regranted``: see ``grants_of``. With fewer of them the search is much shorter.
    """

    def __init__(self, requests: Sequence[Request], regranted: Set[str] = frozenset()) -> None:
        by_sending = sorted(requests, key=lambda request: request.invoked)
        self._requests = [it for it in by_sending if it.reply and it.operation != "hand_over"]
        self._grants, self._unknown_grants = grants_of(by_sending, regranted)
        # The earliest end of the grants from each position on.
        ends = accumulate((it.replied for it in reversed(self._grants)), min, initial=inf)
        self._grant_ends = list(ends)[::-1]
        self._pruning = Pruning(self._requests, self._grants, self._unknown_grants)
        self._last_grant = {it.hold.token: number for number, it in enumerate(self._grants)}
        self._unanswered: dict[str, list[tuple[int, Request]]] = defaultdict(list)
        for number, request in enumerate(by_sending):
            if request.reply is None and request.operation != "hand_over":
                self._unanswered[request.token].append((number, request))
        self.deepest = State(0, frozenset(), 0, (), frozenset())

    def is_linearizable(self, max_states: int = 0) -> bool:
        """Search depth first until every request with a reply has its point in the order."""
        if not self._are_grants_possible():
            return False
        stack, seen = [self.deepest], set()
        while stack:
            state = stack.pop()
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > (max_states or MAX_STATES):
                raise Undecided
            self.deepest = max(self.deepest, state, key=_progress)
            if state.base == len(self._requests) and state.granted == len(self._grants):
                return True
            stack += reversed(self._next_states(state))
        return False

    def _are_grants_possible(self) -> bool:
        """Return False if a fence is given twice, or a grant is known before it is requested."""
        fences = [it.hold.fence for it in self._grants]
        return all(a < b for a, b in pairwise(fences)) and all(
            it.invoked <= it.replied for it in self._grants
        )

    def _next_states(self, state: State) -> list[State]:
        """Return what may come next, the likeliest first."""
        numbers, horizon = self._next_requests(state)
        found: list[tuple[float, State]] = []
        for number in numbers:
            request = self._requests[number]
            holders = step(state.holders, request)
            if holders is None or not self._may_end(state, holders, number):
                continue
            following = _after(state, number, holders)
            if self._may_come_first(state, request, holders):
                return [following]
            found.append((request.replied, following))
        found += self._next_grant(state, horizon)
        ordered = [following for _, following in sorted(found, key=lambda pair: pair[0])]
        return ordered + list(self._insertions(state, horizon))

    def _next_grant(self, state: State, horizon: float) -> list[tuple[float, State]]:
        number = state.granted
        if number == len(self._grants) or self._grants[number].invoked > horizon:
            return []
        if not self._pruning.may_grant(number, partial(_is_open, state)):
            return []
        holders = grant(state.holders, self._grants[number].hold)
        if holders is None or not self._may_end(state, holders):
            return []
        following = state._replace(granted=number + 1, holders=holders)
        return [(self._grants[number].replied, following)]

    def _may_end(self, state: State, holders: Holders, ending: int = -1) -> bool:
        """Return True if the holds that end are not shown by a request that is still open."""
        remaining = {hold.token for hold in holders}
        ended = [hold.token for hold in state.holders if hold.token not in remaining]
        return all(
            self._pruning.may_end(token, partial(_is_open, state), ending) for token in ended
        )

    def _next_requests(self, state: State) -> tuple[list[int], float]:
        """Return the requests that were sent before any open one had its reply, and that time."""
        horizon, numbers = self._grant_ends[state.granted], []
        for number in range(state.base, len(self._requests)):
            request = self._requests[number]
            if request.invoked > horizon:
                break
            if number not in state.done:
                numbers.append(number)
                horizon = min(horizon, request.replied)
        return [it for it in numbers if self._requests[it].invoked <= horizon], horizon

    def _may_come_first(self, state: State, request: Request, holders: Holders) -> bool:
        """Return True if no order needs this request later: it only reads, or extends a hold."""
        if holders == state.holders:
            return True
        is_extension = request.operation in ("acquire", "renew") and len(holders) == len(
            state.holders
        )
        return is_extension and self._last_grant.get(request.token, -1) < state.granted

    def _unanswered_about(self, state: State) -> Iterator[tuple[int, Request]]:
        """Return the requests without a reply that may change the holders."""
        yield from self._unanswered.get("", ())
        for hold in state.holders:
            may_extend = self._pruning.may_extend(hold, partial(_is_open, state))
            for number, request in self._unanswered.get(hold.token, ()):
                if may_extend or request.operation not in ("acquire", "renew"):
                    yield number, request

    def _insertions(self, state: State, horizon: float) -> Iterator[State]:
        """Insert the effect of a request without a reply, or the end of a lease that lapses."""
        for number, request in self._unanswered_about(state):
            if number not in state.inserted and request.invoked <= horizon:
                holders = step(state.holders, request)
                if holders not in (None, state.holders) and self._may_end(state, holders):
                    yield _inserted(state, number, holders)
        for hold in state.holders:
            holders = without(state.holders, hold.token)
            if hold.lapses_from - SLACK <= horizon and self._may_end(state, holders):
                yield state._replace(holders=holders)
        for number, unknown in enumerate(self._unknown_grants):
            if -1 - number not in state.inserted and unknown.invoked <= horizon:
                holders = grant(state.holders, unknown.hold)
                if holders is not None:
                    yield _inserted(state, -1 - number, holders)


def _is_open(state: State, number: int) -> bool:
    return number >= state.base and number not in state.done


def _progress(state: State) -> int:
    return state.base + len(state.done) + state.granted


def _inserted(state: State, number: int, holders: Holders) -> State:
    return state._replace(holders=holders, inserted=state.inserted | {number})


def _after(state: State, number: int, holders: Holders) -> State:
    base, done = state.base, state.done | {number}
    while base in done:
        base, done = base + 1, done - {base}
    return state._replace(base=base, done=done, holders=holders)
