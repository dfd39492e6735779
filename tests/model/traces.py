"""Write the traces that are replayed: ``python -m tests.model.traces`` (needs Java).

A trace is a JSON file in ``model/traces``: the constants, and each step of the server with what it
holds afterwards. Random walks show many steps; a goal is the shortest way to something rare.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from model.tlc import FOLDER, config_text, run_tlc, simulate
from tests.model.tla_values import parse_states

TRACES = FOLDER / "traces"
WALKS = 24
PARK_WALKS = 24
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

_none = dict.fromkeys(("Deaths", "PollerDeaths", "Redeliveries", "Lapses", "SlowPolls"), "0")
_two = {**_none, "Jobs": '{"a", "b"}', "Pollers": '{"p"}', "Attempts": "1", "Entries": "4"}
_retry = {**_two, "Attempts": "2"}
PARK_GOALS: dict[str, Constants] = {
    "NoParkEnded": {**_two, "Redeliveries": "1"},
    "NoParkCopy": {**_two, "Redeliveries": "1"},
    "NoParkTakeover": _retry,
    "NoParkedLater": {**_retry, "Deaths": "1", "Workers": '{"v", "w", "x"}'},
    "NoParkedAgain": {**_two, "Lapses": "1", "Jobs": '{"a", "b", "c"}'},
    "NoStaleConfirm": _retry,
    "NoLapseOfKept": {**_two, "Lapses": "1"},
    "NoWakeAfterDeath": {**_two, "PollerDeaths": "1"},
    "NoWakeAfterLapse": {**_two, "Deaths": "1"},
    "NoLateRelease": _retry,
}
# The shortest way to this one takes minutes to find: a random walk that comes there is enough.
PARK_WALK_GOAL = "NoWokenLater"


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


def park_steps(output: str) -> list[dict[str, Any]]:
    """Return the steps of the server in TLC's output.

    ``stopped``: the run that held the lock before the step, if one did, had stopped.
    """
    states, steps = parse_states(output), []
    for before, state in pairwise(states):
        action, who, job, attempt, reply = state["act"]
        if action == "Other":
            continue
        holder = before["holder"]
        is_run = holder["kind"] == "run"
        stopped = is_run and before["worker"][holder["worker"]]["st"] != "running"
        step = {"action": action, "who": who, "job": job, "attempt": attempt, "reply": reply}
        step["stopped"] = stopped and holder["worker"] != who
        step["holder"] = [state["holder"][key] for key in ("kind", "job", "attempt", "worker")]
        steps.append(step | {key: state[key] for key in ("queue", "parked", "due", "ended")})
    return steps


def write(name: str, constants: Constants, steps: list[dict[str, Any]]) -> None:
    assert steps, f"no trace for {name}"
    numbers = {key: int(constants[key]) for key in KEPT if key in constants}
    lines = ",\n".join("  " + json.dumps(step) for step in steps)
    text = f'{{"constants": {json.dumps(numbers)}, "steps": [\n{lines}\n]}}\n'
    (TRACES / f"{name}.json").write_text(text)


def write_lock_traces() -> None:
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


def write_park_traces() -> None:
    for seed in range(1, PARK_WALKS + 1):
        constants = {"Lapses": str(seed % 2), "Attempts": str(1 + seed % 3 // 2)}
        output = simulate("ParkTrace", config_text("ParkTrace", constants), depth=300, seed=seed)
        write(f"park_walk_{seed:02}", {}, park_steps(output))
    for goal, constants in PARK_GOALS.items():
        checks = f"SPECIFICATION TraceSpec\nINVARIANT {goal}\n"
        config = config_text("ParkTrace", {**constants, "Length": "99"}, checks)
        write(f"park_{goal}", {}, park_steps(run_tlc("ParkTrace", config).output))
    checks = f"SPECIFICATION TraceSpec\nINVARIANT {PARK_WALK_GOAL}\n"
    output = simulate("ParkTrace", config_text("ParkTrace", {}, checks), depth=100, seed=1)
    write(f"park_{PARK_WALK_GOAL}", {}, park_steps(output))


def main() -> None:
    for old in TRACES.glob("*.json"):
        old.unlink()
    write_lock_traces()
    write_park_traces()
    print(f"{len(list(TRACES.glob('*.json')))} traces in {TRACES.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
