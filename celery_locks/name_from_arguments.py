"""Make a lock's name, and its limit, from the options and the arguments of a call. Pure.

Arguments are bound to the function's parameters with defaults applied, so positional equals
keyword and an explicit default equals an omitted one. ``argument_text.py`` turns values into text,
``key_template.py`` fills templates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from celery_locks.argument_text import NAME_LENGTH, shortened, stable_text
from celery_locks.errors import LockUsageError
from celery_locks.key_template import TASK, Plan, Template, parsed
from celery_locks.validation import MAX_LIMIT, check_limit

_MOST_PLANS = 64


class Parameters:
    """The parameters of a function, read once: that costs more than everything else here."""

    def __init__(self, function: Callable[..., Any], task: str | None = None) -> None:
        """Read the parameters; ``{task}`` stands for ``task`` unless a parameter has that name."""
        self._signature = _signature_of(function)
        found = self._signature.parameters.values()
        self._names = tuple(p.name for p in found)
        self._are_positional = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in found)
        self._takes_any = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found)
        self._keywords = next((p.name for p in found if p.kind is p.VAR_KEYWORD), None)
        self._task = None if TASK in self._names else task
        self._plans: dict[str, Plan | None] = {}

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameter → value; arguments that do not fit are under ``*`` and keywords."""
        if self._are_positional and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))  # the usual case
        try:
            binding = self._signature.bind(*args, **kwargs)
        except TypeError:
            # The call itself will fail, with Celery's or Python's own error.
            return {"*": list(args), **kwargs}
        binding.apply_defaults()
        return dict(binding.arguments)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameter → value; raises TypeError if the arguments do not fit."""
        binding = self._signature.bind(*args, **kwargs)
        binding.apply_defaults()
        return dict(binding.arguments)

    def call(self, arguments: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call; the reverse of ``arguments``."""
        found = self._signature.parameters.values()
        needed = {p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        needed -= {p.name for p in found if p.default is not p.empty}
        if not isinstance(arguments, Mapping) or not needed <= arguments.keys() <= {*self._names}:
            raise LockUsageError(
                f"{arguments!r} must be the arguments by name: {', '.join(self._names)}"
            )
        in_order = {name: arguments[name] for name in self._names if name in arguments}
        binding = inspect.BoundArguments(self._signature, in_order)
        binding.apply_defaults()
        return binding.args, binding.kwargs

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a template can name: the parameters, and each keyword in ``**kwargs``."""
        arguments = self.bound(args, kwargs)
        more = arguments.get(self._keywords) if self._keywords else None
        return {**more, **arguments} if more else arguments

    def name(self, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the template with the values of one call."""
        if self._are_positional and not kwargs and len(args) == len(self._names):
            plan = self._plans[template] if template in self._plans else self._planned(template)
            name = _by_plan(plan, args) if plan else None
            if name is not None:
                return name
        return self.template(template).fill(self.named(args, kwargs))

    def template(self, text: str) -> Template:
        return parsed(text, self._task)

    def without_task(self, text: str) -> str:
        """Return the template with the task's name for ``{task}``; equal ones share their locks."""
        template = self.template(text)
        return template.before + "".join(f"{{{it.text}}}{it.after}" for it in template.fields)

    def _planned(self, template: str) -> Plan | None:
        plan = self.template(template).plan(self._names)
        if len(self._plans) < _MOST_PLANS:  # each call may have a key of its own
            self._plans[template] = plan
        return plan

    def check(self, template: str, where: str) -> None:
        """Refuse a template that names an unknown parameter, or that has no text of its own."""
        try:
            self.template(template).check(
                self._names,
                takes_any_keyword=bool(self._keywords),
                knows_task=self._task is not None,
            )
        except LockUsageError as error:
            raise LockUsageError(f"{where}: {error}") from None

    def check_function(self, function: Callable[..., Any], option: str, where: str) -> None:
        """Refuse a function for an option that cannot take the arguments of any call."""
        taken = None if self._takes_any else _own_signature(function)
        if taken and not any(_binds(taken, *call) for call in self._calls()):
            raise LockUsageError(
                f"{where}: the {option} function {_shown(function, taken)} cannot take the task's "
                f"arguments {self._signature}; it is called with what the task is called with"
            )

    def _calls(self) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Yield the shortest and the longest call, by position and by keyword."""
        found = list(self._signature.parameters.values())
        for chosen in ([p for p in found if p.default is p.empty], found):
            by_position = [p.name for p in chosen if p.kind is not p.KEYWORD_ONLY]
            yield by_position, {p.name: "" for p in chosen if p.kind is p.KEYWORD_ONLY}
            yield [], {p.name: "" for p in chosen}


def _by_plan(plan: Plan, args: Sequence[Any]) -> str | None:
    """Return the name by the fast path; None if a value is not a plain text or number."""
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
    """Return the signature that a caller sees.

    Celery's autoretry wraps the bound ``run`` of a task in a plain function and copies its
    ``__signature__``, where ``self`` is still a parameter. The wrapped method has the right one.
    """
    layer: Any = function
    while not inspect.ismethod(layer) and hasattr(layer, "__wrapped__"):
        layer = layer.__wrapped__
    return inspect.signature(layer if inspect.ismethod(layer) else function)


def from_all(task: str, arguments: Mapping[str, Any]) -> str:
    """Return the name for ``@single_instance`` without a key: the task and all its arguments."""
    pairs = ",".join(f"{name}={stable_text(name, value)}" for name, value in arguments.items())
    return shortened(f"{task}({pairs})")


def from_template(template: str, arguments: Mapping[str, Any]) -> str:
    """Return the template with values for ``{a}``, ``{a.b}``, ``{a[b]}`` and ``{a:02d}``."""
    return parsed(template).fill(arguments)


def from_callable(
    key: Callable[..., str | None], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the name that the function returns; None if this call has no lock."""
    name = _called(key, "key", args, kwargs)
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise LockUsageError(
            f"the key function {_named(key)} returned {name!r}; it must return a text, or None for "
            "a call without a lock"
        )
    return shortened(name)


def limit_from_callable(
    limit: Callable[..., int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int:
    """Return the limit for one call."""
    number: int = _called(limit, "limit", args, kwargs)
    try:
        check_limit(number)
    except LockUsageError:
        raise LockUsageError(
            f"the limit function {_named(limit)} returned {number!r}; it must return a whole "
            f"number from 1 to {MAX_LIMIT}"
        ) from None
    return number


def _called(
    function: Callable[..., Any], option: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        taken = _own_signature(function)
        if taken is None or _binds(taken, args, kwargs):
            raise  # raised by the function itself
        raise LockUsageError(
            f"the {option} function {_shown(function, taken)} does not take the arguments of this "
            f"call: {error}"
        ) from None


def _own_signature(key: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(key)
    except (TypeError, ValueError):
        return None  # some C functions have none


def _binds(taken: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        taken.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _named(key: Callable[..., Any]) -> str:
    return getattr(key, "__qualname__", None) or repr(key)


def _shown(key: Callable[..., Any], taken: inspect.Signature) -> str:
    return f"{_named(key)}{taken}"


__all__ = [
    "NAME_LENGTH",
    "Parameters",
    "from_all",
    "from_callable",
    "from_template",
    "limit_from_callable",
    "shortened",
]
