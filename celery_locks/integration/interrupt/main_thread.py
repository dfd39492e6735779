"""Interrupt a task in the main thread (prefork children and solo) by a signal and a timer."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import signal
import threading
from types import FrameType

from celery_locks.clock import now
from celery_locks.core.lease import Lease, State
from celery_locks.forking import run_after_fork
from celery_locks.integration.interrupt.base import Interrupter, Interruption
from celery_locks.integration.interrupt.remotely_renewed_lease import RemotelyRenewedLease

SIGNAL: int = int(getattr(signal, "SIGRTMIN", 0)) + 9 if hasattr(signal, "SIGRTMIN") else 0

_main_thread = threading.main_thread().ident


def _after_fork() -> None:
    """Reset: the forking thread is the child's main one, and kernel timers are not inherited."""
    global _main_thread, _timer
    _main_thread, _timer = threading.get_ident(), None


run_after_fork(_after_fork, "integration")


def is_main_thread() -> bool:
    return threading.get_ident() == _main_thread


# Leases with what to raise for each; outermost first: a locked task may call another directly.
_running: dict[Lease, set[str]] = {}
_timer: _Timer | None = None


class MainThreadInterrupter(Interrupter):
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

    def arm(self, lease: Lease, *, raise_loss: bool, raise_stop: bool = False) -> None:
        self._raises_loss, self._raises_stop, self._lease = raise_loss, raise_stop, lease
        kinds = _running[lease] = {"lost"} if raise_loss else set()
        if raise_stop:
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
