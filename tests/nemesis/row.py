"""One row: a steady load, one fault, and the runs until all is quiet again."""

from __future__ import annotations

import time

from celery_locks.clock import now
from tests.nemesis.faults.fault import Fault
from tests.nemesis.journal import Journal, Run
from tests.nemesis.load import Load
from tests.nemesis.promises import Observation
from tests.nemesis.rig import Rig
from tests.nemesis.tasks import TTL
from tests.nemesis.windows import lost_jobs
from tests.support.stalls import measure_longest_stall
from tests.support.waiting import wait_until

SHORT = ("brief", "pair")
# How long the load goes on after the fault is healed, and its jobs have to end after that.
AFTERWARDS = TTL
DRAIN = 8 * TTL
START = 60.0


def observe(fault: Fault, rig: Rig, seed: int) -> Observation:
    """Cause one fault under load; return what the jobs wrote."""
    journal = Journal(rig.directory, fault.name)
    fault.prepare(rig)
    load = Load(rig.conf, fault.name, journal, seed)
    load.start()
    try:
        with measure_longest_stall() as stalled:
            holder = _wait_steady(load, journal)
            began = now()
            with fault.cause(rig, holder):
                time.sleep(fault.seconds)  # how long it lasts
            healed = now()
            time.sleep(AFTERWARDS)
    finally:
        load.stop()
    _wait_drained(load, journal)
    locks = [load.name(lock) for lock in SHORT]
    runs = journal.runs()
    return Observation(fault, runs, load.published, locks, began, healed, stalled())


def _wait_steady(load: Load, journal: Journal) -> Run:
    """Wait until jobs of the short locks have ended, and a long one has run for a while.

    It still runs for longer than its lease lives without a renewal.
    """

    def steady() -> Run | None:
        ended = {run.lock for run in journal.runs() if run.outcome == "ended"}
        holder = load.holder("long")
        if not holder or not {load.name(lock) for lock in SHORT} <= ended:
            return None
        return holder if TTL / 6 < now() - holder.start < TTL / 3 else None

    return wait_until(steady, START, every=0.02, what="a steady load")


def _wait_drained(load: Load, journal: Journal) -> None:
    """Wait until every job has ended; those that have not after the time are lost."""
    ends = now() + DRAIN
    while lost_jobs(load.published, journal.runs()) and now() < ends:
        time.sleep(0.1)
