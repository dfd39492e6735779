"""Compares the output of a command with the output that a page shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def matches(expected: list[str], actual: list[str]) -> bool:
    """Compare line by line; `...` is any text within a line, a line `...` any lines."""
    reachable = {0}  # how many of the actual lines the expected ones so far may stand for
    for line in expected:
        if line.strip() == "...":
            reachable = set(range(min(reachable), len(actual) + 1)) if reachable else set()
        else:
            pattern = _pattern(line)
            reachable = {
                index + 1
                for index in reachable
                if index < len(actual) and pattern.fullmatch(actual[index])
            }
    return len(actual) in reachable


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*?".join(re.escape(part) for part in line.split("...")))


def difference(expected: list[str], actual: list[str]) -> str:
    """Return a diff in which lines that match, although not literally, count as equal."""
    shown = [_matching(line, expected) for line in actual]
    names = {"fromfile": "expected", "tofile": "actual", "lineterm": ""}
    return "\n".join(difflib.unified_diff(expected, shown, **names, n=100))


def _matching(line: str, expected: Iterable[str]) -> str:
    wanted = (text for text in expected if text.strip() != "...")
    return next((text for text in wanted if _pattern(text).fullmatch(line)), line)
