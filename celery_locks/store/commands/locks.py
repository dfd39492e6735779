"""The commands of a lock store as calls: what goes to each script and what its reply means.

Pure: no I/O and no clock. ``LockCommands`` knows the layout (prefix and shards); the contract of
each script stands at the head of its ``.lua`` file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_locks.errors import LimitMismatch, LockUsageError
from celery_locks.store import scripts
from celery_locks.store.effects import Call
from celery_locks.store.records import holders_of, info_of, located, revocation
from celery_locks.store.resp import Arg
from celery_locks.types import (
    DEFAULT_PREFIX,
    RESERVATION_PREFIX,
    Conflict,
    Holder,
    LockInfo,
    LockSpec,
    Revocation,
)
from celery_locks.validation import CLAIMED, QUEUED, history_text

CALL_LIMIT = 3.0
# For looking who waits for whom: less than a waiter has to claim its grant (CLAIM).
WAITS_LIMIT = 0.3
RENEW_BATCH = 250
# So many locks take the server about 1 ms: 100 take 2 to 5 or more, which others would feel.
PAGE = 40
# What a waiter that is handed the lock has of it until it renews (CLAIM_MS in ends.lua).
CLAIM = 1.0


# The attempt that a replaced message is marked to have ended with (as in acquire.lua).
SUPERSEDED = 10**15


class Renewal(NamedTuple):
    """One lease in a batch: enough to renew it and to say which one was lost."""

    name: str
    token: str
    ttl: float


class Done(NamedTuple):
    """The answer to an acquire that asked.

    This attempt of the job has ended elsewhere; or, with its mark, the lock's work is done.
    """

    mark: str = ""
    was_replaced: bool = False  # it never began: another message took its place
    is_being_replaced: bool = False  # another message is about to, if it can be sent
    leaves_result: bool = True  # False: none is to come of it (``Ignore``, ``Retry``)


class IdempotencyCheck(NamedTuple):
    """The mark that says that a lock's work is done, and what it stands against."""

    mark: str
    reuse: str
    ttl: float


class AcquireExtras(NamedTuple):
    """What else is asked and done in the call that acquires; most have nothing of the kind."""

    reject_if_completed: bool = False
    """Whether this attempt of the job has ended elsewhere: then it is not granted."""
    frees: tuple[str, str] = ("", "")
    """Name and token of a lock to give back when this one is granted."""
    replaces: str = ""
    """Token of a queued message whose reservation is taken over (``ReplacedReservation``)."""
    supersedes: tuple[str, float] = ("", 0.0)
    """Task id, seconds: a message that was replaced and shall not run when this one has begun."""
    once: IdempotencyCheck | None = None
    """Granted only if the work is not done."""

    def args(self) -> tuple[Arg, ...]:
        """For the script; none if there is nothing to say."""
        if self == _NO_EXTRAS:
            return ()
        job = _job_of(self.supersedes[0]) if self.supersedes[0] else ""
        once = (self.once.mark, self.once.reuse, _ms(self.once.ttl)) if self.once else ("", "", 0)
        return (
            int(self.reject_if_completed),
            *self.frees,
            self.replaces,
            job,
            _ms(self.supersedes[1]),
            *once,
        )


_NO_EXTRAS = AcquireExtras()


class Mark(NamedTuple):
    """What to leave behind with the release, for how long; see ``marks.lua``."""

    mark: str
    value: str | int
    ttl: float


class Lost(set[str]):
    """The tokens of a batch that are lost, with what the operator said of those ``revoked``.

    ``stops`` are those, not lost, whose holders are asked to stop.
    """

    revoked: Mapping[str, Revocation] = {}
    stops: frozenset[str] = frozenset()


class Located(dict[str, tuple[str, Holder]]):
    """Token → (lock name, Holder); ``revoked`` are the tokens that an operator took it from."""

    revoked: frozenset[str] = frozenset()


class ReplacedReservation(int):
    """The fence of a grant in the place of a message that nobody had begun."""


class LockPage(NamedTuple):
    """A part of the list, and where it goes on; ``cursor`` is "" at the end."""

    locks: list[LockInfo]
    cursor: str


class Wait(NamedTuple):
    """The lock that an owner waits for, with the waiter's token and ticket, and who holds it."""

    owner: str
    name: str
    token: str
    ticket: int
    is_complete: bool
    """False: it has more holders than these."""
    holders: tuple[Holder, ...]


def budget_of(ttl: float) -> float:
    """The longest a call for such a lease may take: a third, so that two tries fit in it."""
    return min(ttl / 3, CALL_LIMIT)


