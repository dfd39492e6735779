"""The commands that change nothing: each calls ``admin`` and prints the answer."""

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
    "--sort", type=click.Choice(list(admin.SORTS)), help="By default the order of the server."
)
@click.option("--limit", type=click.IntRange(1), help="Show at most this many locks.")
@json_option
@pass_context
def list_(
    context: Context, /, sort: str | None, limit: int | None, as_json: bool, **filters: Any
) -> None:
    """List the locks that are held, waited for or paused.

    GLOB is a pattern for their names, with * and ?. Without a filter, the rates that delay callers
    follow.
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
    for pattern in admin.list_patterns(context.locks):
        echo(f"{pattern.glob}: {pattern}")
    if not any(filters.values()):
        for rate in admin.list_rates(context.locks):
            echo(admin.describe_rate(rate))


def _none_found(context: Context, filters: dict[str, Any]) -> str:
    count = sum(1 for _ in admin.list_locks(context.locks)) if any(filters.values()) else 0
    if not count:
        return "No locks."
    return "The only lock does not match." if count == 1 else f"None of the {count} locks match."


@click.command()
@click.argument("name")
@json_option
@pass_context
def info(context: Context, name: str, as_json: bool) -> None:
    """Show the holders and waiters of one lock.

    With an app it also says whether the holders are alive.
    """
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
    """Explain why a task does not run, or who has a lock.

    The answer says who holds the lock, since when, whether the holder is alive and who waits. For a
    task that was skipped it also says which lock was held, and by whom.
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
    "--older-than", type=Number(0), help="Include locks held for more than this many seconds."
)
@click.option(
    "--times-usual",
    type=Number(1),
    default=TIMES_USUAL,
    show_default=True,
    help="Include locks held this many times as long as their task usually takes.",
)
@queued_for_option
@timeout_option
@json_option
@pass_context
def stale(
    context: Context, /, older_than: float | None, timeout: float, as_json: bool, **limits: float
) -> None:
    """List locks whose holder may be dead or stuck.

    Its worker does not answer, does not run the task, or does not renew the lock. The list includes
    locks that are held for much longer than usual, and locks of queued messages that are lost.
    """
    found = admin.stale(context.locks, context.app, older_than, timeout, **limits)
    if as_json:
        echo_json_list(lock.as_dict() for lock in found)
        if found.inconclusive:
            click.echo(found.inconclusive, err=True)
        return
    for lock in found:
        echo(f"{lock.name}: held by {lock.holder}. {lock.sentence}")
    if found.inconclusive:
        echo(found.inconclusive)
    elif not found:
        echo("No stale locks.")


@click.command("top")
@filter_options
@click.option(
    "--every", type=Number(0.1), default=1.0, show_default=True, help="Seconds between updates."
)
@click.option("--times", type=click.IntRange(1), help="Exit after this many updates.")
@json_option
@pass_context
def top_(
    context: Context, /, every: float, times: int | None, as_json: bool, **filters: Any
) -> None:
    """Watch the locks, the longest held first; Ctrl-C exits."""
    top.run(lambda limit: top.look(context.locks, limit, **filters), every, times, as_json)


@click.command()
@click.argument("name", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Show at most this many entries.",
)
@click.option("--acts", "only_actions", is_flag=True, help="Show only what operators did.")
@json_option
@pass_context
def history(
    context: Context, name: str | None, limit: int, only_actions: bool, as_json: bool
) -> None:
    """Show what operators did, and which holds ended.

    Without NAME it covers all locks. About 1000 actions and 1000 holds of a second or more are kept
    per shard.
    """
    entries = admin.history(context.locks, name, limit=limit, only_actions=only_actions)
    if as_json:
        echo_json_list(entry.as_dict() for entry in entries)
        return
    for entry in entries:
        echo(admin.describe_entry(entry))
    if not entries:
        echo("No operator has done anything." if only_actions else "The history is empty.")


@click.command()
@json_option
@pass_context
def check(context: Context, as_json: bool) -> None:
    """Check the setup for mistakes.

    It checks the lock server and, with an app, the broker, the settings and the tasks.
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
        echo("No problems found.")
