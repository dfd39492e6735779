"""Signatures for ``help()`` and editors, where Python itself sees only ``**options``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def shows_options(defaults: Mapping[str, Any], annotations: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator that shows these keyword options in place of the function's ``**``."""
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=_shown(annotations.get(name, inspect.Parameter.empty)),
        )
        for name, default in defaults.items()
    ]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*fixed, *options]
        )
        return function

    return decorate


def _shown(annotation: Any) -> Any:
    """Return the annotation as written; a ``TypedDict`` keeps it inside a ``ForwardRef``."""
    return getattr(annotation, "__forward_arg__", annotation)
