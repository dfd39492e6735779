"""The command line: ``celery -A proj locks …``, or without an app ``celery-locks --url …``.

Exit codes: 0 done; 1 the lock is not there, nothing matched, it was refused, or ``check`` found
something; 2 wrong input, said in a sentence; 3 the lock server or the broker gives no answer.

Celery loads this with every ``celery`` command, so the commands themselves (``commands.py``) are
loaded when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from celery_locks.integration import control as remote

remote.register()  # `celery inspect locks` needs to know the command in its own process too

FOUND_NOTHING, WRONG_INPUT, UNAVAILABLE = 1, 2, 3


class Commands(click.Group):
    """The commands, loaded when needed; an error of ours becomes a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._all())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._all().get(cmd_name)

    @staticmethod
    def _all() -> dict[str, click.Command]:
        commands: dict[str, click.Command] = import_module(f"{__name__}.commands").COMMANDS
        return commands

    def invoke(self, ctx: click.Context) -> Any:
        from celery_locks.errors import LockError, LockUnavailable
        from celery_locks.text import printable

        try:
            return super().invoke(ctx)
        except LockError as error:
            click.echo(f"Error: {printable(str(error))}", err=True)
            ctx.exit(UNAVAILABLE if isinstance(error, LockUnavailable) else WRONG_INPUT)


_EPILOG = (
    "Exit codes: 0 done; 1 nothing there, refused, or check found something; 2 wrong input; "
    "3 the lock server or the broker gives no answer."
)


@click.group(cls=Commands, epilog=_EPILOG)
@click.pass_context
def locks(ctx: click.Context) -> None:
    """See who holds which lock, and free one that is stuck."""
    from celery_locks.cli.context import Context

    ctx.obj = Context.of_app(ctx.obj.app)
    ctx.call_on_close(ctx.obj.close)


@click.group(name="celery-locks", cls=Commands, epilog=_EPILOG)
@click.option(
    "--url",
    envvar="CELERY_LOCKS_URL",
    required=True,
    help="The lock server; or set CELERY_LOCKS_URL, which shows a password to nobody.",
)
@click.option("--prefix", envvar="CELERY_LOCKS_PREFIX", help="As in locks_prefix.")
@click.option("--shards", type=click.IntRange(1), help="As in locks_shards.")
@click.version_option(package_name="celery-locks")
@click.pass_context
def main(ctx: click.Context, url: str, prefix: str | None, shards: int | None) -> None:
    """See who holds which lock, and free one that is stuck; without a Celery app.

    Whether a worker lives, only Celery can say: for that use `celery -A proj locks`.
    """
    from celery_locks.cli.context import Context

    ctx.obj = Context.of_url(url, prefix, shards)
    ctx.call_on_close(ctx.obj.close)
