"""The options of a lock: from `options.py`, with the meanings from the decorator's docstring."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from celery_locks import options, single_instance
from celery_locks.errors import LockUsageError
from celery_locks.options import LockOptions
from celery_locks.settings import PREFIX
from celery_locks.validation import MAX_LIMIT, MIN_TTL, Wait
from celery_locks_site.markdown import code, codes, described, table

_TYPES = get_type_hints(LockOptions)


def names() -> tuple[str, ...]:
    return options.WORDS


def meanings() -> dict[str, str]:
    return described(single_instance.__doc__, names())


def values_of(option: str) -> str:
    """Return what may be written, as Markdown."""
    hint = _TYPES[option]
    if option == "on_conflict":
        run, publish = get_args(options.OnConflict), get_args(options.OnPublish)
        both, then = code('{"publish": …, "run": …}'), code('{"run": "wait", "then": …}')
        after = f"{then} with {_quoted(get_args(options.Then))}"
        return f"at run {_quoted(run)}; at publish {_quoted(publish)}; or {both}; or {after}"
    if option == "fair_by":
        return 'a template such as `"{tenant}"`, or a function'
    if option == "wake_queue":
        return "the name of a queue"
    if option in ("max_queued", "max_parked"):
        return f"a whole number from 1 to {MAX_LIMIT:,}"
    if option == "key":
        return 'a template such as `"invoice:{id}"`, or a function'
    if option == "arguments":
        return '`"last"`, `"first"` or a function `merge(earlier, later)`'
    if hint is bool:
        return codes(["True", "False"])
    if option == "limit":
        return f"a whole number from 1 to {MAX_LIMIT:,}, or a function"
    if hint is float or hint == Wait:
        least = "0" if _accepts(option, 0) else f"{MIN_TTL:g}"
        forever = ', or `"forever"`' if hint == Wait else ""
        return f"seconds, from {least}{forever}"
    return _quoted(get_args(hint))


def _accepts(option: str, value: object) -> bool:
    try:
        options.checked({option: value}, "")
    except LockUsageError:
        return False
    return True


def _quoted(values: tuple[Any, ...]) -> str:
    return codes(f'"{value}"' for value in values)


def default_of(option: str) -> str:
    if option == "key":
        return "task and arguments (`single_instance`), task id (`LockedTask`)"
    if option == "on_conflict":
        at_publish = next(it.default for it in fields(LockOptions) if it.name == "on_publish")
        return f"{written(options.DEFAULTS[option])} at run, {written(at_publish)} at publish"
    return written(options.DEFAULTS[option])


def written(value: object) -> str:
    if isinstance(value, str):
        return code(f'"{value}"')
    return code(f"{value:g}" if isinstance(value, float) else value)


def page() -> str:
    rows = [[f"[{code(it)}](#{it})", default_of(it), values_of(it)] for it in names()]
    return table(["option", "default", "values"], rows) + "\n" + "\n".join(map(_section, names()))


def _section(option: str) -> str:
    places = [
        f"@single_instance({option}=…)",
        f"@app.task(lock_{option}=…)",
        f'apply_async(lock={{"{option}": …}})',
        f"app.conf.{PREFIX}{option}",
    ]
    lines = [
        f"## {code(option)}\n",
        f"{meanings()[option]}\n",
        f"- default: {default_of(option)}",
        f"- values: {values_of(option)}",
        f"- written as: {codes(places)}",
    ]
    return "\n".join(lines) + "\n"
