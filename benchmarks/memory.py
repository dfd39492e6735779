"""The memory of a held lock on the server, and the cost of listing many locks."""

from __future__ import annotations

from benchmarks.effort import FULL, Effort
from benchmarks.filling import fill, name_of, token_of
from benchmarks.report import Report
from benchmarks.servertime import Watched, used_memory, watch
from benchmarks.timing import MICROSECOND, in_turns, p50
from celery_locks import Locks
from celery_locks.store.commands.locks import LockCommands
from celery_locks.store.effects import run_sync
from tests.servers.embedded import EmbeddedServer

HELD, FEW, MANY = 10_000, 100, 100_000
COMMANDS = LockCommands()


def run(server: EmbeddedServer, effort: Effort = FULL) -> Report:
    report = Report("memory", "Server memory, and listing", ("", "measured"))
    _memory(report, server)
    with EmbeddedServer() as small:
        _listing(report, server, small, effort)
    return report


def _memory(report: Report, server: EmbeddedServer) -> None:
    # Load the scripts first: they are no cost of a lock.
    fill(server, 1)
    _give_back(server, 1)
    before = used_memory(server)
    fill(server, HELD)
    each = (used_memory(server) - before) / HELD
    _give_back(server, HELD)
    left, keys = used_memory(server) - before, server.ask("KEYS", "*")
    report.add(f"bytes a held lock, {HELD:,} held", round(each))
    report.add("bytes more in use after all were released", left)
    report.add("keys left after all were released", _listed(keys))
    report.at_most("a held lock", 0.8, each / 1000, " kB")
    report.at_most(
        "keys left after release (the fence)", 1, len(keys) if isinstance(keys, list) else 0
    )


def _listed(keys: object) -> str:
    return ", ".join(str(key) for key in keys) if isinstance(keys, list) and keys else "none"


def _give_back(server: EmbeddedServer, count: int) -> None:
    locks = Locks.from_url(server.url)
    assert all(locks.perform(COMMANDS.release(name_of(n), token_of(n))) for n in range(count))
    locks.close()


def _listing(report: Report, server: EmbeddedServer, small: EmbeddedServer, effort: Effort) -> None:
    few, many = Locks.from_url(small.url), Locks.from_url(server.url)
    fill(small, FEW)
    many_locks = effort.count(MANY)
    fill(server, many_locks)
    pages = {"few": lambda: first_page(few), "many": lambda: first_page(many)}
    taken = in_turns(pages, effort.count(20), 5)
    first = {name: p50(times) for name, times in taken.items()}
    watched = Watched(server, many.perform)
    listed: list[tuple[int, int]] = []
    times = watch(server, watched, lambda: listed.append(list_pages(watched)))
    assert listed[0][0] == many_locks
    report.add(f"first page with {FEW} locks, p50 µs", round(first["few"] / MICROSECOND))
    report.add(f"first page with {many_locks:,} locks, p50 µs", round(first["many"] / MICROSECOND))
    report.at_most("first page with many against few", 2, first["many"] / first["few"], " ×")
    for what, ms in times.rows():
        report.add(what, ms)
    report.at_most("the longest page of a full listing, processor time", 5, times.longest, " ms")


def first_page(locks: Locks) -> None:
    assert locks.run(locks.commands.page()).locks


def list_pages(watched: Watched, most: int = 0) -> tuple[int, int]:
    """Read the pages of the list, all of them or the first ``most``: how many locks, and pages."""
    cursor, seen, pages = "", 0, 0
    while True:
        page = run_sync(COMMANDS.page(cursor), watched.perform)
        cursor, seen, pages = page.cursor, seen + len(page.locks), pages + 1
        if not cursor or pages == most:
            return seen, pages
