"""The commands that release locks by force, or ask their holders to stop."""

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
@click.option(
    "--if-token", type=Text(), help="Release it only if the holder has this token (see info)."
)
@reason_option
@by_option
@click.option("--exact", is_flag=True, help="Take NAME literally, even if it contains * or ?.")
@click.option(
    "--grace",
    type=Grace(0),
    is_flag=False,
    flag_value=Grace.DEFAULT,
    default=0.0,
    help="First ask the holder to stop, and wait this many seconds. Without a number: the time "
    "it needs to learn of it, plus 5 s.",
)
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; scripts also need --reason."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be released.")
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
    """Take a lock from its holder; the next waiter gets it.

    The holder learns of it at its next renewal. The command asks for confirmation and for a reason;
    scripts pass --yes and --reason.

    A NAME with * or ? is a glob, unless a lock has exactly this name. Locks are taken only from the
    holders that were found, not from later ones.
    """
    found, is_exact = _find(context, name, exact, if_token)
    if not found:
        _exit_not_held(context, name, if_token)
    if not dry_run:
        if not (yes and reason):
            reason = _confirm(context, found, name, reason, yes, can_ask=not as_json)
        options = {"reason": reason, "by": by, "grace": grace}
        released = [_release(context, lock, is_exact, if_token, **options) for lock in found]
        found = [(lock, holders) for lock, holders in released if holders]
    _print_released(found, dry_run, as_json)
    if not found:
        code = FOUND_NOTHING if grace == 0 else 0
        exit_with(code, "The holder released it first; nothing was taken.")


def _exit_not_held(context: Context, name: str, token: str | None) -> NoReturn:
    """Exit with the names of similar locks; a glob has none."""
    holding = f" with token {token!r}" if token else ""
    near = "" if admin.is_glob(name) else admin.suggest(context.locks, name)
    exit_with(FOUND_NOTHING, f"Nobody holds lock {name!r}{holding}. {near}".strip())


Found = tuple[str, tuple[Holder, ...]]


def _find(context: Context, name: str, exact: bool, token: str | None) -> tuple[list[Found], bool]:
    """Return the locks with their holders, and whether NAME is the exact name of one."""
    if exact or not admin.is_glob(name) or context.locks.info(name):
        holders = admin.find_holders(context.locks, name, token)
        return [(name, holders)] if holders else [], True
    if token:
        exit_with(WRONG_INPUT, "Use --if-token with the name of one lock, not with a glob.")
    return [
        (found.name, found.holders)
        for found in admin.list_locks(context.locks, glob=name)
        if found.holders
    ], False


def _confirm(
    context: Context, found: list[Found], name: str, reason: str, yes: bool, can_ask: bool
) -> str:
    """Return the reason after the operator agreed; exit if not."""
    if not (can_ask and is_terminal()):
        _exit_unconfirmed(found, name)
    _show(context, found)
    what = "this lock from its holder" if len(found) == 1 else f"these {len(found)} locks"
    try:
        if not yes and not click.confirm(f"Take {what}?", default=False):
            exit_with(FOUND_NOTHING, "Nothing was released.")
        return reason or str(click.prompt("Reason (for the history)", type=Text()))
    except click.Abort:
        click.echo()
        exit_with(FOUND_NOTHING, "Nothing was released.")


def _exit_unconfirmed(found: list[Found], name: str) -> NoReturn:
    held = f"{len(found)} locks match"
    if len(found) == 1:
        held = f"Lock {found[0][0]!r} is held by {found[0][1][0]}"
    command = f"release {shlex.quote(name)} --yes --reason 'why'"
    exit_with(
        WRONG_INPUT, f"Nothing was released. {held}. To skip the confirmation, write: {command}"
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


def _release(
    context: Context, lock: Found, is_exact: bool, token: str | None, **options: Any
) -> Found:
    name, holders = lock
    if is_exact and len(holders) > 1:  # all in one call, so that the grace is waited for once
        return name, admin.force_release(context.locks, name, token, **options)
    taken = [admin.force_release(context.locks, name, h.token, **options) for h in holders]
    return name, tuple(holder for lost in taken for holder in lost)


def _print_released(found: list[Found], dry_run: bool, as_json: bool) -> None:
    if as_json:
        freed = [{"name": name, "holders": [h.as_dict() for h in hs]} for name, hs in found]
        echo_json({"freed": freed, "dry_run": dry_run})
        return
    action = "Would release" if dry_run else "Released"
    for name, holders in found:
        for holder in holders:
            echo(f"{action} lock {name!r}, held by {holder}.")


@click.command()
@click.argument("name")
@click.option("--if-token", type=Text(), help="Ask only the holder with this token (see info).")
@reason_option
@by_option
@json_option
@pass_context
def stop(
    context: Context, name: str, if_token: str | None, reason: str, by: str, as_json: bool
) -> None:
    """Ask a lock's holder to stop.

    It keeps the lock until it ends, and may ignore the request.
    """
    stopping = admin.stop(context.locks, name, if_token, reason=reason, by=by)
    if as_json:
        echo_json({"asked": [holder.as_dict() for holder in stopping]})
    else:
        for holder in stopping:
            echo(f"Asked {holder} to stop; it learns of it within {holder.ttl / 3:.0f} s.")
    if not stopping:
        _exit_not_held(context, name, if_token)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be released.")
@click.option(
    "--wait",
    type=Number(0),
    default=0.0,
    help="Seconds to wait for the renewals of silent workers to become overdue.",
)
@click.option(
    "--restore",
    is_flag=True,
    help="Deliver the unacknowledged messages of dead workers again now, not after the broker's "
    "visibility timeout (Redis brokers). Applies to jobs whose lock lapsed or was swept and that "
    "no worker has.",
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
    """Release the locks of dead workers and lost messages.

    A worker is dead if it does not answer two requests and the renewal of its lock is overdue. A
    message that has held a lock since it was published (scope="queued") is lost if two searches
    find it in no queue and with no worker. The output also says what happens to the jobs of dead
    workers.
    """
    if context.app is None:
        exit_with(
            WRONG_INPUT,
            "Only Celery knows which workers are alive: use celery -A proj locks sweep.",
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
    _print_swept(swept, "Would release" if dry_run else "Released")
    if swept.trimmed:
        action = "Would remove" if dry_run else "Removed"
        entries = admin.format_count(swept.trimmed, "unneeded entry", "unneeded entries")
        echo(f"{action} {entries} from the lock server.")


def _print_swept(swept: admin.Swept, action: str) -> None:
    for lock in swept.freed:
        echo(f"{action} lock {lock.name!r}, held by {lock.holder}. {lock.sentence}")
    for job in swept.jobs:
        echo(job.sentence)
    for lock in swept.skipped:
        echo(f"Kept lock {lock.name!r}, held by {lock.holder}. {lock.sentence}")
    if swept.inconclusive:
        echo(swept.inconclusive)
    if not (swept.freed or swept.skipped or swept.inconclusive or swept.jobs):
        echo("Nothing to release: no worker is dead and no message is lost.")
