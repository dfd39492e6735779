"""The commands of holders and waiters: what goes to each script, as values that callers pass.

Pure: no I/O and no clock. ``LockCommands`` knows the layout (prefix and shards). The contract of
each script is at the head of its ``.lua`` file, ``replies.py`` reads what it returns.

More than 300 lines, because these values are the arguments of these commands, and a reader of one
needs the other.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_locks.errors import LockUsageError
from celery_locks.store import scripts
from celery_locks.store.commands.replies import (
    SUPERSEDED,
    Located,
    LockPage,
    PreparedMessage,
    Reassertion,
    Rejection,
    Renewal,
    RenewReply,
    Wait,
    holders_of,
    infos_of,
    parse_acquire,
    parse_locate,
    parse_prepared,
    parse_renew,
    parse_wait,
)
from celery_locks.store.effects import Call, Operation
from celery_locks.store.scripts import Arg, PlainCommand
from celery_locks.types import (
    DEFAULT_PREFIX,
    PARKED_PREFIX,
    RESERVATION_PREFIX,
    Conflict,
    Holder,
    LockInfo,
    LockSpec,
)
from celery_locks.validation import CLAIMED, QUEUED, history_text

CALL_LIMIT = 3.0
# For deadlock detection: less than the time in which a waiter must claim its grant (CLAIM).
WAITS_LIMIT = 0.3
RENEW_BATCH = 250
# The server needs about 1 ms for this many locks. 100 take 2 to 5 ms or more, which delays others.
PAGE = 40
# The claim window in seconds; CLAIM_MS in handover.lua is the same number.
CLAIM = 1.0
# In a reservation's token: its message is the same attempt as the run that ended (release.lua).
REQUEUED = "*"
# The reply of a release that woke a parked message (release.lua).
WOKE = 3
_MGET, _ZSCAN = PlainCommand("MGET"), PlainCommand("ZSCAN")


def budget_of(ttl: float) -> float:
    """Return the longest time for a call about such a lease: a third, so that two tries fit."""
    return min(ttl / 3, CALL_LIMIT)


class Mark(NamedTuple):
    """What a release leaves behind, and for how long; see ``marks.lua``.

    ``key`` is the redis key without the root of its shard.
    """

    key: str
    value: str | int
    ttl: float


class IdempotencyCheck(NamedTuple):
    """The mark of completed work that forbids a grant, and the rule for it (``idempotency.py``).

    ``mark`` is its key, as in ``Mark``. The ``reuse`` "failed_later" is "failed_only" with a mark
    of the failure, which forbids the grant too.
    """

    mark: str
    reuse: str
    ttl: float


class RateCheck(NamedTuple):
    """A rate that the start must keep to; ``limits`` is a ``Rate.text``.

    A start within ``patience`` seconds is promised to the caller, in the order of the calls.
    ``skips`` says that the caller shall be skipped if there is no promise.
    """

    name: str
    limits: str
    patience: float
    skips: bool = False

    def keys(self, root: str, token: str) -> tuple[str, ...]:
        """Return the redis keys of the rate, and that of the saved reply; see ``rates.lua``."""
        return (*rate_keys(root, self.name), f"{root}rates", f"{root}p:{token}")

    def args(self) -> tuple[Arg, ...]:
        return round(self.patience * 1e6), self.limits


class ParkRequest(NamedTuple):
    """A message to park if the lock is busy, unless ``most`` wait already; see ``park.lua``.

    ``holder`` is the message, which nobody has begun, and ``lifetime`` the seconds for which its
    slot is reserved for it once it is woken. ``attempt`` is that of the run which parks it. Those
    of one ``group`` take turns with the other groups. A ``latest`` one takes the place of the
    ``latest`` one that waits. One with a higher ``rank`` comes first; the others have rank 0.
    ``ticket`` is that with which the run waited before: the message has its place in the queue.
    """

    holder: Holder
    attempt: int
    lifetime: float
    message: str
    most: int
    group: str = ""
    latest: bool = False
    rank: int = 0
    ticket: int = 0

    def args(self, spec: LockSpec) -> tuple[Arg, ...]:
        assert self.holder.task_id is not None
        token = reservation_token(self.holder.task_id, parked=True)
        reserved = spec._replace(ttl=self.lifetime)
        record = _record_tail(reserved, self.holder, job_field(self.holder))
        keeps = "latest" if self.latest else "all"
        parked = token, self.attempt, record, self.message
        return *parked, self.most, self.group, keeps, self.rank, self.ticket


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
    newest: tuple[str, float] = ("", 0.0)
    """Name of the lock whose latest message to remember, and for how many seconds."""
    idempotency: IdempotencyCheck | None = None
    """Grant the lock only if its work is not completed; else reject the call with ``Completed``."""
    rates: tuple[RateCheck, ...] = ()
    """Grant the lock only if these rates allow a start now; else the reply is ``Limited``."""
    join: tuple[str, int] = ("", 0)
    """The mark of a run's result, and the fence from which on it counts: then ``Completed``."""
    park: ParkRequest | None = None
    """The message to park if the lock is busy; then the reply is ``Parked``."""
    forget: str = ""
    """Token of the reservation whose message need not be kept once the lock is granted."""
    published_by: tuple[int, ...] = ()
    """Fences of the run that published this retry: take the lock over from no other run."""

    def options(self, root: str, token: str, job: str) -> tuple[list[str], list[Arg]]:
        """Return the keys and the arguments of the script's options; see ``acquire.lua``."""
        keys: list[str] = []
        args: list[Arg] = []
        if self.reject_if_ended:
            keys += [f"{root}e:{job}"]
            args += ["ended"]
        name, reservation = self.release_on_grant
        if reservation:
            keys += [*lock_keys(root, name), f"{root}a:{name}"]
            args += ["release", reservation]
        if self.replace:
            keys += [f"{root}e:{_job_of_reservation(self.replace)}", f"{root}p:{token}"]
            args += ["replace", self.replace]
        task_id, seconds = self.supersede
        if task_id:
            keys += [f"{root}e:{_quoted_job(task_id)}"]
            args += ["supersede", milliseconds(seconds)]
        name, seconds = self.newest
        if name:
            keys += [f"{root}n:{name}"]
            args += ["newest", milliseconds(seconds)]
        if self.idempotency:
            mark, reuse, ttl = self.idempotency
            keys += [root + mark]
            args += ["once", reuse, milliseconds(ttl)]
        mark, fence = self.join
        if mark:
            keys += [root + mark]
            args += ["join", fence]
        if self.forget:
            keys += [f"{root}kept"]
            args += ["forget", self.forget]
        if self.published_by:
            args += ["published_by", ",".join(map(str, self.published_by))]
        for rate in self.rates:
            keys += rate.keys(root, token)
            args += ["rate", *rate.args()]
        return keys, args


