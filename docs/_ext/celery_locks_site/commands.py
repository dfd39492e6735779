"""The command line, from its click commands: the same texts that `--help` shows."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from types import SimpleNamespace

import click

from celery_locks.cli import locks, main
from celery_locks_site.markdown import code, from_docstring, table, text

WITH_APP = "celery -A proj locks"
ALONE = "celery-locks"


def contexts(group: click.Command, program: str) -> Iterator[click.Context]:
    """Yield a context for the command and each command below it."""
    return _below(click.Context(group, info_name=program, obj=SimpleNamespace()))


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from _below(click.Context(command, parent=context, info_name=name))


def page() -> str:
    top, *below = contexts(locks, WITH_APP)
    alone = next(contexts(main, ALONE))
    rows = [[f"[{code(_short(it))}](#{_anchor(it)})", _summary(it)] for it in below]
    parts = [
        table(["command", "what it does"], rows),
        text(top.command.epilog or ""),
        *map(_section, below),
        f"## Without an app: `{ALONE}`",
        _about(alone),
    ]
    return "\n\n".join(parts) + "\n"


def _short(context: click.Context) -> str:
    return context.command_path.removeprefix(f"{WITH_APP} ")


def _anchor(context: click.Context) -> str:
    return "locks-" + _short(context).replace(" ", "-")


def _summary(context: click.Context) -> str:
    return text(context.command.get_short_help_str(limit=200))


def _section(context: click.Context) -> str:
    return f"## {code('locks ' + _short(context))}\n\n{_about(context)}"


def _about(context: click.Context) -> str:
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    records = [param.get_help_record(context) for param in context.command.get_params(context)]
    rows = [[code(option), text(about)] for option, about in filter(None, records)]
    doc = from_docstring(cleandoc(context.command.help or "")).replace("\b", "")
    return f"```text\n{usage}\n```\n\n{doc}\n\n{table(['option', 'meaning'], rows)}"
