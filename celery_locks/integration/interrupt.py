"""How a lost lease reaches the code that is running under it.

===================  ===========================================================================
where the task runs  how ``LeaseLost`` (``LockRevoked``, if an operator took it) is raised in it
===================  ===========================================================================
main thread          (prefork, solo) a signal; also a kernel timer at the lease's deadline, so that
                     after a SIGSTOP or a suspended machine nothing more is done before the handler
                     has run. C code that does not return is interrupted when it returns.
another thread       (threads) an asynchronous exception, at the next bytecode: a blocking call
                     ends first
greenlet             (gevent) thrown in by the hub: a greenlet that computes is reached when it
                     next yields
greenthread          (eventlet) not at all: its hub takes nothing from other threads;
                     ``self.lock.check()`` tells
===================  ===========================================================================

In the main thread the timer also fires in a healthy task, every two thirds of the ttl, and the
handler renews the lease to learn that it is still ours. Python code does not notice; a call into a
C library that takes EINTR for an error may end early, as it may with any signal.

Nothing is raised once the task has ended. The signal is a real-time one that neither Celery nor
billiard uses; where the system has none (macOS), prefork and solo tasks learn of a loss by
``check()`` only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from celery_locks.clock import now
from celery_locks.errors import LeaseLost, LockError, LockUnavailable, StopRequested
from celery_locks.lease import BaseLease, Lease, State
from celery_locks.native import native_lock

SIGNAL: int = int(getattr(signal, "SIGRTMIN", 0)) + 9 if hasattr(signal, "SIGRTMIN") else 0


class KeptElsewhere(Lease):
    """A lease that the worker's main process renews: past its deadline it asks the store itself."""

    def check(self) -> None:
        if self._end is None and now() >= self.deadline:
            self.ask()
        super().check()

    def check_renewable(self) -> None:
        """Also past its deadline: whether it is lost is what the renewal asks."""
        if self._end:
            super().check()

    @property
    def state(self) -> State:
        """What is known here; the main process may have renewed it since."""
        return self._end or State.HELD

    def ask(self) -> None:
        """Renew, which is the way to learn whether it is still ours. Sets LOST if it is not."""
        try:
            self.face.renew(self)
        except LeaseLost:
            pass
        except LockUnavailable as error:
            if now() >= self.deadline:
                self.lose(f"it could not be renewed in time: {error}")


Word = LeaseLost | StopRequested


class Interrupter:
    """Armed while a task runs; ``lost`` and ``stop`` are the lease's callbacks, from any thread."""

    def __init__(self) -> None:
        self._deliver: Callable[[Any], None] | None = None
        self._raises = self._stops = False
        self._arm: Any = _nothing
        self._lock = native_lock()
        self._home = threading.get_ident()

    def lost(self, lease: BaseLease, error: LeaseLost) -> None:
        if threading.get_ident() == self._home:
            return  # found by the task's own check(), which raises
        with self._lock:
            if self._deliver and self._raises:
                self._deliver(error)

    def stop(self, lease: BaseLease, error: StopRequested) -> None:
        """Found by the task's own renewal, it is left to check(), or to the signal's handler."""
        if threading.get_ident() == self._home:
            return
        with self._lock:
            if self._deliver and self._stops:
                self._deliver(error)

    def prepare(self) -> None:
        """Before the lock is asked for: from then on the main process may send the signal."""
        self._arm = _gevent_way() or (_main_thread if _is_main_thread() else _thread_way)
        if self._arm is _main_thread:
            _prepare()

    @contextmanager
    def armed(self, lease: Lease, *, raises: bool, stops: bool = False) -> Iterator[None]:
        """Whether a loss, and a request to stop, are raised.

        Otherwise the lease is only marked, which one kept elsewhere needs help with.
        """
        self._raises, self._stops = raises, stops
        if self._arm is _main_thread:
            way = _main_thread(lease, raises=raises, stops=stops)
        else:
            way = self._arm(lease) if raises or stops else nullcontext()
        with way as self._deliver:
            try:
                yield
            finally:
                with self._lock:
                    self._deliver = None


def _is_main_thread() -> bool:
    return bool(SIGNAL) and threading.current_thread() is threading.main_thread()


# Main thread: prefork children and solo.

