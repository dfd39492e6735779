"""Raise the loss of a lease in the code that runs under it.

===================  ===========================================================================
where the task runs  how ``LeaseLost`` (``LockRevoked``, if an operator took it) is raised in it
===================  ===========================================================================
main thread          (prefork, solo) a signal; also a kernel timer at the lease's deadline, so that
                     after a SIGSTOP or a suspend the handler runs before any other code of the
                     task. C code that does not return is interrupted when it returns.
another thread       (threads) an asynchronous exception, at the next bytecode: a blocking call
                     ends first
greenlet             (gevent) thrown by the hub: a greenlet that computes is reached when it next
                     yields
greenthread          (eventlet) not at all: its hub accepts nothing from other threads;
                     ``self.lock.check()`` raises
===================  ===========================================================================

In the main thread the timer also fires in a healthy task, every two thirds of the ttl, and the
handler renews the lease to learn whether it is still held. The timer is not stopped when a task
ends, and not set again for the next task if it fires early enough, so short tasks never touch it:
it fires once more, perhaps while nothing runs, and then stops. Python code does not notice; a call
into a C library that takes EINTR for an error may end early, as it may with any signal.

Nothing is raised once the task has ended. The signal is a real-time one that neither Celery nor
billiard uses. If the system has none (macOS), prefork and solo tasks learn of a loss only by
``check()``.
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
from celery_locks.unpatched import native_lock

SIGNAL: int = int(getattr(signal, "SIGRTMIN", 0)) + 9 if hasattr(signal, "SIGRTMIN") else 0


class RemotelyRenewedLease(Lease):
    """A lease that the worker's main process renews; past its deadline it asks the store itself."""

    _longest = 0.0

    def retime(self, ttl: float, sent_at: float) -> None:
        """Use at most the first ttl: the main process renews with that one."""
        self._longest = self._longest or self.ttl
        super().retime(min(ttl, self._longest), sent_at)

    def check(self) -> None:
        if self._end is None and now() >= self.deadline:
            self.refresh()
        super().check()

    def check_renewable(self) -> None:
        """Allow a renewal also past the deadline: it tells whether the lease is lost."""
        if self._end:
            super().check()

    @property
    def state(self) -> State:
        """The state known in this process; the main process may have renewed the lease since."""
        return self._end or State.HELD

    def refresh(self) -> None:
        """Renew, to learn whether the lease is still held. Sets LOST if it is not."""
        try:
            self.face.renew(self)
        except LeaseLost:
            pass
        except LockUnavailable as error:
            if now() >= self.deadline:
                self.lose(f"it could not be renewed in time: {error}")


Interruption = LeaseLost | StopRequested


class Interrupter:
    """Raises a loss or a stop request in one run of a task.

    It is created in the run's thread before the lock is acquired. ``arm`` is called before the
    task's own code and ``disarm`` after it; errors are raised only in between. ``lost`` and
    ``stop`` are the lease's callbacks, called in any thread. This base class raises nothing
    (eventlet); see the classes below.
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

    def _deliver(self, error: Interruption) -> None:
        """Raise it in the task, from another thread: in its own thread ``check()`` raises."""


def interrupter_here() -> Interrupter:
    """Return an interrupter for a task in the calling thread or greenlet."""
    if _is_green():
        return _Greenlet() if _is_gevent() else Interrupter()
    return _MainThread() if SIGNAL and threading.get_ident() == _main_thread else _OtherThread()


_main_thread = threading.main_thread().ident


def _after_fork() -> None:
    """Reset: the forking thread is the child's main one, and kernel timers are not inherited."""
    global _main_thread, _timer
    _main_thread, _timer = threading.get_ident(), None


os.register_at_fork(after_in_child=_after_fork)


# Main thread: prefork children and solo.

# Leases with what to raise for each; outermost first: a locked task may call another directly.
_running: dict[Lease, set[str]] = {}
_timer: _Timer | None = None


