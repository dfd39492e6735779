"""How long a lock stays taken after its task is ended from outside: until the key's next run.

The caller tries again every 50 ms. A longer time than the cap is shown as such, with the time
after which the library's own default releases the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.effort import FULL, Effort
from benchmarks.peers import CANDIDATES, OURS, PLAIN, Contender, Unusable, contenders, load
from benchmarks.report import Report
from benchmarks.timing import p50
from tests.servers.embedded import EmbeddedServer

CAUSES = ("kill -9", "hard time limit", "revoke(terminate)")
CAP, TIMES = 3.0, 3
TTL = {
    "cookbook recipe": "10 min",
    "celery-once": "1 h",
    "celery-singleton": "none",
    "celery-heimdall": "1 h",
}


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report(
        "recovery", "Seconds until the next run of the key starts", ("", *CAUSES, "its ttl")
    )
    pool, times = ("-P", "prefork", "-c", "2"), effort.count(TIMES)
    cap = 1.0 if effort.is_quick else CAP
    names = [name for name in CANDIDATES if name != PLAIN]
    with contenders(names, server, pool) as (ready, absent):
        for contender in ready:
            cells = _row(contender, report, times, cap)
            report.add(contender.name, *cells, TTL.get(contender.name, "30 s, renewed"))
    for name, why in absent.items():
        report.add(name, *[""] * len(CAUSES), TTL[name])
        report.notes.append(f"{name} {why}.")
    report.notes.append(
        "Counted from the kill, from the moment the limit is reached, and from the call of revoke. "
        f"Medians of {times}; one that took longer than {cap:g} s was not tried again. "
        f"Load at the end: {load()}."
    )
    return report


def _row(contender: Contender, report: Report, times: int, cap: float) -> Sequence[str]:
    cells = []
    for cause in CAUSES:
        try:
            taken = _times(contender, cause, times, cap)
        except Unusable as error:
            report.notes.append(f"{contender.name} after {cause}: {error}.")
            cells += ["?"] * (len(CAUSES) - len(cells))
            break
        is_stuck = not taken
        cells.append(f"> {cap:g}" if is_stuck else f"{p50(taken):.2f}")
        if contender.name == OURS and cause == "kill -9":
            report.at_most("celery-locks after kill -9", 1, p50(taken) if taken else cap, " s")
    return cells


def _times(contender: Contender, cause: str, times: int, cap: float) -> list[float]:
    """Return the seconds of each try; none if the lock stayed taken."""
    taken: list[float] = []
    while len(taken) < times:
        seconds = contender.ask("recovered", cause, cap)
        if seconds is None:
            return []
        taken.append(seconds)
    return taken
