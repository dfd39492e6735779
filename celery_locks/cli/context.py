"""What commands share: the locks, the app if there is one, and how they write and exit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from celery_locks.admin.connect import Locks
from celery_locks.printable_text import printable


@dataclass(frozen=True, slots=True)
class Context:
    """The locks, and the Celery app if there is one."""

    locks: Locks
    app: Any = None

    @classmethod
    def of_app(cls, app: Any) -> Context:
        return cls(Locks.from_app(app), app)

    @classmethod
    def of_url(cls, url: str, prefix: str | None, shards: int | None) -> Context:
        layout = {"prefix": prefix, "shards": shards}
        given: Any = {name: value for name, value in layout.items() if value is not None}
        return cls(Locks.from_url(url, **given))

    def close(self) -> None:
        self.locks.close()


pass_context = click.make_pass_decorator(Context)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def echo(sentence: str) -> None:
    """Print one line; escape control characters."""
    click.echo(printable(sentence))


def echo_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def echo_json_list(values: Iterable[Any]) -> None:
    """Print an array item by item, as it is read."""
    click.echo("[", nl=False)
    before = "\n"
    for value in values:
        click.echo(before + json.dumps(value), nl=False)
        before = ",\n"
    click.echo("\n]")


def exit_with(code: int, sentence: str = "") -> NoReturn:
    if sentence:
        click.echo(printable(sentence), err=True)
    raise click.exceptions.Exit(code)
