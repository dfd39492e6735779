"""The commands that only look: each asks ``admin`` and writes down the answer; no rules here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from celery_locks import admin
from celery_locks.admin import TIMES_USUAL
from celery_locks.cli import FOUND_NOTHING, top
from celery_locks.cli.context import (
    Context,
    echo,
    echo_json,
    echo_json_list,
    exit_with,
    json_option,
    pass_context,
)
from celery_locks.cli.options import Number, filter_options, queued_for_option, timeout_option
from celery_locks.cli.render import HEADS, detail_lines, rows, table
from celery_locks.types import LockInfo


@click.command("list")
@filter_options
@click.option(
    "--sort", type=click.Choice(list(admin.SORTS)), help="By default in the order of the server."
)
@click.option("--limit", type=click.IntRange(1))
@json_option
@pass_context
def list_(
    context: Context, /, sort: str | None, limit: int | None, as_json: bool, **filters: Any
) -> None:
    """List the locks that are held or waited for.

    GLOB is a pattern for their names, with * and ?.
    """
    found: Iterator[LockInfo] = admin.list_locks(context.locks, **filters)
    if sort:
        found = iter(sorted(found, key=admin.SORTS[sort]))
    found = islice(found, limit)
    if as_json:
        echo_json_list(lock.as_dict() for lock in found)
        return
    empty = True
    for line in table(HEADS, rows(found)):
        click.echo(line)
        empty = False
    if empty:
        echo(_none_found(context, filters))


def _none_found(context: Context, filters: dict[str, Any]) -> str:
    count = sum(1 for _ in admin.list_locks(context.locks)) if any(filters.values()) else 0
    if not count:
        return "No locks."
    return "The only lock does not match." if count == 1 else f"None of the {count} locks matches."


@click.command()
@click.argument("name")
@json_option
@pass_context
def info(context: Context, name: str, as_json: bool) -> None:
    """Show one lock: its holders, whether they live, its waiters."""
    detail = admin.info(context.locks, name, context.app)
    if as_json:
        echo_json(detail.as_dict() if detail else None)
    elif detail:
        sentences = [
            f"{alive.sentence} {admin.likely_end(detail, alive.holder)}".strip()
            for alive in detail.liveness
        ]
        for line in detail_lines(detail.lock, sentences):
            echo(line)
    if not detail:
        near = admin.suggest(context.locks, name)
        exit_with(FOUND_NOTHING, f"Nobody holds lock {name!r} or waits for it. {near}".strip())


@click.command()
@click.argument("subject", metavar="TASK_ID_OR_NAME")
@json_option
@pass_context
def why(context: Context, subject: str, as_json: bool) -> None:
    """Say why a task does not run, or who has a lock.

    In sentences: who holds it, since when, alive or not, and who waits; of a task that was skipped
    also which lock was held, and by whom.
    """
    answer = admin.why(context.locks, subject, context.app)
    if as_json:
        echo_json(answer.as_dict())
    else:
        for sentence in answer.sentences:
            echo(sentence)
    if not answer.is_known:
        exit_with(FOUND_NOTHING)


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
@pass_context
def stale(
    context: Context, /, older_than: float | None, timeout: float, as_json: bool, **limits: float
) -> None:
    """List locks whose holder may be dead or stuck.

    That is: its worker does not answer, does not run the task, or does not renew the lock. Also
    locks that are held for far longer than usual, and those that a message holds from its publish
    on, when it is nowhere any more.
    """
    found = admin.stale(context.locks, context.app, older_than, timeout, **limits)
    if as_json:
        echo_json_list(one.as_dict() for one in found)
        if found.doubt:
            click.echo(found.doubt, err=True)
        return
    for one in found:
        echo(f"{one.name}: held by {one.holder}. {one.sentence}")
    if found.doubt:
        echo(found.doubt)
    elif not found:
        echo("No stale locks.")


@click.command("top")
@filter_options
@click.option("--every", type=Number(0.1), default=1.0, show_default=True)
@click.option("--times", type=click.IntRange(1), help="End after showing them this many times.")
@json_option
@pass_context
def top_(
    context: Context, /, every: float, times: int | None, as_json: bool, **filters: Any
) -> None:
    """Watch the locks, the longest held first; Ctrl-C ends it."""
    top.run(lambda limit: top.look(context.locks, limit, **filters), every, times, as_json)


@click.command()
@click.argument("name", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--acts", "only_acts", is_flag=True, help="Only what operators did.")
@json_option
@pass_context
def history(context: Context, name: str | None, limit: int, only_acts: bool, as_json: bool) -> None:
    """Show what operators did, and which holds ended.

    Of one lock or of any: when, who, why. Holds of a second or more; about 1000 of each are kept.
    """
    acts = admin.history(context.locks, name, limit=limit, only_acts=only_acts)
    if as_json:
        echo_json_list(act.as_dict() for act in acts)
        return
    for act in acts:
        echo(admin.describe_entry(act))
    if not acts:
        echo("Nothing was done by hand." if only_acts else "Nothing is on record.")


@click.command()
@json_option
@pass_context
def check(context: Context, as_json: bool) -> None:
    """Look for mistakes in the setup.

    Of the lock server and, with an app, of its settings and tasks.
    """
    if context.app is None:
        found = admin.check_server(context.locks)
    else:
        found = admin.check(context.locks, context.app)
    if as_json:
        echo_json_list(finding.as_dict() for finding in found)
    else:
        for finding in found:
            echo(f"{finding.level:<8} {finding.where}: {finding.sentence}")
    if any(finding.level != "note" for finding in found):
        exit_with(FOUND_NOTHING)
    if not as_json:
        echo("Nothing is wrong.")
