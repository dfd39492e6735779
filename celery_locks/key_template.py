"""A key template such as ``"invoice:{tenant}:{number}"``: parsed once, filled for each call. Pure.

Different values give different names. A text is written unchanged unless it is ambiguous: a text
that contains the character that ends it in the template (here the colon after the tenant), or that
looks like a number, is quoted as JSON. A format (``{number:05d}``) or a conversion (``{name!r}``)
turns a value into text; values that it turns into the same text share a name.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from celery_locks.argument_text import (
    OPENINGS,
    bare_text,
    formatted,
    plain_value,
    shortened,
    written,
)
from celery_locks.errors import LockUsageError

TASK = "task"
_FORMATTER = string.Formatter()
_MAX_WIDTH = 512
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^\]]+)\]")
_FIELD_NAME = re.compile(rf"([^.\[\]]*)((?:{_STEP.pattern})*)")


class Field(NamedTuple):
    """One ``{…}`` of a template and the text after it."""

    text: str
    parameter: str
    path: tuple[tuple[str, bool], ...]  # (name, whether it is an attribute), from the parameter on
    spec: str
    conversion: str | None
    after: str
    stop: str | None = None  # the character that ends its value; see ``written``


class Template:
    """The text before the first field, and the fields; ``{task}`` is already replaced."""

    def __init__(self, text: str, task: str | None = None) -> None:
        """Parse; ``{task}`` stands for ``task``, or for a parameter if that is None."""
        self.text = text
        self.before = ""
        self.fields: list[Field] = []
        for literal, field_name, spec, conversion in self._parsed():
            self._add_literal(literal)
            if field_name == TASK and task is not None and not (spec or conversion):
                self._add_literal(task)
            elif field_name is not None:
                self.fields.append(self._field(field_name, spec or "", conversion))
        for index, field in enumerate(self.fields):
            is_last = index == len(self.fields) - 1
            self.fields[index] = field._replace(stop=None if is_last else _stop(field.after))

    def _parsed(self) -> list[tuple[str, str | None, str | None, str | None]]:
        try:
            return list(_FORMATTER.parse(self.text))
        except ValueError as error:
            raise self._refused(f"is no template: {error}") from None

    def _add_literal(self, literal: str) -> None:
        if self.fields:
            self.fields[-1] = self.fields[-1]._replace(after=self.fields[-1].after + literal)
        else:
            self.before += literal

    def _field(self, field_name: str, spec: str, conversion: str | None) -> Field:
        found = _FIELD_NAME.fullmatch(field_name)
        if found is None or (conversion and conversion not in "rsa"):
            raise self._refused(f"is no template: {{{field_name}}} cannot be read")
        steps = _STEP.findall(found[2])
        path = tuple((attribute or item, bool(attribute)) for attribute, item in steps)
        if any(name.startswith("__") for name, is_attribute in path if is_attribute):
            raise self._refused(f"has {{{field_name}}}; names that begin with '__' are not read")
        widths = re.findall(r"\d+", spec)
        if "{" in spec or any(len(width) > 3 or int(width) > _MAX_WIDTH for width in widths):
            raise self._refused(
                f"has the format {spec!r}; a width must be a number up to {_MAX_WIDTH}"
            )
        return Field(field_name, found[1], path, spec, conversion, "")

    def check(
        self, parameters: Collection[str], *, takes_any_keyword: bool, knows_task: bool
    ) -> None:
        """Refuse a template that no call can fill, or that has only values and no text."""
        for field in self.fields:
            if not field.parameter or field.parameter.isdigit():
                raise self._refused(f"has {{{field.text}}}; write a parameter's name in it")
            if field.parameter not in parameters and not takes_any_keyword:
                names = ", ".join(parameters) or "none"
                raise self._refused(f"names {field.parameter!r}, but the parameters are {names}")
        literals = self.before + "".join(field.after for field in self.fields)
        if self.fields and not any(map(str.isalnum, literals)):
            example = ("{task}:" if knows_task else "invoice:") + self.text
            raise self._refused(
                "has no text besides its values: whoever else uses such a key would share the "
                f"locks; write for example {example!r}"
            )

    def fill(self, arguments: Mapping[str, Any]) -> str:
        """Return the lock's name for these arguments."""
        parts = [self.before]
        for field in self.fields:
            parts += (self._filled(field, arguments), field.after)
        return shortened("".join(parts))

    def _filled(self, field: Field, arguments: Mapping[str, Any]) -> str:
        try:
            value = _reached(arguments[field.parameter], field.path)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise self._refused(f"has no value for {{{field.text}}}: {error!r}") from None
        if not field.spec and not field.conversion:
            return written(plain_value(field.text, value), field.stop)
        try:
            text = format(_FORMATTER.convert_field(value, field.conversion), field.spec)
        except (TypeError, ValueError) as error:
            raise self._refused(f"cannot format {{{field.text}}}: {error}") from None
        return formatted(text, field.stop)

    def plan(self, parameters: tuple[str, ...]) -> Plan | None:
        """Return a fast path for whole parameters with plain values; None if there is none."""
        form, steps = self.before.replace("%", "%%"), []
        for field in self.fields:
            is_whole = not (field.path or field.spec or field.conversion)
            if not is_whole or field.parameter not in parameters or field.stop == "":
                return None
            if field.stop is not None and field.stop in "-0123456789":
                return None
            form += "%s" + field.after.replace("%", "%%")
            steps.append((parameters.index(field.parameter), bare_text(field.stop).fullmatch))
        return Plan(form, tuple(steps))

    def _refused(self, why: str) -> LockUsageError:
        return LockUsageError(f"the lock key {self.text!r} {why}")


class Plan(NamedTuple):
    """A format for ``%``; for each field the argument's index and a test for texts."""

    form: str
    steps: tuple[tuple[int, Any], ...]


@lru_cache(maxsize=1024)
def parsed(text: str, task: str | None = None) -> Template:
    """Return the parsed template; cached, because each call may have a key of its own."""
    return Template(text, task)


def _stop(after: str) -> str:
    """Return the character that ends a value; "" if the next value may begin with it."""
    return after[:1] if after[:1] not in (*OPENINGS,) else ""


def _reached(value: Any, path: tuple[tuple[str, bool], ...]) -> Any:
    """Follow a path; an attribute of a mapping is its item, because messages carry mappings."""
    for name, is_attribute in path:
        if is_attribute and not isinstance(value, Mapping):
            value = getattr(value, name)
        elif isinstance(value, Mapping) and name in value:
            value = value[name]
        else:
            value = value[int(name) if name.isdigit() else name]
    return value
