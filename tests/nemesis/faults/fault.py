"""What the table knows of a fault, beside how to cause it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from tests.nemesis.journal import Run
from tests.nemesis.rig import Rig
from tests.nemesis.tasks import TTL

# Longer than a lease can live without a renewal.
LONG = 1.5 * TTL

Kind = Literal["plain", "durable", "clocked", "replicated"]
Cause = Callable[[Rig, Run], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    ``cause`` begins the fault when it is entered and heals it when it is left, ``seconds`` later;
    it is given the run that holds the lock "long". ``prepare`` is called before the jobs start.
    ``forgets``: the server forgets what was granted, when the fault begins, when it is healed, or
    now and then while it lasts. ``cuts_off``: nobody can ask the lock server while it lasts.
    ``free_within``: how long the lock of a dead holder may stay taken; waiters ask every second.
    """

    name: str
    title: str
    cause: Cause
    seconds: float = 0.0
    rig: Kind = "plain"
    forgets: Literal["", "at once", "at its end", "now and then"] = ""
    cuts_off: bool = False
    free_within: float = TTL + 1.0
    prepare: Callable[[Rig], None] = lambda rig: None
    missing: Callable[[], str] = lambda: ""  # a sentence, where it cannot be caused
