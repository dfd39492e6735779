"""What a command works with: the locks, and the app if there is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from celery_locks.cli.render import plain
from celery_locks.locks import Layout, Locks


@dataclass(frozen=True, slots=True)
class Desk:
    locks: Locks
    app: Any = None

    @classmethod
    def of_app(cls, app: Any) -> Desk:
        return cls(Locks.from_app(app), app)

    @classmethod
    def of_url(cls, url: str, prefix: str | None, shards: int | None) -> Desk:
        layout: Layout = {}
        if prefix is not None:
            layout["prefix"] = prefix
        if shards is not None:
            layout["shards"] = shards
        return cls(Locks.from_url(url, **layout))

    def close(self) -> None:
        self.locks.close()


pass_desk = click.make_pass_decorator(Desk)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


def say(sentence: str) -> None:
    """One line, whatever is in it."""
    click.echo(plain(sentence))


def say_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def say_json_list(values: Iterable[Any]) -> None:
    """An array, written as it comes."""
    click.echo("[", nl=False)
    before = "\n"
    for value in values:
        click.echo(before + json.dumps(value), nl=False)
        before = ",\n"
    click.echo("\n]")


def end(code: int, sentence: str = "") -> NoReturn:
    if sentence:
        click.echo(plain(sentence), err=True)
    raise click.exceptions.Exit(code)