def lock_keys(root: str, name: str) -> tuple[str, str]:
    """Return the redis keys of a lock: its holders and its waiters."""
    return f"{root}h:{name}", f"{root}q:{name}"


def caller_of(holder: Holder, token: str) -> str:
    """Return who is promised a start: the job, because each run of a message has a new token."""
    job = job_field(holder)
    return token if job == "-" else job


def rate_keys(root: str, name: str) -> tuple[str, str]:
    """Return the redis keys of a rate: its times, and the callers with a promise."""
    return f"{root}r:{name}", f"{root}d:{name}"


def reservation_token(
    task_id: str, *, again: bool = False, requeued: bool = False, parked: bool = False
) -> str:
    """Return the token of a message's reservation: whoever knows the task id can release it.

    ``again`` is for the message of a retry. A publisher that got no reply repeats its release
    until the reservation has expired; that release must not end the reservation of the retry.
    ``requeued`` is for the same attempt, after a run that ended itself (``release.lua``).
    ``parked`` is for a message that waits on the server (``park.lua``).
    """
    if parked:
        return PARKED_PREFIX + quote(task_id, safe="")
    kind = REQUEUED if requeued else "+" * again
    return RESERVATION_PREFIX + kind + quote(task_id, safe="")


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
    """Return the job of a ``reservation_token``; a quoted task id has no "+" and no "*"."""
    return "j" + token.removeprefix(RESERVATION_PREFIX).lstrip("+" + REQUEUED)


# True of nearly every task id: quote() would not change it.
_is_plain = re.compile(r"[A-Za-z0-9_.~-]+").fullmatch


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


# Only these are replies of release.lua; anything else is that of another call.
_parse_release: Callable[[Any], int] = {0: 0, 1: 1, WOKE: WOKE}.__getitem__


