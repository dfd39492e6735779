"""Options that several commands have."""

from __future__ import annotations

from typing import Any, get_args

import click

from celery_locks.admin import QUEUED_FOR, LockState
from celery_locks.integration.roll_call import PATIENCE

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