class _MainThread(Interrupter):
    """Sends a signal to the main thread; its handler checks the leases and raises.

    The signal is sent also if nothing is raised: the handler marks a remotely renewed lease lost.
    """

    _lease: Lease | None = None

    def __init__(self) -> None:
        global _timer
        # The worker's main process may send the signal as soon as the lock is requested.
        if _timer is None:
            signal.signal(SIGNAL, _on_signal)
            _timer = _Timer()

    def arm(self, lease: Lease, *, raises: bool, stops: bool = False) -> None:
        self._raises, self._stops, self._lease = raises, stops, lease
        kinds = _running[lease] = {"lost"} if raises else set()
        if stops:
            kinds.add("stop")
        if _timer and _due(lease) < _timer.fires_at:
            _timer.fire_at(min(map(_due, _running)))

    def disarm(self) -> None:
        if self._lease:
            _running.pop(self._lease, None)
            self._lease = None  # breaks the reference cycle with the lease

    def _deliver(self, error: Interruption) -> None:
        if threading.get_ident() != _main_thread:
            signal.pthread_kill(_main_thread or 0, SIGNAL)


def _due(lease: Lease) -> float:
    """Return the deadline; earlier for a remotely renewed lease, which is refreshed in time."""
    early = lease.ttl / 3 if isinstance(lease, RemotelyRenewedLease) else 0.0
    return lease.deadline - early


def _on_signal(signum: int, frame: FrameType | None) -> None:
    if _timer:
        _timer.fires_at = math.inf  # if the signal is not the timer's, it fires once for nothing
    for lease in tuple(_running):
        if isinstance(lease, RemotelyRenewedLease):
            lease.refresh()
        # Removed when raised: the exception may reach the task while it ends, before disarm().
        if lease.state is State.LOST and "lost" in _running.pop(lease, ()):
            _set_timer()
            lease.check()
        kinds = _running.get(lease, set())
        if lease.stop_requested and "stop" in kinds:
            kinds.discard("stop")
            _set_timer()
            lease.check()
    _set_timer()


def _set_timer() -> None:
    """Set the timer for all leases; after a pause if a refresh did not help."""
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
        # At exit Python removes its handlers, and a signal without one kills the process.
        atexit.register(self._stop)

    def fire_at(self, moment: float) -> None:
        """Fire once at a time of ``clock.now``."""
        self._set(max(0.01, moment - now()))
        # Assigned after the timer is set: the handler may run in between.
        self.fires_at = moment

    def _stop(self) -> None:
        if self.pid == os.getpid():
            self._set(0.0)

    def _set(self, seconds: float) -> None:
        """Set the timer to fire after ``seconds``; 0 stops it."""
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
    """An error raised from another thread; ``Execution`` replaces it by the ``plain`` one."""

    plain: Interruption


def _without_arguments(error: Interruption) -> type[InjectedError]:
    """Make a class that needs no arguments: the interpreter takes a class and instantiates it.

    It is a subclass of the error's own class, so that the task can catch it.
    """
    kind: Any = type(error)

    def __init__(self: Any) -> None:
        kind.__init__(self, *error.args)

    return type(kind.__name__, (InjectedError, kind), {"__init__": __init__, "plain": error})


class _OtherThread(Interrupter):
    """Sets an asynchronous exception in the thread of the task."""

    _is_delivered = False

    def __init__(self) -> None:
        self._home = threading.get_ident()
        self._lock = native_lock()

    def arm(self, lease: Lease, *, raises: bool, stops: bool = False) -> None:
        with self._lock:
            self._raises, self._stops = raises, stops

    def disarm(self) -> None:
        """Raise nothing from now on, also not what was delivered and not raised yet."""
        with self._lock:
            self._raises = self._stops = False
        if self._is_delivered:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._home), None)

    def _deliver(self, error: Interruption) -> None:
        with self._lock:
            if threading.get_ident() != self._home and (self._raises or self._stops):
                self._is_delivered = True
                kind = ctypes.py_object(_without_arguments(error))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._home), kind)


# Greenlets.


@cache
def _is_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return bool(monkey and monkey.is_module_patched("threading"))


@cache
def _is_green() -> bool:
    """Whether tasks are greenlets; this cannot change once tasks run."""
    patcher = sys.modules.get("eventlet.patcher")
    return _is_gevent() or bool(patcher and patcher.is_monkey_patched("thread"))


class _Greenlet(Interrupter):
    """Throws the error into the task's greenlet (gevent)."""

    def __init__(self) -> None:
        gevent: Any = sys.modules["gevent"]
        self._hub, self._task = gevent.get_hub(), gevent.getcurrent()
        self._home = threading.get_ident()

    def _deliver(self, error: Interruption) -> None:
        if threading.get_ident() != self._home:
            self._hub.loop.run_callback_threadsafe(self._throw, error)

    def _throw(self, error: Interruption) -> None:
        if self._raises or self._stops:
            self._task.throw(error)
