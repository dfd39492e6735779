"""Markdown as text: tables, code, and docstrings, which are written in reStructuredText."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell may hold Markdown but no line breaks."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(value: object) -> str:
    return f"`` {value} ``" if "`" in str(value) else f"`{value}`"


def codes(values: Iterable[object]) -> str:
    return ", ".join(map(code, values))


def text(plain: str) -> str:
    """Escape what is plain text and would mean something in Markdown."""
    return re.sub(r"([\\*_<>\[\]#])", r"\\\1", plain)


def from_docstring(doc: str | None) -> str:
    """Turn a docstring, as `inspect.getdoc` returns it, into Markdown: literals and `::`."""
    plain = (doc or "").replace("``", "`")
    return re.sub(r":?(?<=\S):$|^::$", ":", plain, flags=re.MULTILINE).strip()


def described(doc: str | None, names: Iterable[str]) -> dict[str, str]:
    """Find the descriptions in a docstring: those of ``name``: up to the next, or a blank line."""
    joined = "|".join(map(re.escape, names))
    marker = re.compile(rf"``({joined})``: ")
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")):
        _, *parts = marker.split(" ".join(paragraph.split()))
        found |= dict(zip(parts[::2], map(_sentence, parts[1::2]), strict=True))
    return found


def _sentence(part: str) -> str:
    """Return the description as a sentence of Markdown, with the values in it as code."""
    literals = part.strip().split("``")
    literals[::2] = [re.sub(r'"[\w+]+"', r"`\g<0>`", plain) for plain in literals[::2]]
    words = "`".join(literals)
    return words[:1].upper() + words[1:]
