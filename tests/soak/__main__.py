"""``python -m tests.soak --seconds 60 --seed 1``: with locks, then plain Celery as the control."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.soak.run import Outcome, run

RESULTS = Path("benchmarks/results")
ROWS = {
    "published": "published",
    "completed": "completed",
    "overlaps": "overlaps",
    "completed_twice": "completed twice",
    "lost": "lost",
    "kept": "published with `keep_message`",
    "kept_lost": "lost of these",
    "fence_errors": "fence errors",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=1, help="for the jobs and the faults")
    parser.add_argument("--without-control", action="store_true", help="do not run plain Celery")
    parser.add_argument(
        "--write",
        nargs="?",
        const="soak",
        metavar="NAME",
        help=f"also write NAME.json and NAME.md in {RESULTS}; NAME is soak by default",
    )
    options = parser.parse_args()
    kinds = [True] if options.without_control else [True, False]
    outcomes = []
    for locked in kinds:
        outcome = run(locked=locked, seconds=options.seconds, seed=options.seed)
        print_outcome(outcome)
        outcomes.append(outcome)
    if options.write:
        figures = [outcome.as_dict() for outcome in outcomes]
        written = RESULTS / options.write
        written.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
        written.with_suffix(".md").write_text("\n".join(table(outcomes)) + "\n")
    return 0 if outcomes[0].is_good else 1


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """The outcomes side by side, as Markdown."""
    first = outcomes[0]
    yield f"# `make soak SECONDS={first.seconds:g} SEED={first.seed}`"
    yield ""
    yield "| | " + " | ".join(name(outcome) for outcome in outcomes) + " |"
    yield "|---" * (len(outcomes) + 1) + "|"
    for fault in sorted({fault for outcome in outcomes for fault in outcome.faults}):
        yield row(fault, [outcome.faults.get(fault, 0) for outcome in outcomes])
    for key, label in ROWS.items():
        yield row(label, [outcome.as_dict()[key] for outcome in outcomes])
    yield row("requests in the history", [outcome.history.requests for outcome in outcomes])
    yield row("locks in the history", [outcome.history.locks for outcome in outcomes])
    yield row(
        "locks that are not linearizable",
        [len(outcome.history.contradictions) for outcome in outcomes],
    )


def row(head: str, values: list[int]) -> str:
    return f"| {head} | " + " | ".join(map(str, values)) + " |"


def name(outcome: Outcome) -> str:
    return "celery-locks" if outcome.locked else "plain Celery"


def print_outcome(outcome: Outcome) -> None:
    figures = outcome.as_dict()
    print(f"{name(outcome)}, seed {outcome.seed}:")
    faults = ", ".join(f"{count} x {fault}" for fault, count in outcome.faults.items())
    print(f"  faults in {outcome.seconds:g} s: {faults}")
    for key, label in ROWS.items():
        print(f"  {label:<30} {figures[key]}")
    if outcome.locked:
        print(f"  history          {outcome.history}")
    if not outcome.drained:
        print("  no job has ended for a long time, and messages are left:")
        print(textwrap.indent(outcome.left, "    "))
    if outcome.verdict.lost:
        print(f"  lost jobs: {', '.join(outcome.verdict.lost)}")


if __name__ == "__main__":
    sys.exit(main())
