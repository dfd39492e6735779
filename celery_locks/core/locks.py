"""Locks: the blocking face. What the verbs do is in ``flows.py``; here they are driven."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from celery_locks import settings
from celery_locks.clock import now
from celery_locks.core.lease import Lease, LostCallback, StopCallback
from celery_locks.core.operations import AcquireRequest, Operations, new_token
from celery_locks.core.owners import caller, owner_here
from celery_locks.core.recent_answers import RecentAnswers
from celery_locks.errors import LockConflict
from celery_locks.signatures import shows_options
from celery_locks.store.commands.locks import Done, LockCommands
from celery_locks.store.effects import Call, Operation, Store, run_sync
from celery_locks.store.redis_store import RedisStore
from celery_locks.types import (
    DEFAULT_PREFIX,
    DEFAULT_TTL,
    ActiveRun,
    Conflict,
    Holder,
    LockInfo,
    LockSpec,
    Wait,
    check_name,
    check_not_reserved,
)

CLUSTER_SHARDS = 16
T = TypeVar("T")


class Layout(TypedDict, total=False):
    """Options that must be the same in every process that shares the locks, but for ``ttl``."""

    prefix: str
    shards: int
    ttl: float


class AcquireOptions(TypedDict, total=False):
    """How a lock is asked for; the words mean the same everywhere in this library."""

    ttl: float
    limit: int
    wait: Wait | None
    at_least: float
    reentrant: bool
    on_lost: LostCallback | None
    on_stop: StopCallback | None
    holder: Holder | None


# What each of them is if nobody says it; ``ttl`` is that of the ``Locks``.
_DEFAULTS: dict[str, Any] = {
    "ttl": DEFAULT_TTL,
    "limit": 1,
    "wait": None,
    "at_least": 0.0,
    "reentrant": False,
    "on_lost": None,
    "on_stop": None,
    "holder": None,
}
shows_asked = shows_options(_DEFAULTS, AcquireOptions.__annotations__)


def layout_of(store: Any, options: Layout) -> tuple[LockCommands, float]:
    """A Cluster spreads its locks over more shards than its primaries; one server needs one."""
    shards = options.get("shards", CLUSTER_SHARDS if store.server.topology == "cluster" else 1)
    ttl = options.get("ttl", DEFAULT_TTL)
    LockSpec("ttl", ttl)
    return LockCommands(options.get("prefix", DEFAULT_PREFIX), shards), ttl


def runs_in(infos: list[LockInfo], worker: str | None) -> list[ActiveRun]:
    runs = [ActiveRun(info.name, holder) for info in infos for holder in info.holders]
    return [run for run in runs if run.is_on(worker)]


def spec_of(name: str, default_ttl: float, asked: AcquireOptions) -> LockSpec:
    check_not_reserved(name)
    return LockSpec(
        name,
        asked.get("ttl", default_ttl),
        asked.get("limit", 1),
        asked.get("wait"),
        asked.get("at_least", 0.0),
    )


def ask_of(
    spec: LockSpec, token: str, asked: AcquireOptions, is_block: bool
) -> AcquireRequest[Any]:
    """A request of the caller's, made by the task that runs here if there is one.

    What ends with its block has an owner, and so has what can be entered again. Another lease may
    be released anywhere, and a holder that is given says for itself who it is.
    """
    reentrant, given = asked.get("reentrant", False), asked.get("holder")
    owner = owner_here() if reentrant or (is_block and not given) else None
    holder, on_lost = given or caller(owner), asked.get("on_lost")
    return AcquireRequest(spec, holder, token, now(), on_lost, owner, reentrant)


class Locks:
    """Named locks on one server, for code that blocks. Safe to share between threads.

    ``Locks(client)`` takes a redis-py client of any kind; ``Locks.from_url`` makes its own.
    Connections are opened when first needed; timeouts and retries are set here, whatever the
    client says: no call takes longer than a third of the ttl.
    """

    def __init__(self, client: Any, **layout: Unpack[Layout]) -> None:
        prefix = layout.get("prefix", DEFAULT_PREFIX)
        self._setup(RedisStore.from_client(client, prefix), layout)

    def _setup(self, store: RedisStore, layout: Layout) -> None:
        self._store = store
        self.commands, self.ttl = layout_of(store, layout)
        # Acquiring and releasing in parts, for flows that do more than that.
        self.operations = Operations(
            self, Lease, store.store_for_thread(), self.commands, store.unsubscribe
        )
        self._recent = RecentAnswers()

    @classmethod
    def from_url(cls, url: str, **layout: Unpack[Layout]) -> Self:
        """Locks on the server at this URL; ``prefix``, ``shards`` and ``ttl`` as in ``Layout``."""
        locks = cls.__new__(cls)
        locks._setup(RedisStore.from_url(url, layout.get("prefix", DEFAULT_PREFIX)), layout)
        return locks

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """The locks that a Celery app's tasks use; see ``settings.py``."""
        said = settings.of(app)
        layout: Layout = {"prefix": said.prefix}
        if said.shards is not None:
            layout["shards"] = said.shards
        if "ttl" in said.task:
            layout["ttl"] = said.task["ttl"]
        locks = cls.__new__(cls)
        locks._setup(RedisStore.from_url(said.url, said.prefix, said.url_options), layout)
        return locks

    @classmethod
    def from_client(cls, client: Any, **layout: Unpack[Layout]) -> Self:
        return cls(client, **layout)

    @property
    def server(self) -> tuple[str, int]:
        """Where the locks are kept, without any credential: the address and the database."""
        server = self._store.server
        return server.address, int(server.kwargs.get("db") or 0)

    @shows_asked
    def acquire(self, name: str, **asked: Unpack[AcquireOptions]) -> Lease | None:
        """Take a lock: a lease, renewed until it is released; None if others hold the lock.

        ``lease.release()`` gives it back; so does the death of this process, after ``ttl``.
        Prefer ``hold``, which cannot forget that. The options are those of ``hold``.

        Raises ``LockUnavailable`` if the lock server gives no usable answer, ``LockUsageError`` if
        an option is wrong, ``LimitMismatch`` if the lock is held with another limit.

            lease = locks.acquire("report:2024", wait=5)
            if lease is None:
                return "somebody else writes the report"
        """
        token = new_token()
        try:
            answer = self._try_acquire(name, token, asked)
            return None if isinstance(answer, Conflict) else answer
        except BaseException:
            # A signal's exception may strike between the grant and the caller's knowing of it.
            self.operations.release_if_acquired(token)
            raise

    @shows_asked
    def try_acquire(self, name: str, **asked: Unpack[AcquireOptions]) -> Lease | Conflict:
        """``acquire``, but if others hold the lock the answer says who: a ``Conflict``."""
        token = new_token()
        try:
            return self._try_acquire(name, token, asked)
        except BaseException:
            self.operations.release_if_acquired(token)  # as in acquire
            raise

    def _try_acquire(
        self, name: str, token: str, asked: AcquireOptions, *, is_block: bool = False
    ) -> Lease | Conflict:
        """``is_block``: the thread that acquires it is the one to release it."""
        ask: AcquireRequest[Lease] = ask_of(spec_of(name, self.ttl, asked), token, asked, is_block)
        if ask.owner and ask.reentrant:
            entered = self.operations.reenter(name, ask.owner, token)
            if entered:
                return entered
        answer = self.follow(self.operations.acquire(ask))
        assert not isinstance(answer, Done)  # nobody asked
        if isinstance(answer, Lease) and answer.token == token:
            answer.on_stop = asked.get("on_stop")
        return answer

    @overload
    def hold(
        self, name: str, *, required: Literal[True] = True, **asked: Unpack[AcquireOptions]
    ) -> AbstractContextManager[Lease]: ...
    @overload
    def hold(
        self, name: str, *, required: bool, **asked: Unpack[AcquireOptions]
    ) -> AbstractContextManager[Lease | None]: ...
    @shows_asked
    @contextmanager
    def hold(
        self, name: str, *, required: bool = True, **asked: Unpack[AcquireOptions]
    ) -> Iterator[Any]:
        """Hold the lock while the block runs; ``as`` gives the lease.

            with locks.hold("invoice:42", wait=5) as lease:
                write(invoice, fence=lease.fence)

        ``required``: if False, yield None instead of raising when others hold the lock.
        ``ttl``: seconds that the lock outlives this process; it is renewed while the block runs.
        ``limit``: how many may hold it at once; the same number everywhere.
        ``wait``: seconds to wait for it in line, or "forever"; None or 0: not at all.
        ``at_least``: seconds that it stays taken, counted from the start, if the block is shorter.
        ``reentrant``: let this thread enter again what it holds already.
        ``on_lost``: called with the lease when it is lost while the block runs.
        ``on_stop``: called with the lease when somebody asks its holder to stop.
        ``holder``: who it is that holds it, for those who look; this process if not said.

        Raises ``LockConflict`` if others hold it (and the wait is over), ``LeaseLost`` at the end
        of a block that outlived its lease, ``LockUnavailable`` if the lock server gives no usable
        answer, ``LockUsageError`` if an option is wrong, ``LimitMismatch`` if it is held with
        another limit.
        """
        token = new_token()
        try:
            lease = self._try_acquire(name, token, asked, is_block=True)
            if isinstance(lease, Conflict):
                if required:
                    raise LockConflict(lease)
                yield None
                return
            failed = True
            try:
                yield lease
                failed = False
            finally:
                run_sync(self.operations.exit_hold(lease, failed, token), self._store.perform)
        except BaseException:
            # A signal's exception may strike anywhere, also just before the block or its end.
            self.operations.release_if_acquired(token)
            raise

    def renew(self, lease: Lease, ttl: float | None = None) -> None:
        """Renew now; ``LeaseLost`` if it is no longer ours. The keeper does this by itself."""
        run_sync(self.operations.renew(lease, ttl), self._store.perform)

    def release(self, lease: Lease) -> bool:
        """Give it back; True if it was ours until now."""
        return run_sync(self.operations.release(lease), self._store.perform)

    def info(self, name: str) -> LockInfo | None:
        """Who holds it and who waits for it; None if nobody does."""
        check_name(name)
        info: LockInfo | None = self.perform(self.commands.info(name))
        return info

    def holders(self, name: str) -> tuple[Holder, ...]:
        info = self.info(name)
        return info.holders if info else ()

    def is_locked(self, name: str, *, max_age: float = 0.0) -> bool:
        """Whether anybody holds it now; with a limit, whether at least one does.

        With ``max_age`` the answer may be so many seconds old, and then costs nothing: a hint for
        hot paths, from a cache of this object that nothing refreshes but its age.
        """
        hint = self._recent.recall(name, max_age) if max_age else None
        if hint is not None:
            return hint
        asked_at = now()
        return self._recent.note(name, asked_at, bool(self.holders(name)))

    def stop(self, name: str, token: str | None = None) -> tuple[Holder, ...]:
        """Ask the holders of a lock, or the one with ``token``, to stop; returns those asked.

        Each hears it with its next renewal, within a third of its ttl, as ``StopRequested``: from
        ``lease.check()``, through ``on_stop``, or raised in a task that says ``on_stop="raise"``.
        It keeps the lock until it ends; ``admin.force_release`` takes it away.
        """
        check_name(name)
        call = self.commands.stop(name, token or "", request_id=new_token())
        asked: tuple[Holder, ...] = self.perform(call)
        return asked

    def active(self, worker: str | None = None) -> list[ActiveRun]:
        """What runs under a lock now; only on this worker or host if one is named."""
        return runs_in(self.follow(self.operations.walk()), worker)

    def follow(self, operation: Operation[T]) -> T:
        """Run a flow to its end; for the layers above, such as ``recipes``."""
        return run_sync(operation, self._store.perform)

    def perform(self, call: Call) -> Any:
        """Send one call of ``self.verbs``; for the layers above, such as ``admin``."""
        return self._store.perform(call)

    def store_for_thread(self) -> Store:
        """One with connections of its own, for a thread beside the keeper's and the callers'."""
        return self._store.store_for_thread().store_for_thread()

    def close(self) -> None:
        """Close idle connections; what is held stays held and renewed."""
        self._store.close()