class LockCommands:
    """Builds the calls for one prefix, spread over ``shards`` hash tags."""

    def __init__(
        self, prefix: str = DEFAULT_PREFIX, shards: int = 1, *, guard_after_loss: bool = True
    ) -> None:
        if not prefix or set(prefix) & set("{} \r\n"):
            raise LockUsageError(f"prefix {prefix!r} must be a text without braces and spaces")
        if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
            raise LockUsageError(f"shards is {shards!r}; it must be a whole number from 1")
        self.prefix = prefix
        self.roots = [f"{prefix}:{{{shard}}}:" for shard in range(shards)]
        self._only_root = self.roots[0] if shards == 1 else ""
        self.guard_after_loss = guard_after_loss
        # Root → the latest number, a fence or a ticket, that its server gave us; see guard.lua.
        self._known_numbers: dict[str, int] = {}

    def root(self, name: str) -> str:
        """Return the shard of a lock, the same in every process with this prefix and shards."""
        if len(self.roots) == 1:
            return self.roots[0]
        return self.roots[zlib.crc32(_shard_name(name).encode()) % len(self.roots)]

    def has_shard_of(self, name: str, rates: Sequence[RateCheck]) -> bool:
        """Return True if these rates are in the shard of the lock: one call decides them all."""
        return bool(self._only_root) or {self.root(it.name) for it in rates} <= {self.root(name)}

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
        also: Sequence[LockSpec] = (),
    ) -> Call:
        """Acquire the lock: the fence, a ``Conflict`` or, if the extras ask, a ``Rejection``.

        A caller with ``alive`` joins the queue of a busy lock and counts as alive for that many
        seconds. ``owners`` hold other locks and are blocked while this caller waits. ``also`` are
        further locks of the same shard: all are granted or none (``GrantSeveral``).
        """
        if also:
            holder = holder._replace(also=tuple(other.name for other in also))
            channel = f"+{channel}"
        name, ttl, _, _, _ = spec
        job, root = job_field(holder), self._only_root or self.root(name)
        record = _record_tail(spec, holder, job, channel)
        keys: tuple[str, ...] = lock_keys(root, name)
        known = self._known_number(root, token)
        args: tuple[Arg, ...] = (token, record, known)
        if alive:
            args += ("wait", milliseconds(alive))
        rates: tuple[RateCheck, ...] = ()
        if extras:
            if self.has_shard_of(name, extras.rates):
                rates = extras.rates
            else:
                extras = extras._replace(rates=())
            more_keys, more_args = extras.options(root, token, job)
            keys, args = (*keys, *more_keys), (*args, *more_args)
            if extras.park:
                keys += (f"{root}parked", f"{root}g:{name}")
                args += ("park", *extras.park.args(spec))
        for other in also:
            keys += lock_keys(root, other.name)
            args += ("also", _record_tail(other, holder._replace(also=()), job, channel))
        if owners:
            keys += tuple(f"{root}w:{owner}" for owner in owners)

        def parse(reply: Any) -> int | Conflict | Rejection:
            if not isinstance(reply, int):
                reply = parse_acquire(spec, [rate.name for rate in rates], reply, also)
            if known != "":  # else the call has not begun an epoch
                self._note_number(root, reply)
            answer: int | Conflict | Rejection = reply
            return answer

        return Call(scripts.ACQUIRE, root, keys, args, parse, min(ttl / 3, CALL_LIMIT))

    def _known_number(self, root: str, token: str) -> Arg:
        """Return the number by which the server notices that it lost its data; "" for none.

        A reservation needs no guard: nothing runs by it.
        """
        if not self.guard_after_loss or token.startswith(RESERVATION_PREFIX):
            return ""
        return self._known_numbers.get(root, 0)

    def _note_number(self, root: str, answer: int | Conflict | Rejection) -> None:
        number = answer.ticket if isinstance(answer, Conflict) else answer
        if isinstance(number, int) and number > self._known_numbers.get(root, 0):
            self._known_numbers[root] = int(number)

    def release(
        self,
        name: str,
        token: str,
        *,
        keep_for: float = 0,
        next_token: str = "",
        marks: Sequence[Mark] = (),
        history_note: str | None = None,
        budget: float = CALL_LIMIT,
    ) -> Call:
        """Release the lock: 1 if the token held it, else 0; ``WOKE`` if a message was woken too.

        Leave the ``marks`` in any case.

        ``keep_for``: seconds for which the slot stays taken, under ``next_token`` or a token that
        nobody knows. With a ``history_note``, a hold of more than a second is noted in the history:
        "" if it ended by itself, else why it ended.
        """
        root = self._only_root or self.root(name)
        keys: tuple[str, ...] = lock_keys(root, name)
        args: tuple[Arg, ...] = (token,)
        if keep_for or marks or history_note is not None:
            args += (milliseconds(keep_for), next_token)
            for key, value, ttl in marks:
                keys += (root + key,)
                args += (value, milliseconds(ttl))
            if history_note is not None:
                args += (history_note,)
        return Call(scripts.RELEASE, root, keys, args, _parse_release, budget)

    def release_several(
        self,
        names: Sequence[str],
        token: str,
        *,
        keep_for: float = 0,
        marks: Sequence[Mark] = (),
        history_note: str | None = None,
        budget: float = CALL_LIMIT,
    ) -> Call:
        """Release locks of one shard that were acquired together: True if the token held all."""
        root = self.root(names[0])
        keys = tuple(key for name in names for key in lock_keys(root, name))
        args: tuple[Arg, ...] = (token, len(names), milliseconds(keep_for))
        for key, value, ttl in marks:
            keys += (root + key,)
            args += (value, milliseconds(ttl))
        if history_note is not None:
            args += (history_note,)
        return Call(scripts.RELEASE_SEVERAL, root, keys, args, bool, budget)

    def are_together(self, names: Sequence[str]) -> bool:
        """Return True if the locks are in one shard, where one call reaches all of them."""
        return len({self.root(name) for name in names}) == 1

    def supersede(self, name: str, task_id: str, seconds: float) -> Call:
        """Mark a replaced message: it does not run if it is delivered within these seconds."""
        return self.release(name, "", marks=[superseded_mark(task_id, seconds)])

    def prepare_message(self, name: str, task_id: str, wait: float, lifetime: float) -> Call:
        """Announce a message before it is sent: a ``PreparedMessage``.

        It does not run before ``commit_message``, for which it waits for ``wait`` seconds.
        """

        def parse(reply: Any) -> PreparedMessage:
            return parse_prepared(name, reply)

        root, mark = self.root(name), superseded_mark(task_id, lifetime)
        keys = (f"{root}h:{name}", f"{root}a:{name}", root + mark.key)
        args = (milliseconds(wait), milliseconds(lifetime))
        return Call(scripts.PREPARE_MESSAGE, root, keys, args, parse, CALL_LIMIT)

    def commit_message(
        self, spec: LockSpec, holder: Holder, replaced: Holder | None, arguments: str
    ) -> Call:
        """Give the reservation to a message that was sent: its fence, or 0 if it never runs."""

        def parse(reply: Any) -> int:
            return int(reply[0])

        assert holder.task_id is not None
        name, root, job = spec.name, self.root(spec.name), job_field(holder)
        lifetime = replaced.expires_at - replaced.acquired_at if replaced else 0.0
        mark = superseded_mark(holder.task_id, max(spec.ttl, lifetime))
        token, replaced_job = reservation_token(holder.task_id), job_field(replaced or holder)
        keys = (
            *(f"{root}h:{name}", f"{root}a:{name}", f"{root}e:{job}"),
            *(f"{root}e:{replaced_job}", f"{root}p:{token}"),
        )
        record, expected = _record_tail(spec, holder, job), replaced.token if replaced else ""
        args = (token, record, expected, arguments, mark.value, milliseconds(mark.ttl))
        return Call(scripts.COMMIT_MESSAGE, root, keys, args, parse, CALL_LIMIT)

    def leave_message(self, name: str, message: Holder) -> Call:
        """Take the reservation from a queued message that is due: True if it had it.

        It still runs, unless a later one, as ``newest`` knows it, has started before it.
        """
        root = self.root(name)
        of_run = name.removesuffix(QUEUED)
        keys = (f"{root}h:{name}", f"{root}e:{job_field(message)}", f"{root}n:{of_run}")
        args = (message.token, milliseconds(message.expires_at - message.acquired_at))
        return Call(scripts.LEAVE_MESSAGE, root, keys, args, bool, CALL_LIMIT)

    def locate(self, root: str, tokens: Sequence[str], budget: float) -> Call:
        """Find the holders of tokens in one shard, as ``Located``."""

        def parse(reply: Any) -> Located:
            return parse_locate(tokens, reply)

        return Call(scripts.LOCATE, root, (), tuple(tokens), parse, budget)

    def renew(self, batch: Sequence[Renewal], budget: float, *, retimed: bool = False) -> Call:
        """Renew leases of one shard: a ``RenewReply``.

        ``retimed``: there is only one lease, and it changes its ttl.
        """
        root = self.root(batch[0].name)
        keys = tuple(f"{root}h:{name}" for name, _, _ in batch)
        args: list[Arg] = []
        for _, token, ttl in batch:
            args += (token, round(ttl * 1000))
        args += (1,) if retimed else ()

        def parse(reply: Any) -> RenewReply:
            return parse_renew(batch, reply)

        return Call(scripts.RENEW, root, keys, tuple(args), parse, budget)

    def reassert(self, batch: Sequence[Reassertion], budget: float) -> Call:
        """Assert leases of one shard again after a loss of data: the tokens that stay lost."""
        root = self.root(batch[0].spec.name)
        keys = tuple(f"{root}h:{spec.name}" for spec, _, _, _ in batch)
        args: list[Arg] = []
        for spec, token, fence, holder in batch:
            args += (token, fence, _record_tail(spec, holder, job_field(holder)))

        def parse(reply: Any) -> frozenset[str]:
            return frozenset(batch[position].token for position in reply)

        return Call(scripts.REASSERT, root, keys, tuple(args), parse, budget)

    def stop(
        self, name: str, token: str = "", by: str = "", why: str = "", *, request_id: str
    ) -> Call:
        """Ask the holders to stop: those that were asked. Logged only with ``by``.

        ``request_id`` is a token by which the server recognises a repeated call.
        """

        def parse(reply: Any) -> tuple[Holder, ...]:
            return tuple(holders_of(reply[1:]))

        root = self.root(name)
        keys = (f"{root}h:{name}", f"{root}p:{request_id}")
        args = (token, history_text("by", by), history_text("reason", why))
        return Call(scripts.STOP, root, keys, args, parse, CALL_LIMIT)

    def info(self, name: str) -> Call:
        """Read one lock: its ``LockInfo``; None without holders, waiters, pause and limit."""

        def parse(reply: Any) -> LockInfo | None:
            return next(iter(infos_of([name], reply)), None)

        root = self.root(name)
        return Call(scripts.DESCRIBE, root, lock_keys(root, name), (), parse, CALL_LIMIT)

    # The names of these are read first, so that the call declares its keys.

    def waits(self, root: str, owners: Sequence[str]) -> Operation[list[Wait]]:
        """Read a ``Wait`` for each of the owners that waits in this shard."""
        keys = tuple(f"{root}w:{owner}" for owner in owners)
        values = yield Call(_MGET, root, keys, (), list, WAITS_LIMIT)
        pairs = zip(owners, values, strict=True)
        waiters = [(owner, *value.decode().split(" ", 1)) for owner, value in pairs if value]
        if not waiters:
            return []
        keys = tuple(key for _, _, name in waiters for key in lock_keys(root, name))
        tokens = tuple(token for _, token, _ in waiters)
        entries = yield Call(scripts.WAITS, root, keys, tokens, list, WAITS_LIMIT)
        found = zip(waiters, entries, strict=True)
        return [parse_wait(*waiter, *entry) for waiter, entry in found if entry]

    def page(
        self, cursor: str = "", size: int = PAGE, *, lapsed: bool = False
    ) -> Operation[LockPage]:
        """Read a ``LockPage``; a lock that is held during the whole walk is on some page.

        With ``lapsed`` it has the holders that lapsed and are not forgotten yet.
        """
        root, names, cursor = yield from self.names("index", cursor, size)
        if not names:
            return LockPage([], cursor)

        def parse(reply: Any) -> list[LockInfo]:
            return infos_of(names, reply)

        keys = tuple(key for name in names for key in lock_keys(root, name))
        locks = yield Call(scripts.DESCRIBE, root, keys, (int(lapsed),), parse, CALL_LIMIT)
        return LockPage(locks, cursor)

    def names(
        self, key: str, cursor: str = "", size: int = PAGE
    ) -> Operation[tuple[str, list[str], str]]:
        """Read a page of the names in one of the indexes: the root, the names, the next cursor.

        A cursor is the shard and the server's cursor in it, "" at the start and at the end.
        """
        shard, _, inner = (cursor or "0:0").partition(":")
        root = self.roots[int(shard)]
        page = yield Call(_ZSCAN, root, (root + key,), (inner, "COUNT", size), list, CALL_LIMIT)
        following, names = page[0].decode(), [name.decode() for name in page[1][::2]]
        if following != "0":
            return root, names, f"{shard}:{following}"
        is_last = int(shard) + 1 == len(self.roots)
        return root, names, "" if is_last else f"{int(shard) + 1}:0"


def _record_tail(spec: LockSpec, holder: Holder, job: str, channel: str = "-") -> str:
    """Return a record without fence and since; see ``common.lua``."""
    name, ttl, limit, _, _ = spec
    ms, size = round(ttl * 1000), len(name) if name.isascii() else len(name.encode())
    return f"{ms} {limit} {job} {holder.attempt} {channel} {size} {name}{holder.about()}"


def _shard_name(name: str) -> str:
    """Return the name that decides the shard: a reservation is in the shard of its run.

    The shard of a claim must never change, whatever its lock is called: its value is stored there.
    """
    if name.endswith(CLAIMED):
        return "claim:" + name.removesuffix(CLAIMED)
    return name.removesuffix(QUEUED)
