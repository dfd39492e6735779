"""Injected into the worker's container by pytest-celery, and imported by the tests to call."""

import os
import signal
import time

from celery import shared_task

from celery_locks import single_instance


@shared_task
@single_instance(key="invoice:{number}", ttl=30)
def bill(number: int, seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return "billed"


@shared_task
@single_instance(key="account:{customer}", ttl=30, on_conflict="wait", wait=60)
def book(customer: str, seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return "booked"


@shared_task
def kill(pid: int) -> None:
    """kill -9, from inside the container."""
    os.kill(pid, signal.SIGKILL)
