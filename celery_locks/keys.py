"""From a key and a call's arguments to a lock's name. Pure.

Arguments are bound to the function's parameters with defaults applied, so positional equals
keyword and an explicit default equals an omitted one. How a value becomes text is in
``key_text.py``, how a template is filled in ``key_template.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_locks.errors import LockUsageError
from celery_locks.key_template import TASK, Plan, Template, parsed
from celery_locks.key_text import NAME_LENGTH, shortened, stable_text

_MOST_PLANS = 64


class Parameters:
    """What a function takes, read off it once: reading costs more than all else here."""

    def __init__(self, function: Callable[..., Any], task: str | None = None) -> None:
        """``task`` is the name that ``{task}`` stands for, unless a parameter has that name."""
        self._signature = _signature_of(function)
        found = self._signature.parameters.values()
        self._names = tuple(p.name for p in found)
        self._are_positional = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in found)
        self._keywords = next((p.name for p in found if p.kind is p.VAR_KEYWORD), None)
        self._task = None if TASK in self._names else task
        self._plans: dict[str, Plan | None] = {}

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
            plan = self._plans[template] if template in self._plans else self._planned(template)
            name = _by_plan(plan, args) if plan else None
            if name is not None:
                return name
        return self.template(template).fill(self.named(args, kwargs))

    def template(self, text: str) -> Template:
        return parsed(text, self._task)

    def _planned(self, template: str) -> Plan | None:
        plan = self.template(template).plan(self._names)
        if len(self._plans) < _MOST_PLANS:  # a call may bring a key of its own, each another one
            self._plans[template] = plan
        return plan

    def check(self, template: str, where: str) -> None:
        """Refuse a template that names no parameter of the function, or that has no own text."""
        try:
            self.template(template).check(
                self._names,
                takes_any_keyword=bool(self._keywords),
                knows_task=self._task is not None,
            )
        except LockUsageError as error:
            raise LockUsageError(f"{where}: {error}") from None


def _by_plan(plan: Plan, args: Sequence[Any]) -> str | None:
    """None where a value is not as plain as the plan needs it."""
    values = []
    for index, is_bare in plan.steps:
        value = args[index]
        kind = type(value)
        if kind is not int and not (kind is str and is_bare(value)):
            return None
        values.append(value)
    try:
        return shortened(plan.form % tuple(values))
    except ValueError:
        return None  # a number of more digits than Python writes


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
    said = ",".join(f"{name}={stable_text(name, value)}" for name, value in arguments.items())
    return shortened(f"{task}({said})")


def from_template(template: str, arguments: Mapping[str, Any]) -> str:
    """Each ``{parameter}`` becomes its value's text; attributes, items, formats work too."""
    return parsed(template).fill(arguments)


def from_callable(key: Callable[..., str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    name = key(*args, **kwargs)
    if not isinstance(name, str) or not name:
        raise LockUsageError(
            f"the lock key function {key!r} returned {name!r}; it must return a text"
        )
    return shortened(name)


__all__ = ["NAME_LENGTH", "Parameters", "from_all", "from_callable", "from_template", "shortened"]