class LockCommands:
    """Builds the calls for one prefix, spread over ``shards`` hash tags."""

    def __init__(self, prefix: str = DEFAULT_PREFIX, shards: int = 1) -> None:
        if not prefix or set(prefix) & set("{} \r\n"):
            raise LockUsageError(f"prefix {prefix!r} must be a text without braces and spaces")
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise LockUsageError(f"shards is {shards!r}; it must be a whole number from 1")
        self.prefix = prefix
        self.roots = [f"{prefix}:{{{shard}}}:" for shard in range(shards)]
        self._only_root = self.roots[0] if shards == 1 else ""

    def root(self, name: str) -> str:
        """The shard of a lock: the same in every process that uses this prefix and shard count."""
        if len(self.roots) == 1:
            return self.roots[0]
        return self.roots[zlib.crc32(_spread_by(name).encode()) % len(self.roots)]

    def acquire(
        self,
        spec: LockSpec,
        token: str,
        holder: Holder,
        extras: AcquireExtras | None = None,
        *,
        alive: float = 0,
        channel: str = "-",
        owners: Sequence[str] = (),
    ) -> Call:
        """Answers with the fence, with a ``Conflict``, or, if asked for, with a ``Done``.

        ``owners`` are those that hold other locks and cannot go on while this waits.
        """
        name, ttl, limit, _, _ = spec
        ms, size = round(ttl * 1000), len(name) if name.isascii() else len(name.encode())
        record = (
            f"{ms} {limit} {_job(holder)} {holder.attempt} {channel} {size} {name}{holder.about()}"
        )
        args: tuple[Arg, ...] = (name, token, ms, record)
        if alive or extras:
            waits: Arg = " ".join((str(_ms(alive)), *owners)) if owners else _ms(alive)
            args += (waits, *(extras.args() if extras else ()))

        def parse(reply: Any) -> int | Conflict | Done:
            if isinstance(reply, int):
                return reply
            return (
                ReplacedReservation(reply[1]) if reply[0] == b"replaced" else _refused(spec, reply)
            )

        root = self._only_root or self.root(name)
        return Call(scripts.ACQUIRE, root, args, parse, min(ttl / 3, CALL_LIMIT))

    def release(
        self,
        name: str,
        token: str,
        *,
        keep: float = 0,
        keep_as: str = "",
        marks: Sequence[Mark] = (),
        past: str | None = None,
        budget: float = CALL_LIMIT,
    ) -> Call:
        """Answers True if the lock was ours until now; leaves ``marks`` whether it was or not.

        ``keep`` leaves the slot taken for so long, under the token ``keep_as`` or one nobody knows.
        With ``past`` the hold is written down, if it was one and for more than a second: "" if it
        ended by itself, else why. Without it the release does nothing about that.
        """
        args: tuple[Arg, ...] = (name, token)
        if keep or marks or past is not None:
            args += (_ms(keep), keep_as)
            for mark, value, ttl in marks:
                args += (mark, value, _ms(ttl))
            if past is not None:
                args += (past,)
        return Call(scripts.RELEASE, self._only_root or self.root(name), args, bool, budget)

    def supersede(self, name: str, task_id: str, seconds: float) -> Call:
        """A message that was replaced: for so long it does not run when it comes."""
        gone = Holder(task_id=task_id, retries=SUPERSEDED - 1)
        return self.release(name, "", marks=[ended(gone, seconds)])

    def locate(self, root: str, tokens: Sequence[str], budget: float) -> Call:
        """Answers with the ``Located`` of those tokens that this shard knows."""

        def parse(reply: Any) -> Located:
            said = [pair for pair in zip(tokens, reply, strict=True) if pair[1]]
            found = Located(
                (token, located(token, record)) for token, record in said if record != 1
            )
            found.revoked = frozenset(token for token, record in said if record == 1)
            return found

        return Call(scripts.LOCATE, root, tuple(tokens), parse, budget)

    def renew(self, batch: Sequence[Renewal], budget: float, *, retimed: bool = False) -> Call:
        """For leases of one shard; answers with the ``Lost`` among their tokens.

        ``retimed``: there is one only, from now on with another ttl.
        """
        args: list[Arg] = []
        for name, token, ttl in batch:
            args += (name, token, round(ttl * 1000))
        args += (1,) if retimed else ()

        def parse(reply: Any) -> Lost:
            if not reply:
                return Lost()
            notes = {batch[said[0]].token: said[1] for said in reply if isinstance(said, list)}
            plain = [said for said in reply if isinstance(said, int)]
            lost = Lost(notes.keys() | {batch[said].token for said in plain if said >= 0})
            lost.revoked = {token: revocation(note) for token, note in notes.items()}
            lost.stops = frozenset(batch[-1 - said].token for said in plain if said < 0)
            return lost

        return Call(scripts.RENEW, self.root(batch[0].name), tuple(args), parse, budget)

    def stop(
        self, name: str, token: str = "", by: str = "", why: str = "", *, question: str
    ) -> Call:
        """Answers with the holders that were asked to stop; logged if it is said by whom."""

        def parse(reply: Any) -> tuple[Holder, ...]:
            return tuple(holders_of(reply[1:]))

        args = (name, token, history_text("by", by), history_text("reason", why), question)
        return Call(scripts.STOP, self.root(name), args, parse, CALL_LIMIT)

    def info(self, name: str) -> Call:
        """Answers with the ``LockInfo``, or None when nobody holds it or waits for it."""

        def parse(reply: Any) -> LockInfo | None:
            now, lock = reply
            return info_of(lock, now) if len(lock) > 2 else None

        return Call(scripts.INFO, self.root(name), (name,), parse, CALL_LIMIT)

    def waits(self, root: str, owners: Sequence[str]) -> Call:
        """Answers with a ``Wait`` for each of the owners that waits in this shard."""

        def parse(reply: Any) -> list[Wait]:
            return [_wait(*entry) for entry in reply]

        return Call(scripts.WAITS, root, tuple(owners), parse, WAITS_LIMIT)

    def page(self, cursor: str = "", size: int = PAGE, *, lapsed: bool = False) -> Call:
        """List locks; answered with a ``LockPage``, whose cursor names the shard and the position.

        ``lapsed``: the holders that lapsed and are not forgotten yet, instead of those that hold.
        """
        shard, _, inner = (cursor or "0:0").partition(":")

        def parse(reply: Any) -> LockPage:
            locks = [info_of(lock, reply[1]) for lock in reply[2:]]
            return LockPage(locks, self.following(int(shard), reply[0].decode()))

        return Call(
            scripts.LIST, self.roots[int(shard)], (inner, size, int(lapsed)), parse, CALL_LIMIT
        )

    def following(self, shard: int, inner: str) -> str:
        """The cursor after ``inner``, which may be in the next shard."""
        if inner != "0":
            return f"{shard}:{inner}"
        return f"{shard + 1}:0" if shard + 1 < len(self.roots) else ""


