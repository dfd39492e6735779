"""``python -m tests.mutants --script release --script lib/park --sample 50 --seed 1 --jobs 2``.

Without ``--script`` all files are tried. It fails if a mutant survives that nobody has explained in
``explanations.json``, and if an explanation is about a mutant that a test kills. ``--record`` first
finds out again which scripts each contract test calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random

from benchmarks.report import RESULTS
from tests.mutants.operators import Mutant
from tests.mutants.run import Runner, Tried, all_mutants, record_calls

EXPLANATIONS = Path(__file__).parent / "explanations.json"
OUTCOMES = RESULTS / "mutants.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--script", action="append", default=[], help="a file, such as lib/park")
    parser.add_argument("--id", action="append", default=[], help="these mutants only")
    parser.add_argument("--survivors", action="store_true", help="those of earlier runs only")
    parser.add_argument("--sample", type=int, default=0, help="that many of each file; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="for the sample")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop then; 0: try all")
    parser.add_argument("--jobs", type=int, default=2, help="test runs at once")
    parser.add_argument("--record", action="store_true", help="find out which test calls what")
    options = parser.parse_args()
    if options.record:
        record_calls()
    ids = options.id + ([*survivors(outcomes_so_far())] if options.survivors else [])
    chosen = choose(options.script, ids, options.sample, options.seed)
    print(f"{len(chosen)} mutants", flush=True)
    began = time.monotonic()
    tried: list[Tried] = []
    try:
        for outcome in Runner().run(chosen, options.jobs):
            tried.append(outcome)
            print_survivor(outcome)
            if options.seconds and time.monotonic() - began > options.seconds:
                break
    finally:  # also what is known when somebody interrupts it
        keep(tried, f"{time.monotonic() - began:.0f} s")
    return report(tried)


def print_survivor(outcome: Tried) -> None:
    if not outcome.killed_by:
        print(f"survived: {outcome.mutant.id} line {outcome.mutant.line}")
        print(f"    {outcome.mutant.change}", flush=True)


def choose(names: list[str], ids: list[str], sample: int, seed: int) -> list[Mutant]:
    """Return the mutants to try, for each file the same sample for the same seed."""
    by_path: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in all_mutants():
        name = mutant.path.removesuffix(".lua")
        if (not names or name in names) and (not ids or mutant.id in ids):
            by_path[mutant.path].append(mutant)
    if sample:
        for path, found in by_path.items():
            dice = Random(f"{seed} {path}")
            by_path[path] = dice.sample(found, min(sample, len(found)))
    return [mutant for found in by_path.values() for mutant in found]


def keep(tried: list[Tried], took: str) -> None:
    """Add the outcomes to those of earlier runs, and write the table of all."""
    outcomes = outcomes_so_far()
    existing = {mutant.id: mutant for mutant in all_mutants()}
    outcomes = {name: killed for name, killed in outcomes.items() if name in existing}
    outcomes |= {it.mutant.id: it.killed_by for it in tried}
    OUTCOMES.write_text(json.dumps(outcomes, indent=0, sort_keys=True) + "\n")
    OUTCOMES.with_suffix(".md").write_text(table(outcomes, existing))
    print(f"{len(tried)} mutants tried in {took}")


def table(outcomes: dict[str, str], existing: dict[str, Mutant]) -> str:
    """Return the outcomes by file, and the survivors with their explanations, as Markdown."""
    explained = explanations()
    lines = ["## Mutants of the Lua scripts: `make mutants`", ""]
    lines += ["| file | mutants | tried | killed | survived, explained | survived |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for path in sorted({mutant.path for mutant in existing.values()}):
        ids = [name for name, mutant in existing.items() if mutant.path == path]
        tried = [name for name in ids if name in outcomes]
        if not tried:
            continue
        survived = [name for name in tried if not outcomes[name]]
        known = [name for name in survived if name in explained]
        counts = (len(ids), len(tried), len(tried) - len(survived), len(known))
        cells = " | ".join(map(str, (*counts, len(survived) - len(known))))
        lines.append(f"| `{path}` | {cells} |")
    lines += ["", "Survivors:", ""]
    for name in survivors(outcomes):
        sentence = explained.get(name, "not explained yet")
        lines.append(f"- `{name}`, line {existing[name].line}: {sentence}")
    return "\n".join(lines) + "\n"


def outcomes_so_far() -> dict[str, str]:
    """Return by which test each mutant was killed in earlier runs; "" if it survived."""
    found: dict[str, str] = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    return found


def survivors(outcomes: dict[str, str]) -> list[str]:
    return sorted(name for name, killed_by in outcomes.items() if not killed_by)


def explanations() -> dict[str, str]:
    found: dict[str, str] = json.loads(EXPLANATIONS.read_text())
    return found


def report(tried: list[Tried]) -> int:
    """Print what to do; return 1 if a survivor has no explanation, or one is out of date."""
    explained = explanations()
    survived = [it.mutant.id for it in tried if not it.killed_by]
    unexplained = [name for name in survived if name not in explained]
    outdated = [it.mutant.id for it in tried if it.killed_by and it.mutant.id in explained]
    print(f"killed {len(tried) - len(survived)}, survived {len(survived)}")
    for name in unexplained:
        print(f"NOT EXPLAINED: {name}")
    for name in outdated:
        print(f"EXPLAINED, BUT KILLED: {name}")
    return 1 if unexplained or outdated else 0


if __name__ == "__main__":
    sys.exit(main())
