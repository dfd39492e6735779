"""Options that several commands share, and types that are stricter than those of click."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar, get_args

import click

from celery_locks.admin import PATIENCE, QUEUED_FOR, LockState
from celery_locks.validation import MAX_SECONDS

# Thirty years in seconds; the clock of the system can wait that long.
_MOST = 1e9


class Number(click.FloatRange):
    """A number, usually of seconds: not nan, and not larger than ``_MOST``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number of seconds.", param, ctx)
        if number > _MOST:
            self.fail(f"{number:g} is too large; the maximum is {_MOST:,.0f}.", param, ctx)
        return number


class Grace(Number):
    """Seconds; None, which means the default, if the option has no value."""

    DEFAULT = "default"

    def convert(  # type: ignore[override]
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        return None if value == self.DEFAULT else super().convert(value, param, ctx)


class Text(click.types.StringParamType):
    """Text that can be stored: bytes that are not UTF-8 come from the shell as surrogates."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8.", param, ctx)
        return text


class Duration(click.types.StringParamType):
    """A time such as 90, 90s, 15m, 2h or 1d, as seconds."""

    name = "duration"
    _UNITS: ClassVar = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

    def convert(  # type: ignore[override]
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", value)
        seconds = float(found[1]) * self._UNITS[found[2]] if found else 0.0
        if not 0.001 <= seconds <= MAX_SECONDS:
            self.fail(f"{value!r} is not a duration; write for example 90s, 15m or 1h.", param, ctx)
        return seconds


for_option = click.option(
    "--for",
    "seconds",
    type=Duration(),
    help="End it by itself after this time: 90s, 15m, 2h, 1d. Without this option it has no end.",
)
timeout_option = click.option(
    "--timeout",
    type=Number(0.1),
    default=PATIENCE,
    show_default=True,
    help="Seconds to wait for the answers of workers.",
)
queued_for_option = click.option(
    "--queued-for",
    type=Number(0),
    default=QUEUED_FOR,
    show_default=True,
    help="Search for the message of a queued lock only if it was published at least this many "
    "seconds ago.",
)
reason_option = click.option(
    "--reason",
    type=Text(),
    default="",
    help="The reason, for the history; a pause and a limit need one.",
)
by_option = click.option(
    "--by",
    type=Text(),
    default="",
    help="Your name, for the history; by default your user name and host.",
)


def filter_options(command: Any) -> Any:
    for option in (
        click.option(
            "--state",
            type=click.Choice(get_args(LockState)),
            help="held: a running task or process holds it; waiting: somebody waits for it; "
            "queued: a message holds it that no worker has started; paused: by an operator; "
            "parked: messages wait for it on the lock server.",
        ),
        click.option("--worker", help="Held or waited for by this worker."),
        click.option("--task", help="Held or waited for by this task (a glob)."),
        click.argument("glob", required=False),
    ):
        command = option(command)
    return command
