"""The generated parts of the page about capacity: what was measured, and the plans from it."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import plan
from benchmarks.preliminary import PRELIMINARY, QUIET
from celery_locks_site import markdown


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((plan.RESULTS / f"{name}.json").read_text())
    return found


def _rows(name: str) -> dict[str, Any]:
    """Return the second cell of each row by the first."""
    return {row[0]: row[1] for row in _result(name)["rows"]}


def _warning(*names: str) -> str:
    """Return the mark of figures that were measured on a busy machine, if these are some."""
    loads = (_result(name)["surroundings"].get("load at the start", 0) for name in names)
    return f"\n{PRELIMINARY}\n" if max(loads) > QUIET else ""


def times() -> str:
    """Return sentences about the time of calls, and of a task with a lock."""
    pair, renewal = _rows("roundtrip"), _rows("renewal")
    return (
        f"One call is one `EVALSHA`, one round trip. An acquire and release take "
        f"{pair['celery-locks']:.0f} µs (p50), where the two bare commands `SET NX PX` and a Lua "
        f"delete take {pair['floor: SET NX PX, Lua delete']:.0f} µs "
        f"(`benchmarks/results/roundtrip.md`).\n\n"
        f"Renewing 1,000 leases takes {renewal['celery-locks, one tick']:.1f} ms a round; the "
        f"longest single call occupies the server for "
        f"{renewal['the longest call by processor time, with request and reply, ms']:.1f} ms "
        f"(`benchmarks/results/renewal.md`). With a ttl of 30 s that is one round every 10 s.\n\n"
        f"{_cost_of_a_task()}\n{_warning('roundtrip', 'renewal', 'tasks')}"
    )


def _cost_of_a_task() -> str:
    cost = next(
        cost
        for cost in _result("tasks")["data"]["costs"]
        if (cost["pool"], cost["phase"], cost["name"]) == ("prefork -c2", "both", "celery-locks")
    )
    above, cpu = (
        "{1:.0f} µs (95 % interval: {0:.0f} to {2:.0f})".format(*(each * 1e6 for each in cost[key]))
        for key in ("above", "cpu_above")
    )
    return (
        f"A no-op task, from publish to its stored result, takes {above} longer with a lock, and "
        f"{cpu} more processor time of caller, worker and servers together "
        f"(`benchmarks/results/tasks.md`)."
    )


def memory() -> str:
    """Return the memory of a lock and of what remains."""
    (_, held), (_, left), *_ = _result("memory")["rows"]
    source = "`benchmarks/results/memory.md`"
    rows = [
        ("a held lock", f"{held}", source),
        ("after all locks are released", f"{left}, and one key: the last fence", source),
        (
            "the history",
            "about 1000 actions and 1000 holds per shard, then the oldest go",
            "[command line](cli.md#history)",
        ),
        ("a completed task with `once=`", "its result, for as long as `once=` says", ""),
    ]
    return (
        f"{markdown.table(('what', 'bytes', 'source'), rows)}\n"
        f"So 100,000 locks held at once need about {held / 10:.0f} MB. Locks of ended tasks leave "
        "no key behind; names that a dead process left are deleted in the background.\n\n"
        f"{_list()}\n{_warning('memory', 'growth-listing')}"
    )


def _list() -> str:
    points = _result("growth-listing")["data"]["points"]
    (few, *_), (many, *_) = points[0], points[-1]
    call, longest = (max(point[column] for point in points) * 1e3 for column in (4, 5))
    return (
        f"A page of the list takes a few calls, each of which costs the server {call:.1f} ms of "
        f"processor time (p50; {longest:.1f} ms at most), with {few:,} as with {many:,} locks "
        f"(`benchmarks/results/growth-listing.md`)."
    )


def inputs() -> str:
    """Return the measured inputs of the calculation, with their files."""
    found, capacity = plan.read_inputs(), "`benchmarks/results/capacity.md`"
    listing, single = "`benchmarks/results/growth-listing.md`", 1e6 / found.call_us
    rows = [
        ("processor time of the server for an acquire", f"{found.acquire_us:.1f} µs", capacity),
        ("for a release", f"{found.release_us:.1f} µs", capacity),
        ("for one lease in a batch of renewals", f"{found.renew_us:.1f} µs", capacity),
        (
            "for a poll for parked tasks, which every worker sends to every shard",
            f"{found.poll_us:.1f} µs every {found.poll_seconds:g} s",
            capacity,
        ),
        ("calls a second of one server, measured", f"{found.calls_per_second:,.0f}", capacity),
        ("the same, calculated from the processor time", f"{single:,.0f}", capacity),
        ("bytes of a call, with its reply", f"{found.bytes_per_call:,.0f}", capacity),
        ("calls of a locked task", f"{found.calls_per_task:.2f}", capacity),
        (
            "connections of a prefork worker, beside one for each child",
            f"{found.connections_beside_children}",
            capacity,
        ),
        ("memory of a held lock", f"{found.bytes_per_lock:.0f} bytes", listing),
    ]
    return markdown.table(("measured", "", "file"), rows) + _warning("capacity", "growth-listing")


def plans() -> str:
    """Return the table of the plans; it is wide, so every plan is a column."""
    plans_as_rows = plan.rows(plan.read_inputs())
    by_quantity = zip(plan.COLUMNS, *plans_as_rows, strict=True)
    head, *rows = ([str(cell) for cell in row] for row in by_quantity)
    return markdown.table(head, rows)
