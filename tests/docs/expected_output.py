"""Compares the output of a command with the output that a page shows.

A page shows a real sample, such as `pid 4711`. `VARYING` describes what differs from run to run:
there the output must have a value of the same form. All other text must be the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

_HEX = "[0-9a-f]"
_UNIT = "(?:s|min|h)"
# Settings such as `ttl 30 s` and `within 2 s`, and the names of workers and locks, do not vary.
VARYING = [
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3})?",
    r"(?<= at )\d\d:\d\d:\d\d",
    rf"(?<![\d.])(?<!\bttl )(?<!\bttl of )(?<!\bwithin )\d+(?:\.\d+)? {_UNIT}(?: \d+ {_UNIT})?\b",
    r"(?<=\bin )\d+\.\d+s\b",  # of pytest and unittest
    r"\d+(?:\.\d)?(?= × )",
    rf"\b{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}\b",  # the id of a task
    rf"(?<=\btoken ){_HEX}{{24}}",
    rf"(?<='token': '){_HEX}{{24}}",
    rf"(?<='owner': '){_HEX}{{16}}\.\d+",
    r"(?<=\bpid )\d+",
    r"(?<=\bprocess )\d+",
    r"(?<=  )\d{2,}(?=  )",  # a pid in a table
    r"(?<=  )[\w.-]+ {2,}\d{2,}(?=  )",  # a host and a pid in a table; a worker has an @
    r"(?<=\bfence )\d{10,}",
    r"(?<='fence': )\d{10,}",
    r"(?<='acquired_at': )\d{10}\.\d+",
    r"(?<='expires_at': )\d{10}\.\d+",
    r"(?<='renewals': )\d+",
    r"(?<=, about )\d+ renewals?(?=\))",
    r"(?<='host': ')[\w.-]+",
    r"(?<='pid': )\d+",
    r"\b\w+@[\w.-]+(?= (?:took|asked|paused|resumed|set|reset)\b)",  # an operator
    r"(?<= by )\w+@[\w.-]+(?=[ ,])",
    r"(?<= on )[\w.-]+(?=, pid )",  # the host of a process that is no worker
    r"(?<=127\.0\.0\.1:)\d+",
]
_SAMPLE = re.compile("|".join([r"(\.\.\.)", *(f"({pattern})" for pattern in VARYING)]))


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
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    return re.compile(indent + "".join(_parts(text)))


def _parts(text: str) -> Iterator[str]:
    """Yield the pattern of each part: literal text, dots, or a sample."""
    end = 0
    for sample in _SAMPLE.finditer(text):
        yield _literal(text[end : sample.start()])
        number = sample.lastindex or 1
        yield ".*?" if number == 1 else VARYING[number - 2]
        end = sample.end()
    yield _literal(text[end:])


def _literal(text: str) -> str:
    """Return the pattern of the text; the columns of a table are as wide as their values."""
    return re.sub(r"(?:\\ ){2,}", " {2,}", re.escape(text))


def difference(expected: list[str], actual: list[str]) -> str:
    """Return a diff in which lines that match, although not literally, count as equal."""
    shown = [_matching(line, expected) for line in actual]
    names = {"fromfile": "expected", "tofile": "actual", "lineterm": ""}
    return "\n".join(difflib.unified_diff(expected, shown, **names, n=100))


def _matching(line: str, expected: Iterable[str]) -> str:
    wanted = (text for text in expected if text.strip() != "...")
    return next((text for text in wanted if _pattern(text).fullmatch(line)), line)
