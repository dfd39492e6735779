"""The commands that take a lock from its holder, or ask that one to stop."""

from __future__ import annotations

from typing import Any

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING, WRONG_INPUT
from celery_locks.cli.desk import Desk, end, json_option, pass_desk, say, say_json
from celery_locks.cli.options import (
    Number,
    Text,
    by_option,
    queued_for_option,
    reason_option,
    timeout_option,
)
from celery_locks.model import Holder


@click.command()
@click.argument("name", metavar="NAME|GLOB")
@click.option("--if-token", type=Text(), help="Only from the holder with this token (see info).")
@reason_option
@by_option
@click.option("--exact", is_flag=True, help="NAME is no glob, whatever is in it.")
@click.option(
    "--grace",
    type=Number(0),
    default=0.0,
    help="Ask its holder to stop first, and give it so many seconds.",
)
@click.option("--yes", is_flag=True, help="Do not ask before freeing several.")
@click.option("--dry-run", is_flag=True, help="Only say what would be freed.")
@json_option
@pass_desk
def release(
    desk: Desk,
    name: str,
    if_token: str | None,
    reason: str,
    by: str,
    exact: bool,
    grace: float,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take a lock from its holder, who is told; the next in line gets it.

    A NAME with * or ? that is no lock's own name is a glob. Of what a glob matches, only the
    holders that it found are freed, not whoever came after them.
    """
    found, is_one = _asked_for(desk, name, exact, if_token)
    if not found:
        holding = f" with token {if_token!r}" if if_token else ""
        end(FOUND_NOTHING, f"Nobody holds a lock {name!r}{holding}.")
    if not dry_run:
        if not is_one and len(found) > 1 and not yes:
            _ask_first(found, as_json)
        freed = [
            _freed(desk, lock, is_one, if_token, reason=reason, by=by, grace=grace)
            for lock in found
        ]
        found = [(lock, holders) for lock, holders in freed if holders]
    _tell_freed(found, dry_run, as_json)
    if not found:
        end(0 if grace else FOUND_NOTHING, "It was given back before it had to be taken.")


Found = tuple[str, tuple[Holder, ...]]


def _asked_for(desk: Desk, name: str, exact: bool, token: str | None) -> tuple[list[Found], bool]:
    """The locks with their holders, and whether it is one by its very name."""
    lock = desk.locks.info(name)
    if lock or exact or not admin.is_glob(name):
        holders = tuple(h for h in (lock.holders if lock else ()) if token in (None, h.token))
        return [(name, holders)] if holders else [], True
    if token:
        end(WRONG_INPUT, "--if-token goes with one lock's name, not with a glob.")
    return [
        (found.name, found.holders)
        for found in admin.list_locks(desk.locks, glob=name)
        if found.holders
    ], False


def _ask_first(found: list[Found], as_json: bool) -> None:
    if as_json:
        end(FOUND_NOTHING, f"{len(found)} locks match; nothing was freed: say --yes to free them.")
    for name, holders in found[:20]:
        say(f"{name}  held by {', '.join(map(str, holders))}")
    if len(found) > 20:
        say(f"… and {len(found) - 20} more")
    try:
        agreed = click.confirm(f"Free these {len(found)} locks?", default=False)
    except click.Abort:
        click.echo()
        agreed = False
    if not agreed:
        end(FOUND_NOTHING, "Nothing was freed.")


def _freed(desk: Desk, lock: Found, is_one: bool, token: str | None, **how: Any) -> Found:
    name, holders = lock
    if is_one:
        return name, admin.force_release(desk.locks, name, token, **how)
    taken = [admin.force_release(desk.locks, name, holder.token, **how) for holder in holders]
    return name, tuple(holder for some in taken for holder in some)


def _tell_freed(found: list[Found], dry_run: bool, as_json: bool) -> None:
    if as_json:
        freed = [{"name": name, "holders": [h.as_dict() for h in hs]} for name, hs in found]
        say_json({"freed": freed, "dry_run": dry_run})
        return
    word = "Would free" if dry_run else "Freed"
    for name, holders in found:
        for holder in holders:
            say(f"{word} lock {name!r}, held by {holder}.")


@click.command()
@click.argument("name")
@click.option("--if-token", type=Text(), help="Only the holder with this token (see info).")
@reason_option
@by_option
@json_option
@pass_desk
def stop(desk: Desk, name: str, if_token: str | None, reason: str, by: str, as_json: bool) -> None:
    """Ask a lock's holder to stop; it keeps the lock until it ends, and may take no notice."""
    asked = admin.stop(desk.locks, name, if_token, reason=reason, by=by)
    if as_json:
        say_json({"asked": [holder.as_dict() for holder in asked]})
    else:
        for holder in asked:
            say(f"Asked {holder} to stop; it hears it within {holder.ttl / 3:.0f} s.")
    if not asked:
        end(FOUND_NOTHING, f"Nobody holds a lock {name!r}.")


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
@pass_desk
def sweep(
    desk: Desk,
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
    if desk.app is None:
        end(WRONG_INPUT, "Only Celery knows which workers live: use celery -A proj locks sweep.")
    swept = admin.sweep(
        desk.locks,
        desk.app,
        dry_run=dry_run,
        wait=wait,
        by=by,
        timeout=timeout,
        queued_for=queued_for,
        restore=restore,
    )
    if as_json:
        say_json({**swept.as_dict(), "dry_run": dry_run})
        return
    for one in swept.freed:
        word = "Would free" if dry_run else "Freed"
        say(f"{word} lock {one.name!r}, held by {one.holder}. {one.sentence}")
    for job in swept.jobs:
        say(job.sentence)
    for one in swept.spared:
        say(f"Left lock {one.name!r}, held by {one.holder}. {one.sentence}")
    if swept.doubt:
        say(swept.doubt)
    if not (swept.freed or swept.spared or swept.doubt or swept.jobs):
        say("No worker is missing, and no message.")
    if swept.trimmed:
        word = "Would clear" if dry_run else "Cleared"
        say(f"{word} up {swept.trimmed} entries that nobody needs any more.")
