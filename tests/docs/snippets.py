"""The snippets of a page of the documentation: what there is to run, and how.

A block `python` is executed in the namespace of the page. A block `console` has commands (`$ …`)
and a sample of their output, in which pids, times and the like may differ (`expected_output.py`);
`...` stands for any text in a line and a line `...` for any lines. A command that ends in ` &` runs
until the page ends. `yaml`, `toml` and `json` are parsed, the other languages of `NOT_RUN` are only
shown. A comment on the line before the block changes that:

    <!-- snippet: file shop.py -->        write the block to this file
    <!-- snippet: new -->                 begin with an empty namespace
    <!-- snippet: raises LockConflict --> expect this error
    <!-- snippet: skip, reason -->        do not run it

A block inside a comment of several lines runs too, and is not shown: it prepares the next ones.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

NOT_RUN = {
    *("text", "sql", "lua", "html", "html+django", "nginx", "ini", "css", "http", "diff"),
    *("promql", "dockerfile"),
}
PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
LANGUAGES = {"python", "console", *PARSERS, *NOT_RUN}

_COMMENT = re.compile(r"\s*<!--\s*snippet:\s*(?P<text>.*?)\s*-->\s*")
_FENCE = re.compile(r"(?P<indent>\s*)(?P<marks>`{3,})(?P<info>[^`]*)")
_OPTION = re.compile(r"\s*:[\w-]+:.*")
_CODE_DIRECTIVES = ("{code-block}", "{code}")


class SnippetError(Exception):
    """A snippet does not do what the page says; the text is the whole report."""


class Snippet(NamedTuple):
    """One block of code; `line` is that of its first line in the page, counted from 1."""

    page: Path
    line: int
    language: str
    text: str
    action: str = ""
    argument: str = ""

    def error(self, sentence: str, detail: str = "", line: int | None = None) -> SnippetError:
        return _error(self.page, line or self.line, sentence, detail)


class Command(NamedTuple):
    """A command of a console block, and the output that the page shows."""

    line: int
    text: str
    expected: list[str]

    @property
    def is_background(self) -> bool:
        return self.text.endswith(" &")


def _error(page: Path, line: int, sentence: str, detail: str = "") -> SnippetError:
    return SnippetError(f"{page}:{line}: {sentence}" + (f"\n\n{detail}" if detail else ""))


def parse(page: Path, text: str | None = None) -> list[Snippet]:
    """Return the snippets of a page, also those inside directives such as tabs."""
    lines = (page.read_text() if text is None else text).splitlines()
    return list(_snippets(page, lines))


def _snippets(page: Path, lines: list[str]) -> Iterator[Snippet]:
    directives: list[int] = []  # the lengths of the open fences of directives
    comment = ""
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if comment:
                raise _error(page, number, "there is no code block below the snippet comment")
            comment = _comment(page, number, line)
            continue
        marks, info = len(fence["marks"]), fence["info"].strip()
        if not info and directives and marks >= directives[-1]:
            directives.pop()
        elif info.startswith("{") and not info.startswith(_CODE_DIRECTIVES):
            directives.append(marks)
        else:
            block = list(_block(numbered, marks))
            yield _snippet(page, number + 1, info, block, comment)
        comment = ""


def _comment(page: Path, number: int, line: str) -> str:
    match = _COMMENT.fullmatch(line)
    if match is None and "<!-- snippet" in line:
        raise _error(page, number, f"not a snippet comment: {line.strip()}")
    return match["text"] if match else ""


def _block(numbered: Iterator[tuple[int, str]], marks: int) -> Iterator[str]:
    for _, line in numbered:
        fence = _FENCE.fullmatch(line)
        if fence and len(fence["marks"]) >= marks and not fence["info"].strip():
            return
        yield line


def _snippet(page: Path, line: int, info: str, block: list[str], comment: str) -> Snippet:
    for directive in _CODE_DIRECTIVES:
        if info.startswith(directive):
            info = info.removeprefix(directive).strip()
            while block and _OPTION.fullmatch(block[0]):
                block, line = block[1:], line + 1
    language = info.split(" ")[0]
    if language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise _error(page, line - 1, f"unknown language {language!r} of a code block", known)
    text = textwrap.dedent("\n".join(block)) + "\n"
    return Snippet(page, line, language, text, *_action(page, line - 2, comment, language))


def _action(page: Path, line: int, comment: str, language: str) -> tuple[str, str]:
    action, _, argument = comment.partition(" ")
    argument = argument.strip()
    good = {
        "": True,
        "file": bool(argument),
        "new": language == "python" and not argument,
        "raises": language == "python" and argument.isidentifier(),
        "skip,": bool(argument),
    }
    if not good.get(action, False):
        raise _error(
            page,
            line,
            f"cannot use `snippet: {comment}` on a {language} block",
            "write file NAME, new, raises ERROR (the last two for python), or skip, REASON",
        )
    return action.rstrip(","), argument


def commands_of(snippet: Snippet) -> Iterator[Command]:
    """Yield the commands of a console block; a backslash at the end continues a command."""
    lines = snippet.text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    if not starts or any(line.strip() for line in lines[: starts[0]]):
        raise snippet.error("a console block begins with a command: a line `$ …`")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        first = start
        while lines[start].endswith("\\") and start + 1 < end:
            start += 1
        command = "\n".join(lines[first : start + 1]).removeprefix("$ ").rstrip()
        yield Command(snippet.line + first, command, stripped(lines[start + 1 : end]))


def stripped(lines: list[str]) -> list[str]:
    """Return the lines without trailing spaces, and without the empty ones at the end."""
    lines = [line.rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines
