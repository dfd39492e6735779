"""Which fields the `detail` of an event has: found in the source, in the calls of `emit`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import celery_locks

_EMIT = ("emit", "_emit")


def details_by_kind() -> dict[str, set[str]]:
    """Return the names of the fields, by the kind of event."""
    package = Path(celery_locks.__file__).parent
    return find_details(ast.parse(path.read_text()) for path in package.rglob("*.py"))


def find_details(modules: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Find them in these modules. A method that passes its `kind` on adds its own fields."""
    calls = [found for module in modules for found in _emits(module)]
    added = {name for kinds, names, _ in calls if not kinds for name in names}
    details: dict[str, set[str]] = defaultdict(set)
    for kinds, names, is_direct in calls:
        for kind in kinds:
            details[kind] |= names if is_direct else names | added
    return details


def _emits(module: ast.Module) -> Iterator[tuple[list[str], set[str], bool]]:
    """Yield the kinds and fields of each call, and whether it calls `events.emit` itself."""
    of_module = _mappings(module)
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        mappings = of_module | _mappings(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _name(node.func) in _EMIT and node.args:
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                names: set[str] = set()
                for keyword in node.keywords:
                    names |= {keyword.arg} if keyword.arg else _keys(keyword.value, mappings)
                yield _constants(node.args[0]), names, _name(owner) == "events"


def _mappings(scope: ast.AST) -> dict[str, ast.expr]:
    """Return the variables, and the functions, that may be a dictionary."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[_name(target)] = node.value
        elif isinstance(node, ast.FunctionDef):
            returned = [it.value for it in node.body if isinstance(it, ast.Return) and it.value]
            if returned:
                found[node.name] = returned[-1]
    return found


def _keys(value: ast.AST | None, mappings: dict[str, ast.expr]) -> set[str]:
    match value:
        case ast.Dict(keys, values):
            own = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
            inner = [_keys(it, mappings) for key, it in zip(keys, values, strict=True) if not key]
            return own.union(*inner)
        case ast.IfExp():
            return _keys(value.body, mappings) | _keys(value.orelse, mappings)
        case ast.Call():
            return _keys(mappings.get(_name(value.func)), mappings)
        case ast.Name():
            return _keys(mappings.get(value.id), mappings)
    return set()


def _constants(value: ast.expr) -> list[str]:
    """Return the kinds that an expression may be: `"lost"`, or `"a" if … else "b"`."""
    if isinstance(value, ast.IfExp):
        return _constants(value.body) + _constants(value.orelse)
    return [str(value.value)] if isinstance(value, ast.Constant) else []


def _name(node: ast.AST | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
