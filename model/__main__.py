"""Check the model: ``python -m model`` (``make model``); ``--large`` for the runs by hand.

Every run of ``PROMISES`` must find nothing. Every run of ``CONTROLS`` makes one mistake and must be
found out: a control that passes is an error, for then the model proves nothing.
"""

import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

from model.tlc import ModelError, Outcome, config_text, has_java, run_tlc

# At most this many at a time, each with one worker.
JOBS = 2


class Run(NamedTuple):
    """One run of TLC; ``violates`` is the invariant that it must violate, "" for none."""

    what: str
    module: str
    config: str
    constants: Mapping[str, str] = MappingProxyType({})
    violates: str = ""


_no_deaths = {"Deaths": "0", "PollerDeaths": "0", "Redeliveries": "0"}
_three = {
    "Losses": "0",
    "Lates": "0",
    "Renewals": "0",
    "GivesUp": "FALSE",
    "Tokens": '{"x", "y", "z"}',
}
_jobs = {"Lates": "0", "Deaths": "1"}
_retry_and_copy = {**_three, "Deaths": "1", "Tokens": '{"one", "copy", "retry"}'}

PROMISES = (
    Run("two callers, lost and late calls", "Lock", "LockQueue"),
    Run("a retry", "Lock", "LockQueue", {**_jobs, "Forces": "1", "Tokens": '{"one", "retry"}'}),
    Run("a copy", "Lock", "LockQueue", {**_jobs, "Limit": "2", "Tokens": '{"one", "copy"}'}),
    Run("a retry, a copy and a death", "Lock", "LockQueue", _retry_and_copy),
    Run("waiters are served", "Lock", "LockLive"),
    Run("fences, failover and restart", "Fence", "Fence"),
    Run("all data is lost, with the guard", "Guard", "Guard"),
    Run("parking, a worker dies, a copy", "Park", "Park", {"PollerDeaths": "0"}),
    Run("parking, a poller dies, a copy", "Park", "Park", {"Deaths": "0"}),
    Run("parking, retries", "Park", "Park", {**_no_deaths, "Attempts": "2"}),
    Run("parked messages are woken", "Park", "ParkLive"),
)

CONTROLS = (
    Run("fence by INCR", "Fence", "Fence", {"Mutation": '"incr"'}, "FencesIncrease"),
    Run("the new primary's clock is slow", "Fence", "Fence", {"Skew": "3"}, "FencesIncrease"),
    Run(
        "release by name",
        "Lock",
        "LockQueue",
        {**_three, "Mutation": '"release_by_name"'},
        "NeverMoreThanLimit",
    ),
    Run(
        "deadline counted from the reply",
        "Lock",
        "LockQueue",
        {"Mutation": '"trust_from_reply"'},
        "NeverMoreThanLimit",
    ),
    Run("deadline without margin", "Lock", "LockQueue", {"Margin": "0"}, "NeverMoreThanLimit"),
    Run(
        "a retry takes over from any run of its job",
        "Lock",
        "LockQueue",
        {**_retry_and_copy, "Mutation": '"takeover_from_any"'},
        "NothingTwiceAtOnce",
    ),
    Run("no guard after a loss", "Guard", "Guard", {"Mutation": '"no_guard"'}, "OneInside"),
    Run("a fresh process after a loss", "Guard", "Guard", {"HasFresh": "TRUE"}, "OneInside"),
    Run("the last writes are lost", "Guard", "Guard", {"IsPartial": "TRUE"}, "OneInside"),
    Run("a wake-up is not repeated", "Park", "Park", {"Mutation": '"wake_once"'}, "NoJobIsLost"),
    Run("the lock server loses its data", "Park", "Park", {"DataLosses": "1"}, "NoJobIsLost"),
    Run("a copy is skipped", "Park", "Park", {"Mutation": '"copy_skipped"'}, "NoJobIsLost"),
    Run(
        "a wake-up is confirmed by its token",
        "Park",
        "Park",
        {**_no_deaths, "Attempts": "2", "ConfirmBy": '"token"'},
        "NoJobIsLost",
    ),
)

LARGE = (
    Run(
        "an old hand-over message counts",
        "Lock",
        "LockQueue",
        {**_three, "Mutation": '"no_ticket_check"'},
        "NeverMoreThanLimit",
    ),
    Run("two callers, longer leases", "Lock", "LockLarge"),
    Run("all data is lost twice", "Guard", "Guard", {"Losses": "2"}),
    Run(
        "a retry, a copy, lost and late calls",
        "Lock",
        "LockQueue",
        {**_retry_and_copy, "Losses": "1", "Lates": "1"},
    ),
    Run("parking, retries, a worker dies", "Park", "ParkLarge"),
    Run(
        "an earlier attempt replaces a parked retry",
        "Park",
        "ParkLarge",
        {"Reparking": '"last"'},
        "NoJobIsLost",
    ),
)


def check(run: Run) -> tuple[Run, Outcome, float]:
    checks = ""
    if run.violates:
        # Only this invariant: another one that fails earlier would hide it.
        checks = f"SPECIFICATION Spec\nINVARIANT {run.violates}\n"
    began = time.monotonic()
    outcome = run_tlc(run.module, config_text(run.config, run.constants, checks))
    return run, outcome, time.monotonic() - began


def report(run: Run, outcome: Outcome, seconds: float) -> bool:
    """Print one line, and the trace of what should not be; return True if all is as it must be."""
    is_good = outcome.violated == run.violates
    result = f"violates {outcome.violated}" if outcome.violated else "holds"
    verdict = "ok  " if is_good else "FAIL"
    print(
        f"{verdict} {run.module:5} {run.what:43} {outcome.distinct:8} states"
        f" {seconds:4.0f} s  {result}"
    )
    if not is_good:
        expected = f"violate {run.violates}" if run.violates else "hold"
        print(f"     It should {expected}.")
        print(outcome.output if outcome.violated else "")
    return is_good


def main() -> int:
    if not has_java():
        print(
            "There is no java here, so the model is not checked (Debian: openjdk-17-jre-headless)."
        )
        return 0
    runs = LARGE if "--large" in sys.argv[1:] else (*PROMISES, *CONTROLS)
    try:
        with ThreadPoolExecutor(JOBS) as pool:
            results = [report(*result) for result in pool.map(check, runs)]
    except ModelError as error:
        print(error)
        return 1
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
