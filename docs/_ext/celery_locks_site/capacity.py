"""The generated parts of the page about capacity: what was measured, and the plans from it."""

from __future__ import annotations

from benchmarks import plan
from celery_locks_site import markdown


def inputs() -> str:
    """Return the measured inputs of the calculation, with their files."""
    found, capacity = plan.read_inputs(), "`benchmarks/results/capacity.md`"
    listing, single = "`benchmarks/results/growth-listing.md`", 1e6 / found.call_us
    rows = [
        ("processor time of the server for an acquire", f"{found.acquire_us:.1f} µs", capacity),
        ("for a release", f"{found.release_us:.1f} µs", capacity),
        ("for one lease in a batch of renewals", f"{found.renew_us:.1f} µs", capacity),
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
    return markdown.table(("measured", "", "file"), rows)


def plans() -> str:
    """Return the table of the plans; it is wide, so every plan is a column."""
    plans_as_rows = plan.rows(plan.read_inputs())
    by_quantity = zip(plan.COLUMNS, *plans_as_rows, strict=True)
    head, *rows = ([str(cell) for cell in row] for row in by_quantity)
    return markdown.table(head, rows)
