"""The commands that take a lock from its holder, or ask that one to stop."""

from __future__ import annotations

import shlex
import sys
from typing import Any, NoReturn

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING, WRONG_INPUT
from celery_locks.cli.context import Context, echo, echo_json, exit_with, json_option, pass_context
from celery_locks.cli.options import (
    Grace,
    Number,
    Text,
    by_option,
    queued_for_option,
    reason_option,
    timeout_option,
)
from celery_locks.types import Holder


@click.command()
@click.argument("name", metavar="NAME|GLOB")
@click.option("--if-token", type=Text(), help="Only from the holder with this token (see info).")
@reason_option
@by_option
@click.option("--exact", is_flag=True, help="NAME is no glob, whatever is in it.")
@click.option(
    "--grace",
    type=Grace(0),
    is_flag=False,
    flag_value=Grace.DEFAULT,
    default=0.0,
    help="Ask its holder to stop first, and give it this many seconds; without a number, as long "
    "as it takes to hear of it and 5 s more.",
)
@click.option("--yes", is_flag=True, help="Do not ask; with --reason, for scripts.")
@click.option("--dry-run", is_flag=True, help="Only say what would be freed.")
@json_option
@pass_context
def release(
    context: Context,
    name: str,
    if_token: str | None,
    reason: str,
    by: str,
    exact: bool,
    grace: float | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take a lock from its holder; the next in line gets it.

    The holder is told at its next renewal. You are asked first, and for a reason; a script says
    both with --yes and --reason.

    A NAME with * or ? that is no lock's own name is a glob. Only the holders that were found are
    freed, not whoever came after them.
    """
    found, is_one = _asked_for(context, name, exact, if_token)
    if not found:
        holding = f" with token {if_token!r}" if if_token else ""
        exit_with(
            FOUND_NOTHING, f"Nobody holds a lock {name!r}{holding}. {_near(context, name)}".strip()
        )
    if not dry_run:
        if not (yes and reason):
            reason = _ask(context, found, name, reason, yes, can_ask=not as_json)
        how = {"reason": reason, "by": by, "grace": grace}
        freed = [_freed(context, lock, is_one, if_token, **how) for lock in found]
        found = [(lock, holders) for lock, holders in freed if holders]
    _tell_freed(found, dry_run, as_json)
    if not found:
        code = FOUND_NOTHING if grace == 0 else 0
        exit_with(code, "It was given back before it had to be taken.")


def _near(context: Context, name: str) -> str:
    """A glob that matches nothing was meant as one."""
    return "" if admin.is_glob(name) else admin.suggest(context.locks, name)


Found = tuple[str, tuple[Holder, ...]]


def _asked_for(
    context: Context, name: str, exact: bool, token: str | None
) -> tuple[list[Found], bool]:
    """The locks with their holders, and whether it is one by its very name."""
    lock = context.locks.info(name)
    if lock or exact or not admin.is_glob(name):
        holders = tuple(h for h in (lock.holders if lock else ()) if token in (None, h.token))
        return [(name, holders)] if holders else [], True
    if token:
        exit_with(WRONG_INPUT, "--if-token goes with one lock's name, not with a glob.")
    return [
        (found.name, found.holders)
        for found in admin.list_locks(context.locks, glob=name)
        if found.holders
    ], False


def _ask(
    context: Context, found: list[Found], name: str, reason: str, yes: bool, can_ask: bool
) -> str:
    """The reason, once the operator has agreed; ends the command if not."""
    if not (can_ask and is_terminal()):
        _refuse_unasked(found, name)
    _show(context, found)
    what = "this lock from its holder" if len(found) == 1 else f"these {len(found)} locks"
    try:
        if not yes and not click.confirm(f"Take {what}?", default=False):
            exit_with(FOUND_NOTHING, "Nothing was freed.")
        return reason or str(click.prompt("Reason, for the record", type=Text()))
    except click.Abort:
        click.echo()
        exit_with(FOUND_NOTHING, "Nothing was freed.")


def _refuse_unasked(found: list[Found], name: str) -> NoReturn:
    held = f"{len(found)} locks match"
    if len(found) == 1:
        held = f"Lock {found[0][0]!r} is held by {found[0][1][0]}"
    words = f"release {shlex.quote(name)} --yes --reason 'why'"
    exit_with(
        WRONG_INPUT, f"Nothing was freed. {held}. To take it without being asked, write: {words}"
    )


def is_terminal() -> bool:
    return sys.stdin.isatty()


def _show(context: Context, found: list[Found]) -> None:
    if len(found) == 1 and (detail := admin.info(context.locks, found[0][0], context.app)):
        for alive in detail.liveness:
            echo(f"{found[0][0]}  held by {alive.holder}. {alive.sentence}")
        return
    for name, holders in found[:20]:
        echo(f"{name}  held by {', '.join(map(str, holders))}")
    if len(found) > 20:
        echo(f"… and {len(found) - 20} more")


def _freed(context: Context, lock: Found, is_one: bool, token: str | None, **how: Any) -> Found:
    name, holders = lock
    if is_one and len(holders) > 1:  # all at once: a grace is waited for once
        return name, admin.force_release(context.locks, name, token, **how)
    taken = [admin.force_release(context.locks, name, holder.token, **how) for holder in holders]
    return name, tuple(holder for some in taken for holder in some)


def _tell_freed(found: list[Found], dry_run: bool, as_json: bool) -> None:
    if as_json:
        freed = [{"name": name, "holders": [h.as_dict() for h in hs]} for name, hs in found]
        echo_json({"freed": freed, "dry_run": dry_run})
        return
    word = "Would free" if dry_run else "Freed"
    for name, holders in found:
        for holder in holders:
            echo(f"{word} lock {name!r}, held by {holder}.")


@click.command()
@click.argument("name")
@click.option("--if-token", type=Text(), help="Only the holder with this token (see info).")
@reason_option
@by_option
@json_option
@pass_context
def stop(
    context: Context, name: str, if_token: str | None, reason: str, by: str, as_json: bool
) -> None:
    """Ask a lock's holder to stop.

    It keeps the lock until it ends, and may take no notice.
    """
    asked = admin.stop(context.locks, name, if_token, reason=reason, by=by)
    if as_json:
        echo_json({"asked": [holder.as_dict() for holder in asked]})
    else:
        for holder in asked:
            echo(f"Asked {holder} to stop; it learns of it within {holder.ttl / 3:.0f} s.")
    if not asked:
        exit_with(FOUND_NOTHING, f"Nobody holds a lock {name!r}. {_near(context, name)}".strip())


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be freed.")
@click.option(
    "--wait",
    type=Number(0),
    default=0.0,
    help="Seconds to wait until a silent worker's renewal is overdue too.",
)
@click.option(
    "--restore",
    is_flag=True,
    help="Deliver the unacknowledged jobs of dead workers now, not after the broker's visibility "
    "timeout (Redis brokers). Only jobs whose lock lapsed or was swept and that no worker has.",
)
@queued_for_option
@by_option
@timeout_option
@json_option
@pass_context
def sweep(
    context: Context,
    dry_run: bool,
    wait: float,
    restore: bool,
    queued_for: float,
    by: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Free the locks of dead workers and lost messages.

    A worker is dead if it does not answer twice and a renewal of the lock is overdue. A message
    that holds a lock from its publish on (scope="queued") is lost if it is in no queue and with no
    worker, looked for twice. What happens to the job of a dead worker is said too.
    """
    if context.app is None:
        exit_with(
            WRONG_INPUT, "Only Celery knows which workers live: use celery -A proj locks sweep."
        )
    swept = admin.sweep(
        context.locks,
        context.app,
        dry_run=dry_run,
        wait=wait,
        by=by,
        timeout=timeout,
        queued_for=queued_for,
        restore=restore,
    )
    if as_json:
        echo_json({**swept.as_dict(), "dry_run": dry_run})
        return
    for one in swept.freed:
        word = "Would free" if dry_run else "Freed"
        echo(f"{word} lock {one.name!r}, held by {one.holder}. {one.sentence}")
    for job in swept.jobs:
        echo(job.sentence)
    for one in swept.spared:
        echo(f"Left lock {one.name!r}, held by {one.holder}. {one.sentence}")
    if swept.doubt:
        echo(swept.doubt)
    if not (swept.freed or swept.spared or swept.doubt or swept.jobs):
        echo("Nothing to free: no worker is missing, and no message.")
    if swept.trimmed:
        word = "Would remove" if dry_run else "Removed"
        entries = "1 entry" if swept.trimmed == 1 else f"{swept.trimmed} entries"
        echo(f"{word} {entries} from the lock server that nobody needs any more.")
