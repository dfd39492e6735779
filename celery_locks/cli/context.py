"""What a command works with: the locks, and the app if there is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from celery_locks.core.locks import Locks
from celery_locks.core.requests import Layout
from celery_locks.text import printable


@dataclass(frozen=True, slots=True)
class Context:
    locks: Locks
    app: Any = None

    @classmethod
    def of_app(cls, app: Any) -> Context:
        return cls(Locks.from_app(app), app)

    @classmethod
    def of_url(cls, url: str, prefix: str | None, shards: int | None) -> Context:
        layout: Layout = {}
        if prefix is not None:
            layout["prefix"] = prefix
        if shards is not None:
            layout["shards"] = shards
        return cls(Locks.from_url(url, **layout))

    def close(self) -> None:
        self.locks.close()


pass_context = click.make_pass_decorator(Context)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def echo(sentence: str) -> None:
    """One line, whatever is in it."""
    click.echo(printable(sentence))


def echo_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def echo_json_list(values: Iterable[Any]) -> None:
    """An array, written as it comes."""
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