# With what to raise in them; outermost first: a locked task may call another one directly.
_running: dict[Lease, set[str]] = {}
_timer: _Timer | None = None


@contextmanager
def _main_thread(lease: Lease, *, raises: bool, stops: bool) -> Iterator[Callable[[Word], None]]:
    _running[lease] = {word for word, asked in (("lost", raises), ("stop", stops)) if asked}
    try:
        _arm()
        yield lambda _: signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
    finally:
        _running.pop(lease, None)
        _arm()


def _prepare() -> None:
    global _timer
    if _timer is None or _timer.pid != os.getpid():
        signal.signal(SIGNAL, _on_signal)
        _timer = _Timer()


def _arm(after: float = 0.0) -> None:
    """For the first of the running; disarm if there is none."""
    if _timer:
        dues = [lease.deadline - _early(lease) for lease in _running]
        _timer.set(max(0.01, after, min(dues) - now()) if dues else 0.0)


def _early(lease: Lease) -> float:
    """So that a lease kept elsewhere can be asked for more than once before its end."""
    return lease.ttl / 3 if isinstance(lease, KeptElsewhere) else 0.0


def _on_signal(signum: int, frame: FrameType | None) -> None:
    for lease in tuple(_running):
        if isinstance(lease, KeptElsewhere):
            lease.ask()
        # Forgotten when raised: the exception may meet the task on its way out, where nobody would.
        if lease.state is State.LOST and "lost" in _running.pop(lease, ()):
            lease.check()
        words = _running.get(lease, set())
        if lease.stop_requested and "stop" in words:
            words.discard("stop")
            _arm()
            lease.check()
    pauses = [min(lease.ttl / 10, lease.deadline - now()) for lease in _running]
    _arm(after=min(pauses, default=0.0))


class _Timer:
    """A kernel timer of this process on the clock that counts suspend (POSIX ``timer_create``)."""

    _CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._id = ctypes.c_void_p()
        event = _SignalEvent(sigev_signo=SIGNAL)
        if self._libc.timer_create(
            self._CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._id)
        ):
            raise OSError(ctypes.get_errno(), "timer_create failed")
        self._never = _TimerSpec()

    def set(self, seconds: float) -> None:
        """Fire once after so long; 0 disarms."""
        whole = int(seconds)
        value = _TimerSpec(0, 0, whole, int((seconds - whole) * 1e9)) if seconds else self._never
        self._libc.timer_settime(self._id, 0, ctypes.byref(value), None)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_sec", ctypes.c_long),
        ("interval_nsec", ctypes.c_long),
        ("sec", ctypes.c_long),
        ("nsec", ctypes.c_long),
    )


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("sigev_value", ctypes.c_void_p),
        ("sigev_signo", ctypes.c_int),
        ("sigev_notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


# Other threads.


class RaisedHere(LockError):
    """An error as it is raised from outside; whoever armed turns it into the ``plain`` one."""

    plain: Word


def _without_arguments(error: Word) -> type[RaisedHere]:
    """The interpreter takes a class and makes the instance itself; caught as what it stands for."""
    kind: Any = type(error)

    def __init__(self: Any) -> None:
        kind.__init__(self, *error.args)

    return type(kind.__name__, (RaisedHere, kind), {"__init__": __init__, "plain": error})


@contextmanager
def _thread_way(lease: Lease) -> Iterator[Callable[[Word], None]]:
    thread_id = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    try:
        yield (
            lambda error: raise_in(thread_id, ctypes.py_object(_without_arguments(error))) and None
        )
    finally:
        raise_in(thread_id, None)


# gevent.


def _gevent_way() -> Any:
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return _nothing if _is_eventlet() else None
    return _greenlet_way


def _is_eventlet() -> bool:
    patcher = sys.modules.get("eventlet.patcher")
    return bool(patcher and patcher.is_monkey_patched("thread"))


@contextmanager
def _nothing(lease: Lease) -> Iterator[None]:
    yield None


@contextmanager
def _greenlet_way(lease: Lease) -> Iterator[Callable[[Word], None]]:
    gevent: Any = sys.modules["gevent"]
    hub, task, over = gevent.get_hub(), gevent.getcurrent(), False

    def throw(error: Word) -> None:
        if not over:
            task.throw(error)

    try:
        yield lambda error: hub.loop.run_callback_threadsafe(throw, error) and None
    finally:
        over = True
