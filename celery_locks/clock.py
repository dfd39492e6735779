"""The clock of all deadlines.

CLOCK_BOOTTIME continues while the machine is suspended; CLOCK_MONOTONIC does not, and a lease
counted on it looks alive after a laptop's or a VM's sleep. Wall time is never used for a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# Seconds on a clock that counts suspend and never jumps. A partial, because hot paths call it.
now: Callable[[], float] = partial(time.clock_gettime, _CLOCK)
