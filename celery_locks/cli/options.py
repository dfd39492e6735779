"""Options that several commands have, and the types that refuse what click would let through."""

from __future__ import annotations

import math
from typing import Any, get_args

import click

from celery_locks.admin import QUEUED_FOR, LockState
from celery_locks.integration.worker_inspection import PATIENCE

# Thirty years of seconds, and well within what a clock can wait.
_MOST = 1e9


class Number(click.FloatRange):
    """A number, of seconds mostly: no nan, and nothing beyond what a clock can wait for."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number of seconds.", param, ctx)
        if number > _MOST:
            self.fail(f"{number:g} is too large; {_MOST:,.0f} is the most.", param, ctx)
        return number


class Grace(Number):
    """Seconds; None, which stands for the default, if the option has no value."""

    DEFAULT = "default"

    def convert(  # type: ignore[override]
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        return None if value == self.DEFAULT else super().convert(value, param, ctx)


class Text(click.types.StringParamType):
    """One that can be written down: bytes that are not UTF-8 come from the shell as surrogates."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8.", param, ctx)
        return text


timeout_option = click.option(
    "--timeout",
    type=Number(0.1),
    default=PATIENCE,
    show_default=True,
    help="Seconds that workers have to answer.",
)
queued_for_option = click.option(
    "--queued-for",
    type=Number(0),
    default=QUEUED_FOR,
    show_default=True,
    help="Look for the message of a queued lock from this many seconds after its publish on.",
)
reason_option = click.option("--reason", type=Text(), default="", help="Why, for the record.")
by_option = click.option(
    "--by", type=Text(), default="", help="Who you are, for the record; by default your user name."
)


def filter_options(command: Any) -> Any:
    for option in (
        click.option(
            "--state",
            type=click.Choice(get_args(LockState)),
            help="held: a task or process works under it; waiting: somebody waits for it; queued: "
            "a message holds it that no worker has begun.",
        ),
        click.option("--worker", help="Held or waited for by this worker."),
        click.option("--task", help="Held or waited for by this task (a glob)."),
        click.argument("glob", required=False),
    ):
        command = option(command)
    return command
