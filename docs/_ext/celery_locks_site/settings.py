"""The settings of an app: names and defaults from `Settings`, meanings from its docstring."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields

from celery_locks import options
from celery_locks.settings import PREFIX, Settings
from celery_locks_site.markdown import code, described, table
from celery_locks_site.options import default_of, written


def own_names() -> list[str]:
    return [it.name for it in fields(Settings) if it.name != "task"]


def names() -> list[str]:
    """Return all settings as they are written in `app.conf`."""
    return [PREFIX + name for name in (*own_names(), *options.WORDS)]


def page() -> str:
    meanings = described(Settings.__doc__, own_names())
    own = [
        [code(PREFIX + it.name), _default(it), meanings[it.name]]
        for it in fields(Settings)
        if it.name in own_names()
    ]
    tasks = [
        [code(PREFIX + option), default_of(option), f"[{code(option)}](options.md#{option})"]
        for option in options.WORDS
    ]
    return (
        table(["setting", "default", "meaning"], own)
        + "\n## Default options of all tasks\n\n"
        + "The options of a task can be set for all tasks of an app. A task, and a call, override "
        + "them.\n\n"
        + table(["setting", "default", "option"], tasks)
    )


def _default(setting: Field[object]) -> str:
    if setting.default is not MISSING:
        return "–" if setting.default is None else written(setting.default)
    return "the broker" if setting.name == "url" else code("{}")
