"""``top``: the locks that have been held longest, updated all the time; with rich if installed."""

from __future__ import annotations

import heapq
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import click

from celery_locks import admin
from celery_locks.admin.connect import Locks
from celery_locks.cli.render import HEADS, fit, rows, table
from celery_locks.types import LockInfo

Read = Callable[[], tuple[int, list[LockInfo]]]
Show = Callable[[Read, float, int | None], None]


def look(locks: Locks, limit: int, **filters: Any) -> tuple[int, list[LockInfo]]:
    """Return the number of locks, and those that have been held longest."""
    count = 0

    def counted() -> Iterator[LockInfo]:
        nonlocal count
        for lock in admin.list_locks(locks, **filters):
            count += 1
            yield lock

    oldest = heapq.nlargest(limit, counted(), key=_age)
    return count, oldest


def _age(lock: LockInfo) -> float:
    return max((lock.as_of - holder.acquired_at for holder in lock.holders), default=0.0)


def run(
    read: Callable[[int], tuple[int, list[LockInfo]]],
    every: float,
    times: int | None,
    as_json: bool,
) -> None:
    """Show the locks until Ctrl-C, or ``times`` times."""
    is_screen = sys.stdout.isatty() and not as_json
    height = max(5, shutil.get_terminal_size().lines - 4) if is_screen else 50
    show = _output(is_screen, as_json)
    try:
        show(lambda: read(height), every, times)
    except KeyboardInterrupt:
        pass  # the usual way to exit


def _output(is_screen: bool, as_json: bool) -> Show:
    if as_json:
        return _show_json
    return _screen() if is_screen else _show_lines


def _updates(every: float, times: int | None) -> Iterator[None]:
    done = 0
    while times is None or done < times:
        if done:
            time.sleep(every)
        done += 1
        yield


def _head(count: int) -> str:
    return (
        f"{admin.format_count(count, 'lock')} at {datetime.now():%H:%M:%S}, the longest held first"
    )


def _show_json(read: Read, every: float, times: int | None) -> None:
    """Print one array per line."""
    for _ in _updates(every, times):
        click.echo(json.dumps([lock.as_dict() for lock in read()[1]]))


def _show_lines(read: Read, every: float, times: int | None) -> None:
    for _ in _updates(every, times):
        count, found = read()
        click.echo("\n".join([_head(count), *table(HEADS, rows(found)), ""]))


def _show_plain_screen(read: Read, every: float, times: int | None) -> None:
    for _ in _updates(every, times):
        count, found = read()
        heads, *cells = _fitted(found, gap=2)
        click.echo("\x1b[H\x1b[2J" + "\n".join([_head(count), *table(heads, cells), ""]))


def _fitted(found: list[LockInfo], gap: int) -> list[tuple[str, ...]]:
    return fit([HEADS, *rows(found)], shutil.get_terminal_size().columns - 1, gap)


def _screen() -> Show:
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return _show_plain_screen

    def draw(read: Read) -> Any:
        count, found = read()
        heads, *cells = _fitted(found, gap=3)
        table = Table(title=_head(count), expand=True)
        for head in heads:
            table.add_column(head, no_wrap=True)
        for row in cells:
            table.add_row(*map(Text, row))
        return table

    def show(read: Read, every: float, times: int | None) -> None:
        with Live(console=Console(), auto_refresh=False, screen=times is None) as live:
            for _ in _updates(every, times):
                live.update(draw(read), refresh=True)

    return show
