"""The demo's screen: sentences, and below them a table of who holds which lock.

With rich and a terminal the table stays at the bottom and is redrawn. Otherwise it is printed again
each time it changes. No information is shown by colour alone.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from celery_locks import LockInfo, Locks, admin

HEADINGS = ("lock", "held by", "pid", "fence", "held for", "waiting")
NOBODY = ("(no lock is held)", "", "", "", "", "")
Row = tuple[str, ...]


class Screen(Protocol):
    def say(self, sentence: str) -> None: ...
    def draw(self, rows: Sequence[Row]) -> None: ...


def rows_of(infos: Sequence[LockInfo]) -> list[Row]:
    rows = [row for info in sorted(infos, key=lambda i: i.name) for row in _rows(info)]
    return rows or [NOBODY]


def _rows(info: LockInfo) -> Iterator[Row]:
    for holder in info.holders:
        who = f"{(holder.task or '?').rpartition('.')[2]} {(holder.task_id or '')[:8]}"
        age = f"{max(0.0, info.as_of - holder.acquired_at):.1f} s"
        waiting = str(len(info.waiters)) if info.waiters else "-"
        yield (info.name, who, str(holder.pid), str(holder.fence), age, waiting)


def watch(screen: Screen, locks: Locks, until: Callable[[], Any], seconds: float = 10.0) -> bool:
    """Show the locks until ``until`` returns a true value; False if it does not in time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        screen.draw(rows_of(list(admin.list_locks(locks))))
        if until():
            return True
        time.sleep(0.05)
    return False


@contextmanager
def screen(plain: bool = False) -> Iterator[Screen]:
    """Use rich in a terminal if it is installed, else plain text."""
    if not plain and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        try:
            import rich  # noqa: F401
        except ImportError:
            pass
        else:
            with _rich() as made:
                yield made
                return
    yield _Plain()


class _Plain:
    def __init__(self) -> None:
        self._shown: list[Row] = []

    def say(self, sentence: str) -> None:
        print(f"\n{sentence}\n" if sentence else "", flush=True)

    def draw(self, rows: Sequence[Row]) -> None:
        # The age changes all the time; that alone is not printed again.
        stable = [row[:4] + row[5:] for row in rows]
        if stable == self._shown:
            return
        self._shown = stable
        table = [HEADINGS, *rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADINGS))]
        for row in table:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("    " + "  ".join(cells).rstrip(), flush=True)
        print(flush=True)


@contextmanager
def _rich() -> Iterator[Screen]:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(highlight=False)

    def table(rows: Sequence[Row]) -> Table:
        made = Table(*HEADINGS, title="who holds which lock", title_justify="left")
        for row in rows:
            made.add_row(*row)
        return made

    with Live(table([NOBODY]), console=console, refresh_per_second=20) as live:

        class Drawn:
            def say(self, sentence: str) -> None:
                console.print(f"\n{sentence}", markup=False)

            def draw(self, rows: Sequence[Row]) -> None:
                live.update(table(rows))

        yield Drawn()
