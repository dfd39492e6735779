"""Imported first by every Python process that runs under libfaketime.

``time.sleep`` of Python 3.11 sleeps until a moment of the monotonic clock, which libfaketime 0.9.10
computes wrongly if it is told to leave that clock alone: the call fails with EINVAL.
"""

import select
import time


def sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = sleep
