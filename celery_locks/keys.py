"""From a key and a call's arguments to a lock's name. Pure.

Arguments are bound to the function's parameters with defaults applied, so positional equals
keyword and an explicit default equals an omitted one. Values have one stable text each, the same
before and after they travelled in a message; a value without one is refused by its parameter's
name. A long name keeps its readable head and ends in a digest.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import string
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from celery_locks.errors import LockUsageError

NAME_LENGTH = 200
_HEAD = 150

# What ``%s`` makes of it is its stable text.
_is_plain = frozenset({str, int}).__contains__
_MOST_PLANS = 64
_FORMATTER = string.Formatter()


class Parameters:
    """What a function takes, read off it once: reading costs more than all else here."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = _signature_of(function)
        found = self._signature.parameters.values()
        self._names = tuple(p.name for p in found)
        self._are_positional = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in found)
        self._keywords = next((p.name for p in found if p.kind is p.VAR_KEYWORD), None)
        self._plans: dict[str, tuple[str, tuple[int, ...]]] = {}

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Parameter → value; what the signature does not know stays under ``*`` and ``**``."""
        if self._are_positional and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))  # as most calls are
        try:
            binding = self._signature.bind(*args, **kwargs)
        except TypeError:
            # The call itself will fail with Celery's or Python's own words.
            return {"*": list(args), **kwargs}
        binding.apply_defaults()
        return dict(binding.arguments)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What a template can name: the parameters, and each keyword that ``**kwargs`` took up."""
        arguments = self.bound(args, kwargs)
        more = arguments.get(self._keywords) if self._keywords else None
        return {**more, **arguments} if more else arguments

    def name(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The template with the values of one call."""
        if self._are_positional and not kwargs and len(args) == len(self._names):
            form, places = self._plans.get(template) or self._planned(template)
            values = tuple(map(args.__getitem__, places))
            if form and all(map(_is_plain, map(type, values))):
                return shortened(form % values)
        return from_template(template, self.named(args, kwargs))

    def _planned(self, template: str) -> tuple[str, tuple[int, ...]]:
        """For templates of whole parameters and nothing else: a form for ``%``, and which ones."""
        form, places = "", list[int]()
        for literal, place, spec, conversion in _parsed(template):
            form += literal.replace("%", "%%")
            if place is not None:
                if spec or conversion or place not in self._names:
                    form, places = "", []
                    break
                form += "%s"
                places.append(self._names.index(place))
        plan = form, tuple(places)
        if len(self._plans) < _MOST_PLANS:  # a call may bring a key of its own, each another one
            self._plans[template] = plan
        return plan

    def check(self, template: str, where: str) -> None:
        """Refuse a template that names no parameter of the function."""
        try:
            fields = [place for _, place, _, _ in _FORMATTER.parse(template) if place is not None]
        except ValueError as error:
            raise LockUsageError(
                f"{where}: the lock key {template!r} is no template: {error}"
            ) from None
        for place in fields:
            first = place.replace("[", ".").split(".")[0]
            if not first or first.isdigit():
                raise LockUsageError(
                    f"{where}: the lock key {template!r} has {{{place}}}; "
                    "write a parameter's name in it"
                )
            if first not in self._names and not self._keywords:
                raise LockUsageError(
                    f"{where}: the lock key {template!r} names {first!r}, "
                    f"but the parameters are {', '.join(self._names) or 'none'}"
                )


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters that a caller fills.

    Celery's autoretry wraps the bound ``run`` of a task in a plain function and copies its
    ``__signature__``, where ``self`` is still a parameter. The method below knows better.
    """
    layer: Any = function
    while not inspect.ismethod(layer) and hasattr(layer, "__wrapped__"):
        layer = layer.__wrapped__
    return inspect.signature(layer if inspect.ismethod(layer) else function)


def from_all(task: str, arguments: Mapping[str, Any]) -> str:
    """The name for ``@single_instance`` without a key: the task and all of its arguments."""
    said = ",".join(f"{name}={_stable(name, value)}" for name, value in arguments.items())
    return shortened(f"{task}({said})")


def from_template(template: str, arguments: Mapping[str, Any]) -> str:
    """Each ``{parameter}`` becomes its value's stable text; attributes, items, formats work too."""
    parts = []
    for literal, place, spec, conversion in _parsed(template):
        parts.append(literal)
        if place is not None:
            parts.append(_filled(template, place, spec or "", conversion, arguments))
    return shortened("".join(parts))


@lru_cache(maxsize=1024)
def _parsed(template: str) -> tuple[tuple[str, str | None, str | None, str | None], ...]:
    return tuple(_FORMATTER.parse(template))


def _filled(
    template: str, place: str, spec: str, conversion: str | None, arguments: Mapping[str, Any]
) -> str:
    try:
        if place in arguments:
            value = arguments[place]
        else:
            value, _ = _FORMATTER.get_field(place, (), arguments)
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise LockUsageError(
            f"the lock key {template!r} has no value for {{{place}}}: {error!r}"
        ) from None
    if spec or conversion:
        value = _FORMATTER.convert_field(value, conversion)
        return format(value, spec)
    return value if isinstance(value, str) else _stable(place, value).strip('"')


def from_callable(key: Callable[..., str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    name = key(*args, **kwargs)
    if not isinstance(name, str) or not name:
        raise LockUsageError(
            f"the lock key function {key!r} returned {name!r}; it must return a text"
        )
    return shortened(name)


def shortened(name: str) -> str:
    if 4 * len(name) <= NAME_LENGTH:
        return name
    data = name.encode()
    if len(data) <= NAME_LENGTH:
        return name
    head = data[:_HEAD].decode(errors="ignore")
    return f"{head}…#{hashlib.sha256(data).hexdigest()[:32]}"


def _stable(parameter: str, value: Any) -> str:
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise LockUsageError(
            f"argument {parameter!r} has no stable text to lock by ({error}); "
            "name the arguments that matter in a key, or use a function as key"
        ) from None


def _plain(value: Any) -> Any:
    """JSON for anything that a message may carry, the same on both ends of it."""
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Set):
        return sorted(
            (_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True)
        )
    return _text(value)


def _text(value: Any) -> Any:
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    raise TypeError(f"{type(value).__name__} is none of the types that have one")
