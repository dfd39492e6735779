"""Read the values that TLC prints: numbers, strings, sets, sequences, records and functions."""

import re
from typing import Any

_WORD = re.compile(r'\s*("[^"]*"|-?\d+|\w+|<<|>>|\|->|:>|@@|[\[\]{}(),])')


def parse_value(text: str) -> Any:
    """Return a Python value: a list for a sequence or a set, a dict for a record or a function."""
    words = _WORD.findall(text)
    value = _value(words)
    assert not words, f"left over: {words}"
    return value


def parse_states(output: str) -> list[dict[str, Any]]:
    """Return the states of the trace in TLC's output, each as its variables."""
    states = []
    for block in re.split(r"^State \d+: .*\n", output, flags=re.MULTILINE)[1:]:
        body = block.split("\n\n")[0]
        parts = re.split(r"^/\\ (\w+) = ", body, flags=re.MULTILINE)
        names, values = parts[1::2], parts[2::2]
        pairs = zip(names, values, strict=True)
        states.append({name: parse_value(value) for name, value in pairs})
    return states


def _value(words: list[str]) -> Any:
    word = words.pop(0)
    if word == "<<":
        return _items(words, ">>")
    if word == "{":
        return _items(words, "}")
    if word == "[":
        return _pairs(words, "]", "|->", ",")
    if word == "(":
        return _pairs(words, ")", ":>", "@@")
    if word in ("TRUE", "FALSE"):
        return word == "TRUE"
    if word[0] == '"':
        return word[1:-1]
    return int(word) if word.lstrip("-").isdigit() else word


def _items(words: list[str], end: str) -> list[Any]:
    items = []
    while words[0] != end:
        items.append(_value(words))
        if words[0] == ",":
            words.pop(0)
    words.pop(0)
    return items


def _pairs(words: list[str], end: str, arrow: str, separator: str) -> dict[Any, Any]:
    pairs = {}
    while words[0] != end:
        key = _value(words)
        assert words.pop(0) == arrow
        pairs[key] = _value(words)
        if words[0] == separator:
            words.pop(0)
    words.pop(0)
    return pairs