def _spread_by(name: str) -> str:
    """What decides a lock's shard: a message's lock is in that of its run.

    The shard of a claim never changes, whatever its lock is called: the bindings are there.
    """
    if name.endswith(CLAIMED):
        return "claim:" + name.removesuffix(CLAIMED)
    return name.removesuffix(QUEUED)


def reservation_token(task_id: str, *, again: bool = False) -> str:
    """The token of a message: whoever knows the job's id can give its place in the queue back.

    ``again`` for the message of a retry: a publisher that got no answer goes on giving back what
    it asked for, for as long as that could last.
    """
    return RESERVATION_PREFIX + "+" * again + quote(task_id, safe="")


def ended(holder: Holder, ttl: float, *, leaves_result: bool = True) -> Mark:
    """That this attempt of the holder's job has ended, for copies of its message that come late.

    Half an attempt more if it leaves no result: the next one is above that still.
    """
    return Mark(
        f"d:{_job(holder)}", holder.attempt if leaves_result else f"{holder.attempt}.5", ttl
    )


def _job(holder: Holder) -> str:
    task_id = holder.job_id
    if task_id and _is_plain(task_id):
        return "j" + task_id
    return _job_of(task_id) if task_id else "-"


def _job_of(task_id: str) -> str:
    return "j" + quote(task_id, safe="")


# As nearly every task id is; what quote() would leave alone.
_is_plain = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def _wait(
    owner: bytes, name: bytes, token: bytes, ticket: bytes, count: int, *holders: Any
) -> Wait:
    known = tuple(holders_of(holders))
    is_complete = len(known) == count
    return Wait(
        owner.decode(), name.decode(), token.decode(), int(float(ticket)), is_complete, known
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _refused(spec: LockSpec, reply: list[Any]) -> Conflict | Done:
    if reply[0] == b"done":
        if reply[1] == b"?":
            return Done(is_being_replaced=True)
        attempt = float(reply[1])
        return Done(was_replaced=attempt >= SUPERSEDED, leaves_result=attempt.is_integer())
    if reply[0] == b"once":
        return Done(reply[1].decode())
    if reply[0] == b"limit":
        raise LimitMismatch(
            f"lock {spec.name!r} is held with limit {reply[1]}, not {spec.limit}; "
            "use one limit for a name, or another name"
        )
    _, lapses, position, now, ticket, *holders = reply
    return Conflict(
        spec.name, tuple(holders_of(holders)), max(0, lapses) / 1000, position, now / 1000, ticket
    )
