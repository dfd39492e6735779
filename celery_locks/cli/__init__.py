"""The command line: ``celery -A proj locks …``, or without an app ``celery-locks --url …``.

Exit codes: 0 success; 1 there is no such lock, nothing matched, the operator declined, or ``check``
found a problem; 2 wrong input, with a sentence; 3 the lock server or the broker does not answer.

Celery loads this module with every ``celery`` command, so the commands themselves
(``commands.py``) are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from celery_locks.integration import control

control.register()  # `celery inspect locks` has to know the command in its own process too

FOUND_NOTHING, WRONG_INPUT, UNAVAILABLE = 1, 2, 3


class Commands(click.Group):
    """The commands, loaded when needed; a ``LockError`` becomes a sentence and an exit code."""

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
        from celery_locks.printable_text import printable

        try:
            return super().invoke(ctx)
        except LockError as error:
            click.echo(f"Error: {printable(str(error))}", err=True)
            ctx.exit(UNAVAILABLE if isinstance(error, LockUnavailable) else WRONG_INPUT)


_EPILOG = (
    "Exit codes: 0 success; 1 no such lock or task, declined, or check found a problem; "
    "2 wrong input; 3 the lock server or the broker does not answer."
)


@click.group(cls=Commands, epilog=_EPILOG)
@click.pass_context
def locks(ctx: click.Context) -> None:
    """Show who holds which lock, and release locks that are stuck."""
    from celery_locks.cli.context import Context

    ctx.obj = Context.of_app(ctx.obj.app)
    ctx.call_on_close(ctx.obj.close)


@click.group(name="celery-locks", cls=Commands, epilog=_EPILOG)
@click.option(
    "--url",
    envvar="CELERY_LOCKS_URL",
    required=True,
    help="URL of the lock server. Set CELERY_LOCKS_URL instead if it contains a password: other "
    "users of this machine can see the arguments of a command.",
)
@click.option(
    "--prefix", envvar="CELERY_LOCKS_PREFIX", help="The value of locks_prefix, if it is set."
)
@click.option("--shards", type=click.IntRange(1), help="The value of locks_shards, if it is set.")
@click.version_option(package_name="celery-locks")
@click.pass_context
def main(ctx: click.Context, url: str, prefix: str | None, shards: int | None) -> None:
    """Show who holds which lock, and release locks that are stuck, without a Celery app.

    Only Celery knows whether a worker is alive; for that use `celery -A proj locks`.
    """
    from celery_locks.cli.context import Context

    ctx.obj = Context.of_url(url, prefix, shards)
    ctx.call_on_close(ctx.obj.close)
