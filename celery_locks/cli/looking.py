"""The commands that only look: each asks ``admin`` and writes down the answer; no rules here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from celery_locks import admin
from celery_locks.admin import TIMES_USUAL
from celery_locks.cli import FOUND_NOTHING, top
from celery_locks.cli.desk import Desk, end, json_option, pass_desk, say, say_json, say_json_list
from celery_locks.cli.options import Number, filter_options, queued_for_option, timeout_option
from celery_locks.cli.render import HEADS, detail_lines, rows, table
from celery_locks.model import LockInfo


@click.command("list")
@filter_options
@click.option(
    "--sort", type=click.Choice(list(admin.SORTS)), help="By default in the order of the server."
)
@click.option("--limit", type=click.IntRange(1))
@json_option
@pass_desk
def list_(
    desk: Desk, /, sort: str | None, limit: int | None, as_json: bool, **filters: Any
) -> None:
    """List the locks that are held or waited for.

    GLOB is a pattern for their names, with * and ?.
    """
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
        say(_none_found(desk, filters))


def _none_found(desk: Desk, filters: dict[str, Any]) -> str:
    count = sum(1 for _ in admin.list_locks(desk.locks)) if any(filters.values()) else 0
    if not count:
        return "No locks."
    return "The only lock does not match." if count == 1 else f"None of the {count} locks matches."


@click.command()
@click.argument("name")
@json_option
@pass_desk
def info(desk: Desk, name: str, as_json: bool) -> None:
    """Show one lock: its holders, whether they live, its waiters."""
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
        near = admin.suggest(desk.locks, name)
        end(FOUND_NOTHING, f"Nobody holds lock {name!r} or waits for it. {near}".strip())


@click.command()
@click.argument("subject", metavar="TASK_ID_OR_NAME")
@json_option
@pass_desk
def why(desk: Desk, subject: str, as_json: bool) -> None:
    """Say why a task does not run, or who has a lock.

    In sentences: who holds it, since when, alive or not, and who waits; of a task that was skipped
    also which lock was held, and by whom.
    """
    answer = admin.why(desk.locks, subject, desk.app)
    if as_json:
        say_json(answer.as_dict())
    else:
        for sentence in answer.sentences:
            say(sentence)
    if not answer.is_known:
        end(FOUND_NOTHING)


@click.command()
@click.option(
    "--older-than", type=Number(0), help="Also those held for more than this many seconds."
)
@click.option(
    "--times-usual",
    type=Number(1),
    default=TIMES_USUAL,
    show_default=True,
    help="Also those held for this many times as long as their task usually takes.",
)
@queued_for_option
@timeout_option
@json_option
@pass_desk
def stale(
    desk: Desk, /, older_than: float | None, timeout: float, as_json: bool, **limits: float
) -> None:
    """List locks whose holder may be dead or stuck.

    That is: its worker does not answer, does not run the task, or does not renew the lock. Also
    locks that are held for far longer than usual, and those that a message holds from its publish
    on, when it is nowhere any more.
    """
    found = admin.stale(desk.locks, desk.app, older_than, timeout, **limits)
    if as_json:
        say_json_list(one.as_dict() for one in found)
        if found.doubt:
            click.echo(found.doubt, err=True)
        return
    for one in found:
        say(f"{one.name}: held by {one.holder}. {one.sentence}")
    if found.doubt:
        say(found.doubt)
    elif not found:
        say("No stale locks.")


@click.command("top")
@filter_options
@click.option("--every", type=Number(0.1), default=1.0, show_default=True)
@click.option("--times", type=click.IntRange(1), help="End after showing them this many times.")
@json_option
@pass_desk
def top_(desk: Desk, /, every: float, times: int | None, as_json: bool, **filters: Any) -> None:
    """Watch the locks, the longest held first; Ctrl-C ends it."""
    top.run(lambda limit: top.look(desk.locks, limit, **filters), every, times, as_json)


@click.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--acts", "only_acts", is_flag=True, help="Only what operators did.")
@json_option
@pass_desk
def history(desk: Desk, name: str | None, limit: int, only_acts: bool, as_json: bool) -> None:
    """Show what operators did, and which holds ended.

    Of one lock or of any: when, who, why. Holds of a second or more; about 1000 of each are kept.
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
    """Look for mistakes in the setup.

    Of the lock server and, with an app, of its settings and tasks.
    """
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
