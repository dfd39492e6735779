"""Makes the mutants of one Lua file: text in, texts with one mistake each out. No I/O."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_STRING_OR_COMMENT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--.*$")
_FLIPPED = {"==": "~=", "~=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMPARISON = re.compile(r" (==|~=|<=|>=|<|>) ")
_SIGN = re.compile(r"(?<=[\w)\]]) ([+-]) ")
_NUMBER = re.compile(r"(?<![\w.%])(\d+)(?![\w.])")
_LOGIC = re.compile(r" (and|or) ")
_CONDITION = re.compile(r"\b(if|elseif|while) (.+?) (then|do)\b")
_NOT_REMOVED = re.compile(r"\s*(local|end|else|elseif|for|while|function|return|--|\}|\)|$)")


@dataclass(frozen=True)
class Mutant:
    """A file of ``scripts/`` with one mistake."""

    id: str
    path: str
    line: int
    change: str
    text: str


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return the mutants of a file; the id of each stays the same when other lines change."""
    lines = text.split("\n")
    made: dict[str, Mutant] = {}
    for number, operator, before, after in _changes(lines):
        key = f"{operator} {before} {after}"
        mutated = _with_change(lines, number, before, after)
        if mutated == text:
            continue
        name = f"{path.removesuffix('.lua')}:{operator}:{zlib.crc32(key.encode()):08x}"
        while name in made:  # the same change of an equal line
            name += "'"
        change = f"{before.strip()}  ->  {after.strip() or 'removed'}"
        made[name] = Mutant(name, path, number + 1, change, mutated)
    return list(made.values())


Change = tuple[int, str, str, str]  # the line's number from 0, the operator, before, after


def _changes(lines: list[str]) -> Iterator[Change]:
    for number, line in enumerate(lines):
        masked = _masked(line)
        if not masked.strip() or line.startswith("--"):
            continue
        for operator, after in _changed_lines(line, masked):
            yield number, operator, line, after
        following = lines[number + 1] if number + 1 < len(lines) else ""
        are_neighbours = _is_statement(masked) and _is_statement(_masked(following))
        if are_neighbours and _indent(line) == _indent(following):
            yield number, "exchange", f"{line}\n{following}", f"{following}\n{line}"


def _changed_lines(line: str, masked: str) -> Iterator[tuple[str, str]]:
    for found in _COMPARISON.finditer(masked):
        yield "flip", _put(line, found, 1, _FLIPPED[found[1]])
        if found[1] in _BOUNDARY:
            yield "boundary", _put(line, found, 1, _BOUNDARY[found[1]])
    for found in _SIGN.finditer(masked):
        yield "sign", _put(line, found, 1, "-" if found[1] == "+" else "+")
    for found in _NUMBER.finditer(masked):
        yield "number", _put(line, found, 1, str(int(found[1]) + 1))
    for found in _LOGIC.finditer(masked):
        yield "logic", _put(line, found, 1, "or" if found[1] == "and" else "and")
    for found in _CONDITION.finditer(masked):
        condition = line[found.start(2) : found.end(2)]
        yield "negate", _put(line, found, 2, f"not ({condition})")
    if _is_statement(masked):
        yield "remove", ""


def _masked(line: str) -> str:
    """Return the line with its strings and its comment blanked, at the same positions."""

    def blank(found: re.Match[str]) -> str:
        return ("_" if found[0][0] != "-" else " ") * len(found[0])

    return _STRING_OR_COMMENT.sub(blank, line).rstrip()


def _is_statement(masked: str) -> bool:
    """Return True for a whole statement on one line that can be left out."""
    if not masked.strip() or _NOT_REMOVED.match(masked):
        return False
    is_balanced = all(masked.count(a) == masked.count(b) for a, b in ("()", "{}", "[]"))
    is_block = bool(re.match(r"\s*if\b", masked)) and not masked.endswith("end")
    return is_balanced and not is_block and not masked.endswith(("(", ",", "and", "or", "then"))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _put(line: str, found: re.Match[str], group: int, new: str) -> str:
    return line[: found.start(group)] + new + line[found.end(group) :]


def _with_change(lines: list[str], number: int, before: str, after: str) -> str:
    count = before.count("\n") + 1
    return "\n".join([*lines[:number], after, *lines[number + count :]])
