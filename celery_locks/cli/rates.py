"""The command that shows rates, and that pauses, resumes, sets and resets them."""

from __future__ import annotations

from typing import Any

import click

from celery_locks import admin
from celery_locks.cli import FOUND_NOTHING, WRONG_INPUT
from celery_locks.cli.context import (
    Context,
    echo,
    echo_json,
    echo_json_list,
    exit_with,
    json_option,
    pass_context,
)
from celery_locks.cli.options import by_option, for_option, reason_option
from celery_locks.cli.overrides import require_reason


@click.command()
@click.argument("name", required=False)
@click.argument("rates", metavar="[RATE]...", nargs=-1)
@click.option("--reset", is_flag=True, help="Let the rates of the callers apply again.")
@click.option("--pause", is_flag=True, help="Let nothing start at this rate.")
@click.option("--resume", is_flag=True, help="End the pause.")
@for_option
@reason_option
@by_option
@json_option
@pass_context
def rate(
    context: Context,
    /,
    name: str | None,
    rates: tuple[str, ...],
    seconds: float | None,
    as_json: bool,
    reason: str,
    by: str,
    **flags: bool,
) -> None:
    """Show rates; pause one, or set another for it.

    Without NAME it lists those that delay callers, are pushed back, paused or set. RATE is as 10/m,
    with s, m, h or d. It takes the place of every caller's rate. While a rate is
    paused, nothing starts at it; what a caller does is its on_limit. NAME is one rate, no pattern.
    """
    actions = [flag for flag, is_set in flags.items() if is_set] + (["set"] if rates else [])
    if len(actions) > 1:
        exit_with(WRONG_INPUT, "Write one of RATE, --reset, --pause and --resume.")
    action = actions[0] if actions else "show"
    if action != "show" and not name:
        exit_with(WRONG_INPUT, "Write the NAME of the rate.")
    if seconds is not None and action not in ("pause", "set"):
        exit_with(WRONG_INPUT, "--for has an effect only with RATE or --pause.")
    if not name:
        _list(context, as_json)
    elif action == "show":
        _show(context, name, as_json)
    else:
        _change(context, name, action, rates, as_json, seconds=seconds, reason=reason, by=by)


def _list(context: Context, as_json: bool) -> None:
    found = admin.list_rates(context.locks)
    if as_json:
        echo_json_list(info.as_dict() for info in found)
        return
    for info in found:
        echo(admin.describe_rate(info))
    if not found:
        echo("No rate delays a caller, and none is paused or set.")


def _show(context: Context, name: str, as_json: bool) -> None:
    info = admin.rate_info(context.locks, name)
    if as_json:
        echo_json(info.as_dict() if info else None)
    elif info:
        echo(admin.describe_rate(info))
    if not info:
        exit_with(FOUND_NOTHING, f"Nothing has started at rate {name!r} in its last period.")


def _change(
    context: Context,
    name: str,
    action: str,
    rates: tuple[str, ...],
    as_json: bool,
    *,
    seconds: float | None,
    **logged: Any,
) -> None:
    locks = context.locks
    if action in ("pause", "set"):
        require_reason(logged["reason"])
    if action == "pause":
        done = admin.pause_rate(locks, name, seconds=seconds, **logged)
        sentence = f"Paused the rate {name!r}"
    elif action == "set":
        done = admin.set_rate(locks, name, rates, seconds=seconds, **logged)
        sentence = f"Set the rate {name!r} to {' and '.join(rates)}"
    elif action == "resume":
        done = admin.resume_rate(locks, name, **logged)
        sentence = f"Resumed the rate {name!r}"
    else:
        done = admin.reset_rate(locks, name, **logged)
        sentence = f"Reset the rate {name!r}"
    was_missing = action in ("resume", "reset") and not done.was_set
    info = done.rate
    if as_json:
        echo_json({"name": name, "was_set": done.was_set, "rate": info.as_dict() if info else None})
    elif not was_missing:
        echo(f"{sentence}: {info.delayed if info else 0} delayed.")
    if was_missing:
        was = "was not paused" if action == "resume" else "was not set"
        exit_with(FOUND_NOTHING, f"The rate {name!r} {was}.")
