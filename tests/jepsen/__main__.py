"""``python -m tests.jepsen --seconds 60 --seed 1``: the three workloads, one after the other."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.jepsen.run import CLIENTS, WORKLOADS, Outcome, run

RESULTS = Path("benchmarks/results/jepsen")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all workloads together")
    parser.add_argument("--seed", type=int, default=1, help="for the clients and the faults")
    options = parser.parse_args()
    outcomes = []
    for workload in WORKLOADS:
        outcome = run(workload, seconds=options.seconds / len(WORKLOADS), seed=options.seed)
        print(describe(outcome), flush=True)
        outcomes.append(outcome)
    figures = [outcome.as_dict() for outcome in outcomes]
    RESULTS.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text("\n".join(table(outcomes, options.seconds)) + "\n")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def describe(outcome: Outcome) -> str:
    faults = ", ".join(f"{count} x {fault}" for fault, count in sorted(outcome.faults.items()))
    return (
        f"{outcome.workload}, seed {outcome.seed}, {outcome.seconds:g} s, {CLIENTS} clients:\n"
        f"  faults: {faults}\n"
        f"  history: {outcome.history}\n"
        f"  updates: {outcome.added}, lost: {outcome.lost}, rejected: {outcome.rejected}"
    )


def table(outcomes: list[Outcome], seconds: float) -> Iterator[str]:
    """The workloads side by side, as Markdown."""
    yield f"# `make jepsen SECONDS={seconds:g} SEED={outcomes[0].seed}`"
    yield ""
    yield row("", [outcome.workload for outcome in outcomes])
    yield "|---" * (len(outcomes) + 1) + "|"
    yield row("seconds", [f"{outcome.seconds:g}" for outcome in outcomes])
    yield row("clients", [CLIENTS] * len(outcomes))
    for fault in sorted({fault for outcome in outcomes for fault in outcome.faults}):
        yield row(fault, [outcome.faults.get(fault, 0) for outcome in outcomes])
    histories = [outcome.history for outcome in outcomes]
    yield row("requests in the history", [history.requests for history in histories])
    yield row("linearizable", ["yes" if it.is_linearizable else "NO" for it in histories])
    yield row("updates acknowledged", [outcome.added or "" for outcome in outcomes])
    yield row("updates lost", [outcome.lost if outcome.added else "" for outcome in outcomes])
    yield row("accesses rejected by the fence", [outcome.rejected or "" for outcome in outcomes])


def row(head: str, values: list[str | int]) -> str:
    return f"| {head} | " + " | ".join(map(str, values)) + " |"


if __name__ == "__main__":
    sys.exit(main())
