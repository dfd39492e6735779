"""How long a lock stays shut after its task was ended from outside: until the key's next run.

The caller tries again every 50 ms. What is longer than the cap is shown as that, with the time
after which the library's own default would let the key go.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers import CANDIDATES, OURS, PLAIN, Contender, Unusable, contenders, load
from benchmarks.report import Report
from benchmarks.timing import p50
from tests.servers.embedded import EmbeddedServer

HOWS = ("kill -9", "hard time limit", "revoke(terminate)")
CAP, TIMES = 3.0, 3
TTL = {
    "cookbook recipe": "10 min",
    "celery-once": "1 h",
    "celery-singleton": "none",
    "celery-heimdall": "1 h",
}


def run(server: EmbeddedServer) -> Report:
    report = Report(
        "recovery", "Seconds until the next run of the key starts", ("", *HOWS, "its ttl")
    )
    pool = ("-P", "prefork", "-c", "2")
    names = [name for name in CANDIDATES if name != PLAIN]
    with contenders(names, server, pool) as (ready, absent):
        for one in ready:
            report.add(one.name, *_row(one, report), TTL.get(one.name, "30 s, renewed"))
    for name, why in absent.items():
        report.add(name, *[""] * len(HOWS), TTL[name])
        report.notes.append(f"{name} {why}.")
    report.notes.append(
        "Counted from the kill, from the moment the limit is reached, and from the call of revoke. "
        f"Medians of {TIMES}; one that took longer than {CAP:g} s was not tried again. "
        f"Load at the end: {load()}."
    )
    return report


def _row(one: Contender, report: Report) -> Sequence[str]:
    cells = []
    for how in HOWS:
        try:
            taken = _times(one, how)
        except Unusable as error:
            report.notes.append(f"{one.name} after {how}: {error}.")
            cells += ["?"] * (len(HOWS) - len(cells))
            break
        stuck = not taken
        cells.append(f"> {CAP:g}" if stuck else f"{p50(taken):.2f}")
        if one.name == OURS and how == "kill -9":
            report.at_most("celery-locks after kill -9", 1, p50(taken) if taken else CAP, " s")
    return cells


def _times(one: Contender, how: str) -> list[float]:
    """Empty if the key stayed shut."""
    taken: list[float] = []
    while len(taken) < TIMES:
        seconds = one.ask("recovered", how, CAP)
        if seconds is None:
            return []
        taken.append(seconds)
    return taken
