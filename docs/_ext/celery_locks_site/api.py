"""Classes and functions, from their signatures and docstrings: for the site, and as Markdown.

A marker names a module, which means all of its `__all__`, or some names of it. A class shows its
public methods and properties, or those in brackets:

    <!-- generated: api celery_locks.recipes -->
    <!-- generated: api celery_locks: Lease[check,release] Holder -->

The signatures are those of `inspect`: with the real options where the code has `**options` (see
`celery_locks/help_signatures.py`), which the overloads that autodoc prefers do not show.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from textwrap import indent
from typing import Any, NamedTuple

from sphinx.util.inspect import stringify_signature

from celery_locks_site.markdown import code, from_docstring

_OPTION = re.compile(r"(?:^|(?<=[.;] ))(?=``\w+``:\s)", re.MULTILINE)
_CHOSEN = re.compile(r"(?P<name>\w+)(?:\[(?P<members>[\w,]+)\])?")


class Target(NamedTuple):
    """A public name, and which members of the class are shown; None: all that are public."""

    module: str
    name: str
    members: list[str] | None

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        return getattr(import_module(self.module), self.name)


class Member(NamedTuple):
    """A method, property or value of a class."""

    name: str
    kind: str
    value: Any
    options: tuple[str, ...] = ()


def targets(argument: str) -> Iterator[Target]:
    module, _, names = argument.partition(":")
    for name in names.split() or _ordered(import_module(module)):
        match = _CHOSEN.fullmatch(name)
        if match is None:
            raise ValueError(f"write NAME or NAME[member,member], not {name!r}")
        yield Target(
            module, match["name"], match["members"].split(",") if match["members"] else None
        )


def _ordered(module: Any) -> list[str]:
    """Return the public names: functions first, then classes, then values."""
    values = {name: getattr(module, name) for name in module.__all__}
    ranks = {name: (not callable(it), isinstance(it, type)) for name, it in values.items()}
    return sorted(values, key=lambda name: (ranks[name], name))


# Signatures


def signature_of(value: Any, *, is_method: bool = False) -> str:
    """Return the parameters and what is returned; empty for a value that is not called."""
    if not callable(value) or (isinstance(value, type) and _is_made_by_us(value)):
        return ""
    signature = inspect.signature(value)
    parameters = list(_expanded(value, signature))
    if is_method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    returns = "" if isinstance(value, type) else _returned(value, signature)
    shown = signature.replace(parameters=parameters, return_annotation=signature.empty)
    text = stringify_signature(shown, unqualified_typehints=True).replace("~", "")
    text = re.sub(r" ?= ?(Ellipsis|<factory>)", " = ...", text)
    return text + (f" -> {returns}" if returns else "")


def _expanded(value: Any, signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    """Yield the parameters, and in place of `**options: Unpack[Options]` those of `Options`."""
    for parameter in signature.parameters.values():
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if unpacked is None:
            yield parameter
            continue
        names = vars(import_module(inspect.unwrap(value).__module__))
        for name, hint in names[unpacked[1]].__annotations__.items():
            shown = getattr(hint, "__forward_arg__", hint)
            yield parameter.replace(
                name=name, kind=parameter.KEYWORD_ONLY, default=..., annotation=shown
            )


def _is_made_by_us(cls: type) -> bool:
    """Whether users get its objects and never make one, so that its parameters do not matter."""
    is_named = cls.__name__ in ("Lease", "AsyncLease", "LockedTask", "Leader")
    return is_named or issubclass(cls, Enum | BaseException)


def _returned(value: Any, signature: inspect.Signature) -> str:
    """Return the type; that of a context manager, not of the generator that it is made from."""
    overloads = typing.get_overloads(value)
    if overloads and hasattr(value, "__wrapped__"):
        signature = inspect.signature(overloads[0])
    text = inspect.formatannotation(signature.return_annotation).strip("'")
    if signature.return_annotation is signature.empty:
        return ""
    if hasattr(value, "__wrapped__"):
        text = re.sub(r"^(Async)?(Iterator|Generator)\b", r"Abstract\1ContextManager", text)
    return text


# Members


def members_of(target: Target) -> Iterator[Member]:
    cls = target.value
    for name in target.members or _public_names(cls):
        static = inspect.getattr_static(cls, name)
        value = getattr(cls, name)
        if isinstance(static, classmethod):
            yield Member(name, "method", value, (":classmethod:",))
        elif isinstance(static, property):
            yield Member(name, "property", value)
        elif isinstance(value, Enum):
            yield Member(name, "attribute", value, (f":value: {value.value!r}",))
        elif inspect.isroutine(value):
            is_async = inspect.iscoroutinefunction(value)
            yield Member(name, "method", value, (":async:",) if is_async else ())


def _public_names(cls: type) -> list[str]:
    """Return what our own classes define, in the order of the source; an error shows its own."""
    bases = [cls] if issubclass(cls, BaseException) else cls.__mro__
    ours = [base for base in bases if base.__module__.startswith("celery_locks")]
    names = dict.fromkeys(name for base in reversed(ours) for name in vars(base))
    return [name for name in names if not name.startswith("_")]


# For the site


def as_directives(argument: str) -> str:
    """Return a block of MyST with the directives of Sphinx for Python objects."""
    return "````{eval-rst}\n" + "\n".join(map(_directive, targets(argument))) + "````\n"


def _directive(target: Target) -> str:
    value = target.value
    if isinstance(value, type):
        kind = "exception" if issubclass(value, BaseException) else "class"
        body = [_documentation(value), *map(_member_directive, members_of(target))]
    elif callable(value):
        kind, body = "function", [_documentation(value)]
    else:
        return f".. py:data:: {target.path}\n   :value: {_shown(value)}\n"
    return f".. py:{kind}:: {target.path}{signature_of(value)}\n\n" + indent("\n".join(body), "   ")


def _shown(value: Any) -> str:
    """Return the value as text; of a table of functions only the names."""
    is_table = isinstance(value, dict) and any(map(callable, value.values()))
    return repr(tuple(value) if is_table else value)


def _member_directive(member: Member) -> str:
    head = f".. py:{member.kind}:: {member.name}{_call(member)}"
    lines = [head, *(f"   {option}" for option in member.options)]
    return "\n".join(lines) + "\n\n" + indent(_documentation(member.value), "   ")


def _call(member: Member) -> str:
    return signature_of(member.value, is_method=True) if member.kind == "method" else ""


def _documentation(value: Any) -> str:
    doc = "" if isinstance(value, Enum) else inspect.getdoc(value) or ""
    return tidy(doc) + "\n"


def tidy(doc: str) -> str:
    """Prepare a docstring for Sphinx: indented code becomes a code block, options a list."""
    paragraphs = doc.rstrip().split("\n\n")
    tidied: list[str] = []
    for before, paragraph in zip(["", *paragraphs], paragraphs, strict=False):
        is_code = paragraph.startswith("    ")
        if is_code and not before.startswith("    ") and not before.rstrip().endswith("::"):
            tidied.append(".. code-block:: python")
        tidied.append(paragraph if is_code else _as_list(paragraph))
    return "\n\n".join(tidied) + "\n"


def _as_list(paragraph: str) -> str:
    """Turn "``ttl``: … ``limit``: …" into a list with one item for each option."""
    if not _OPTION.match(paragraph):
        return paragraph
    items = [" ".join(item.split()) for item in _OPTION.split(paragraph) if item.strip()]
    return "\n".join(f"- {item}" for item in items)


# As Markdown


def as_markdown(argument: str) -> str:
    return "\n\n".join(part for target in targets(argument) for part in _described(target)) + "\n"


def _described(target: Target) -> Iterator[str]:
    value = target.value
    yield f"### {code(target.path + signature_of(value))}"
    if not callable(value):
        yield f"Value: {code(_shown(value))}"
        return
    yield from_docstring(inspect.getdoc(value))
    if isinstance(value, type):
        for member in members_of(target):
            yield f"#### {code(f'{target.name}.{member.name}{_call(member)}')}"
            if not isinstance(member.value, Enum):
                yield from_docstring(inspect.getdoc(member.value))
