"""The commands: each asks ``admin`` and writes down the answer; no rules here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, get_args

import click

from celery_locks import admin
from celery_locks.admin import QUEUED_FOR, TIMES_USUAL, LockState
from celery_locks.cli import FOUND_NOTHING, WRONG_INPUT, top
from celery_locks.cli.desk import (
    Desk,
    end,
    json_option,
    pass_desk,
    say,
    say_json,
    say_json_list,
)
from celery_locks.cli.metrics import metrics
from celery_locks.cli.render import HEADS, detail_lines, rows, table
from celery_locks.cli.web import web
from celery_locks.integration.roll_call import PATIENCE
from celery_locks.model import Holder, LockInfo

timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    default=PATIENCE,
    show_default=True,
    help="Seconds that workers have to answer.",
)
queued_for_option = click.option(
    "--queued-for",
    type=click.FloatRange(0),
    default=QUEUED_FOR,
    show_default=True,
    help="Seconds after a publish from which its message is looked for.",
)
by_option = click.option("--by", default="", help="Who you are, for the record; your user if not.")


def filter_options(command: Any) -> Any:
    for option in (
        click.option("--state", type=click.Choice(get_args(LockState))),
        click.option("--worker", help="Held or waited for by this worker."),
        click.option("--task", help="Held or waited for by this task (a glob)."),
        click.argument("glob", required=False),
    ):
        command = option(command)
    return command


@click.command("list")
@filter_options
@click.option("--sort", type=click.Choice(list(admin.SORTS)), help="As the server has them if not.")
@click.option("--limit", type=click.IntRange(1))
@json_option
@pass_desk
def list_(
    desk: Desk, /, sort: str | None, limit: int | None, as_json: bool, **filters: Any
) -> None:
    """The locks that are held or waited for; GLOB is of names, with * and ?."""
    found: Iterator[LockInfo] = admin.list_locks(desk.locks, **filters)
    if sort:
        found = iter(sorted(found, key=admin.SORTS[sort]))
    found = islice(found, limit)
    if as_json:
        say_json_list(lock.as_dict() for lock in found)
        return
    empty = True
    for line in table(HEADS, rows(found)):
        click.echo(line)
        empty = False
    if empty:
        say("No locks.")


@click.command()
@click.argument("name")
@json_option
@pass_desk
def info(desk: Desk, name: str, as_json: bool) -> None:
    """One lock: who holds it and is that one alive, who waits."""
    detail = admin.info(desk.locks, name, desk.app)
    if as_json:
        say_json(detail.as_dict() if detail else None)
    elif detail:
        sentences = [
            f"{alive.sentence} {admin.likely_end(detail, alive.holder)}".strip()
            for alive in detail.liveness
        ]
        for line in detail_lines(detail.lock, sentences):
            say(line)
    if not detail:
        end(FOUND_NOTHING, f"Nobody holds lock {name!r} or waits for it.")


@click.command()
@click.argument("subject", metavar="TASK_ID_OR_NAME")
@json_option
@pass_desk
def why(desk: Desk, subject: str, as_json: bool) -> None:
    """In sentences: who is in the way, since when, alive or not, and who waits."""
    answer = admin.why(desk.locks, subject, desk.app)
    if as_json:
        say_json(answer.as_dict())
    else:
        for sentence in answer.sentences:
            say(sentence)
    if not answer.locks:
        end(FOUND_NOTHING)


@click.command()
@click.argument("name", metavar="NAME|GLOB")
@click.option("--if-token", help="Only from the holder with this token (see info).")
@click.option("--reason", default="", help="Why, for the record.")
@by_option
@click.option("--exact", is_flag=True, help="NAME is no glob, whatever is in it.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
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
@click.option("--if-token", help="Only the holder with this token (see info).")
@click.option("--reason", default="", help="Why, for the record.")
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
@click.option("--older-than", type=click.FloatRange(0), help="Also those held for so many seconds.")
@click.option(
    "--times-usual",
    type=click.FloatRange(1),
    default=TIMES_USUAL,
    show_default=True,
    help="Also those held for so many times as long as their task's past holds.",
)
@queued_for_option
@timeout_option
@json_option
@pass_desk
def stale(
    desk: Desk, /, older_than: float | None, timeout: float, as_json: bool, **limits: float
) -> None:
    """Locks whose worker does not answer, does not run their task, or does not renew them.

    Also those that are held for far longer than usual, and those that a message holds from its
    publish on, when it is nowhere any more.
    """
    found = admin.stale(desk.locks, desk.app, older_than, timeout, **limits)
    if as_json:
        say_json_list(one.as_dict() for one in found)
        return
    for one in found:
        say(f"{one.name}: held by {one.holder}. {one.sentence}")
    if not found:
        say("No stale locks.")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be freed.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    help="Seconds to wait until a silent worker's renewal is overdue too.",
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
    queued_for: float,
    by: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Free the locks of workers that are gone: asked twice in vain, and a renewal is overdue.

    And places in the queue (scope="queued") whose message was purged or lost: it is in no queue
    and with no worker, looked for twice.
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
    )
    if as_json:
        say_json({**swept.as_dict(), "dry_run": dry_run})
        return
    for one in swept.freed:
        word = "Would free" if dry_run else "Freed"
        say(f"{word} lock {one.name!r}, held by {one.holder}. {one.sentence}")
    for one in swept.spared:
        say(f"Left lock {one.name!r}, held by {one.holder}. {one.sentence}")
    if swept.doubt:
        say(swept.doubt)
    if not swept.freed and not swept.spared and not swept.doubt:
        say("No worker is missing, and no message.")
    if swept.trimmed:
        word = "Would clear" if dry_run else "Cleared"
        say(f"{word} up {swept.trimmed} entries that nobody needs any more.")


@click.command("top")
@filter_options
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True)
@click.option("--times", type=click.IntRange(1), help="End after so many looks.")
@json_option
@pass_desk
def top_(desk: Desk, /, every: float, times: int | None, as_json: bool, **filters: Any) -> None:
    """The locks, live, the longest held first; Ctrl-C ends it."""
    top.run(lambda limit: top.look(desk.locks, limit, **filters), every, times, as_json)


@click.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--acts", "only_acts", is_flag=True, help="Only what operators did.")
@json_option
@pass_desk
def history(desk: Desk, name: str | None, limit: int, only_acts: bool, as_json: bool) -> None:
    """What operators did and which holds ended, of one lock or of any: when, who, why.

    Holds of a second or more; about 1000 of each are kept.
    """
    acts = admin.history(desk.locks, name, limit=limit, only_acts=only_acts)
    if as_json:
        say_json_list(act.as_dict() for act in acts)
        return
    for act in acts:
        say(admin.told(act))
    if not acts:
        say("Nothing was done by hand." if only_acts else "Nothing is on record.")


@click.command()
@json_option
@pass_desk
def check(desk: Desk, as_json: bool) -> None:
    """What is set up wrongly: the server and, with an app, its settings and tasks."""
    if desk.app is None:
        found = admin.check_server(desk.locks)
    else:
        found = admin.check(desk.locks, desk.app)
    if as_json:
        say_json_list(finding.as_dict() for finding in found)
    else:
        for finding in found:
            say(f"{finding.level:<8} {finding.where}: {finding.sentence}")
    if any(finding.level != "note" for finding in found):
        end(FOUND_NOTHING)
    if not as_json:
        say("Nothing is wrong.")


@click.group()
def once() -> None:
    """Work that is done once (once=, @idempotent): which is, and letting it be done again."""


@once.command("list")
@json_option
@pass_desk
def list_done(desk: Desk, as_json: bool) -> None:
    """Every key whose work is marked as done."""
    if as_json:
        say_json_list(work._asdict() for work in admin.list_done(desk.locks))
        return
    found = False
    cells = (
        (work.key, work.state, f"{work.size} B", f"{work.lapses_in:.0f} s")
        for work in admin.list_done(desk.locks)
    )
    for line in table(("KEY", "STATE", "RESULT", "FORGOTTEN IN"), cells):
        say(line)
        found = True
    if not found:
        say("No work is marked as done.")


@once.command("reset")
@click.argument("key")
@json_option
@pass_desk
def reset_done(desk: Desk, key: str, as_json: bool) -> None:
    """Let the work for a key be done again."""
    was_marked = admin.reset_done(desk.locks, key)
    if as_json:
        say_json({"key": key, "reset": was_marked})
    elif was_marked:
        say(f"The work for {key!r} may be done again.")
    if not was_marked:
        end(FOUND_NOTHING, "" if as_json else f"No work is marked as done for {key!r}.")


COMMANDS = {
    command.name or "": command
    for command in (
        list_,
        info,
        why,
        release,
        stop,
        stale,
        sweep,
        top_,
        history,
        check,
        once,
        metrics,
        web,
    )
}
