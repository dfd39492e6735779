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
handler renews the lease to learn that it is still ours. It is not stopped when a task ends, and not
set again for the next one if it fires early enough, so short tasks never touch it: it fires once
more, perhaps while nothing runs, and then rests. Python code does not notice; a call into a C
library that takes EINTR for an error may end early, as it may with any signal.

Nothing is raised once the task has ended. The signal is a real-time one that neither Celery nor
billiard uses; where the system has none (macOS), prefork and solo tasks learn of a loss by
``check()`` only.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import signal
import sys
import threading
from functools import cache
from types import FrameType
from typing import Any

from celery_locks.clock import now
from celery_locks.core.lease import BaseLease, Lease, State
from celery_locks.errors import LeaseLost, LockError, LockUnavailable, StopRequested
from celery_locks.forking import run_after_fork
from celery_locks.unpatched import native_lock

SIGNAL: int = int(getattr(signal, "SIGRTMIN", 0)) + 9 if hasattr(signal, "SIGRTMIN") else 0


class RemotelyRenewedLease(Lease):
    """A lease that the worker's main process renews: past its deadline it asks the store itself."""

    _longest = 0.0

    def retime(self, ttl: float, sent_at: float) -> None:
        """Never longer than the main process renews it with, which knows nothing of this one."""
        self._longest = self._longest or self.ttl
        super().retime(min(ttl, self._longest), sent_at)

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
            self.backend.renew(self)
        except LeaseLost:
            pass
        except LockUnavailable as error:
            if now() >= self.deadline:
                self.lose(f"it could not be renewed in time: {error}")


Word = LeaseLost | StopRequested


class Interrupter:
    """Of one run of a task, made in its thread before the lock is asked for.

    ``arm`` before the task's own code and ``disarm`` after it: whether a loss, and a request to
    stop, are raised in between. ``lost`` and ``stop`` are the lease's callbacks, from any thread.
    As it is, it reaches nobody (eventlet); see the classes below.
    """

    _raises = _stops = False

    def arm(self, lease: Lease, *, raises: bool, stops: bool = False) -> None:
        self._raises, self._stops = raises, stops

    def disarm(self) -> None:
        self._raises = self._stops = False

    def lost(self, lease: BaseLease, error: LeaseLost) -> None:
        if self._raises:
            self._deliver(error)

    def stop(self, lease: BaseLease, error: StopRequested) -> None:
        if self._stops:
            self._deliver(error)

    def _deliver(self, word: Word) -> None:
        """Raise it in the task, from another thread: its own ``check()`` raises by itself."""


def interrupter_here() -> Interrupter:
    """For a task in the thread, or greenlet, that calls."""
    if _is_green():
        return _Greenlet() if _is_gevent() else Interrupter()
    return _MainThread() if SIGNAL and threading.get_ident() == _main_thread else _OtherThread()


_main_thread = threading.main_thread().ident


def _after_fork() -> None:
    """The thread that forked is the child's main one; a kernel timer is not inherited."""
    global _main_thread, _timer
    _main_thread, _timer = threading.get_ident(), None


run_after_fork(_after_fork, "integration")


# Main thread: prefork children and solo.

# With what to raise in them; outermost first: a locked task may call another one directly.
_running: dict[Lease, set[str]] = {}
_timer: _Timer | None = None


class _MainThread(Interrupter):
    """Whoever learns of a loss elsewhere sends the signal; its handler looks, and raises.

    Also without anything to raise: a lease kept elsewhere must be marked, which the handler does.
    """

    _lease: Lease | None = None

    def __init__(self) -> None:
        global _timer
        # The worker's main process may send the signal as soon as the lock is asked for.
        if _timer is None:
            signal.signal(SIGNAL, _on_signal)
            _timer = _Timer()

    def arm(self, lease: Lease, *, raises: bool, stops: bool = False) -> None:
        self._raises, self._stops, self._lease = raises, stops, lease
        words = _running[lease] = {"lost"} if raises else set()
        if stops:
            words.add("stop")
        if _timer and _due(lease) < _timer.fires_at:
            _timer.fire_at(min(map(_due, _running)))

    def disarm(self) -> None:
        if self._lease:
            _running.pop(self._lease, None)
            self._lease = None  # which knows us: no cycle shall be left of a task that has ended

    def _deliver(self, word: Word) -> None:
        if threading.get_ident() != _main_thread:
            signal.pthread_kill(_main_thread or 0, SIGNAL)


