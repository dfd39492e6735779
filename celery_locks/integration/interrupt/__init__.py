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

from celery_locks.integration.interrupt.base import Interrupter
from celery_locks.integration.interrupt.gevent import GreenletInterrupter, is_gevent, is_green
from celery_locks.integration.interrupt.main_thread import (
    SIGNAL,
    MainThreadInterrupter,
    is_main_thread,
)
from celery_locks.integration.interrupt.other_thread import InjectedError, OtherThreadInterrupter
from celery_locks.integration.interrupt.remotely_renewed_lease import RemotelyRenewedLease


def make_interrupter() -> Interrupter:
    """Return an interrupter for a task in the calling thread or greenlet."""
    if is_green():
        return GreenletInterrupter() if is_gevent() else Interrupter()
    return MainThreadInterrupter() if SIGNAL and is_main_thread() else OtherThreadInterrupter()


__all__ = ["SIGNAL", "InjectedError", "Interrupter", "RemotelyRenewedLease", "make_interrupter"]
