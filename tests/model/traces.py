"""Write the traces that are replayed: ``python -m tests.model.traces`` (needs Java).

A trace is a JSON file in ``model/traces``: the constants, and each step of the server with what it
holds afterwards. Random walks show many steps; a goal is the shortest way to something rare.
"""

import json
from pathlib import Path
from typing import Any

from model.tlc import FOLDER, config_text, run_tlc, simulate
from tests.model.tla_values import parse_states

TRACES = FOLDER / "traces"
WALKS = 24
KEPT = ("Limit", "Ttl", "Alive")

Constants = dict[str, str]

_few = {"Losses": "0", "Lates": "0", "Renewals": "0", "Deaths": "0", "Forces": "0"}
_small = {**_few, "Failovers": "0", "Limit": "1", "Ttl": "2", "Alive": "1"}
LOCK_GOALS: dict[str, Constants] = {
    "NoCopy": {**_small, "Tokens": '{"one", "copy"}', "Limit": "2"},
    "NoEnded": {**_small, "Tokens": '{"one", "copy"}'},
    "NoTakeover": {**_small, "Tokens": '{"one", "retry"}'},
    "NoCopyOfEarlier": {**_small, "Tokens": '{"one", "copy", "retry"}'},
    "NoClaim": {**_small, "Tokens": '{"x", "y"}'},
    "NoLateGrant": {**_small, "Tokens": '{"x"}', "Losses": "1", "Lates": "1"},
    "NoRevival": {**_small, "Tokens": '{"x"}', "Renewals": "1"},
    "NoSkippedWaiter": {**_small, "Tokens": '{"x", "y", "one"}', "Deaths": "1", "Alive": "2"},
}


def lock_steps(output: str) -> list[dict[str, Any]]:
    """Return the steps of the server in TLC's output."""
    steps = []
    for state in parse_states(output)[1:]:
        action, token, reply = state["act"]
        if action == "Client":
            continue
        srv = state["srv"]
        holders = {each: srv["expiry"][each] for each in srv["holders"]}
        queue = {each: srv["alive"][each] for each in srv["queue"]}
        step = {"action": action, "token": token, "reply": reply}
        steps.append({**step, "holders": holders, "queue": queue, "ended": srv["ended"]})
    return steps


def write(name: str, constants: Constants, steps: list[dict[str, Any]]) -> None:
    assert steps, f"no trace for {name}"
    numbers = {key: int(constants[key]) for key in KEPT}
    lines = ",\n".join("  " + json.dumps(step) for step in steps)
    text = f'{{"constants": {json.dumps(numbers)}, "steps": [\n{lines}\n]}}\n'
    (TRACES / f"{name}.json").write_text(text)


def main() -> None:
    for old in TRACES.glob("*.json"):
        old.unlink()
    walk = {"Limit": "2", "Ttl": "3", "Alive": "2"}
    for seed in range(1, WALKS + 1):
        constants = {**walk, "Limit": str(1 + seed % 2)}
        output = simulate("LockTrace", config_text("LockTrace", constants), depth=200, seed=seed)
        write(f"lock_walk_{seed:02}", constants, lock_steps(output))
    for goal, constants in LOCK_GOALS.items():
        checks = f"SPECIFICATION TraceSpec\nINVARIANT {goal}\n"
        config = config_text("LockTrace", {**constants, "Length": "99"}, checks)
        outcome = run_tlc("LockTrace", config)
        write(f"lock_{goal}", constants, lock_steps(outcome.output))
    print(f"{len(list(TRACES.glob('*.json')))} traces in {TRACES.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