def _due(lease: Lease) -> float:
    """At the deadline; one kept elsewhere is asked for, and more than once, before its end."""
    early = lease.ttl / 3 if isinstance(lease, RemotelyRenewedLease) else 0.0
    return lease.deadline - early


def _on_signal(signum: int, frame: FrameType | None) -> None:
    if _timer:
        _timer.fires_at = math.inf  # or it was not the timer, and it fires once for nothing
    for lease in tuple(_running):
        if isinstance(lease, RemotelyRenewedLease):
            lease.ask()
        # Forgotten when raised: the exception may meet the task on its way out, where nobody would.
        if lease.state is State.LOST and "lost" in _running.pop(lease, ()):
            _wake_for_all()
            lease.check()
        words = _running.get(lease, set())
        if lease.stop_requested and "stop" in words:
            words.discard("stop")
            _wake_for_all()
            lease.check()
    _wake_for_all()


def _wake_for_all() -> None:
    """Not at once again, where asking did not help: there is time until the deadline."""
    if _timer and _running:
        pause = min(min(lease.ttl / 10, lease.deadline - now()) for lease in _running)
        _timer.fire_at(max(now() + pause, min(map(_due, _running))))


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
        self.fires_at = math.inf
        # At exit Python gives up its handlers, and a signal without one ends the process.
        atexit.register(self._stop)

    def fire_at(self, moment: float) -> None:
        """Once, on ``clock.now``; known after it is set, for the handler may come in between."""
        self._set(max(0.01, moment - now()))
        self.fires_at = moment

    def _stop(self) -> None:
        if self.pid == os.getpid():
            self._set(0.0)

    def _set(self, seconds: float) -> None:
        """After so long; 0 for never."""
        whole = int(seconds)
        value = _TimerSpec(0, 0, whole, int((seconds - whole) * 1e9))
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


class InjectedError(LockError):
    """An error as it is raised from outside; whoever armed turns it into the ``plain`` one."""

    plain: Word


def _without_arguments(error: Word) -> type[InjectedError]:
    """The interpreter takes a class and makes the instance itself; caught as what it stands for."""
    kind: Any = type(error)

    def __init__(self: Any) -> None:
        kind.__init__(self, *error.args)

    return type(kind.__name__, (InjectedError, kind), {"__init__": __init__, "plain": error})


class _OtherThread(Interrupter):
    _is_delivered = False

    def __init__(self) -> None:
        self._home = threading.get_ident()
        self._lock = native_lock()

    def arm(self, lease: Lease, *, raises: bool, stops: bool = False) -> None:
        with self._lock:
            self._raises, self._stops = raises, stops

    def disarm(self) -> None:
        """From then on nothing is raised, not even what was delivered and not raised yet."""
        with self._lock:
            self._raises = self._stops = False
        if self._is_delivered:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._home), None)

    def _deliver(self, word: Word) -> None:
        with self._lock:
            if threading.get_ident() != self._home and (self._raises or self._stops):
                self._is_delivered = True
                error = ctypes.py_object(_without_arguments(word))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._home), error)


# Greenlets.


@cache
def _is_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return bool(monkey and monkey.is_module_patched("threading"))


@cache
def _is_green() -> bool:
    """Whether tasks are greenlets; no thread becomes one once tasks run."""
    patcher = sys.modules.get("eventlet.patcher")
    return _is_gevent() or bool(patcher and patcher.is_monkey_patched("thread"))


class _Greenlet(Interrupter):
    """Of gevent."""

    def __init__(self) -> None:
        gevent: Any = sys.modules["gevent"]
        self._hub, self._task = gevent.get_hub(), gevent.getcurrent()
        self._home = threading.get_ident()

    def _deliver(self, word: Word) -> None:
        if threading.get_ident() != self._home:
            self._hub.loop.run_callback_threadsafe(self._throw, word)

    def _throw(self, word: Word) -> None:
        if self._raises or self._stops:
            self._task.throw(word)
