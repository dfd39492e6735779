"""The documentation for language models: `llms.txt` (one line a page) and `llms-full.txt` (all)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"(?P<indent> *)(?P<marks>`{3,}|:{3,})(?P<info>.*)")
_CODE = ("{code-block}", "{code}")
_OPTION = re.compile(r" *:[\w-]+:.*$")
_ONLY_ON_SITE = re.compile(r"^\(\S+\)=$|^<!-- .* -->$|^\+\+\+.*$")


class Page(NamedTuple):
    """One page: its name, such as `how-to/names`, its title and its source."""

    name: str
    title: str
    source: str


def plain(source: str, folder: Path) -> str:
    """Return the page as plain Markdown: without directives and comments, with what it includes."""
    page = _PlainPage(folder)
    for line in source.splitlines():
        page.read(line)
    return "\n".join(page.lines).strip() + "\n"


class _PlainPage:
    """The lines so far, and the fences that are open: their marks, and what is inside."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self._folder = folder
        self._fences: list[tuple[str, str]] = []
        self._is_head = False  # of a directive: its options are there

    def read(self, line: str) -> None:
        inside = self._fences[-1][1] if self._fences else "text"
        fence = _FENCE.fullmatch(line)
        is_option = self._is_head and _OPTION.match(line) is not None
        self._is_head = is_option
        if fence and self._closes(fence):
            self._fences.pop()
            self.lines += [line] if inside == "code" else []
        elif inside == "dropped" or is_option:
            return
        elif inside == "code":
            self.lines.append(line)
        elif fence:
            self._open(fence, line)
        elif not _ONLY_ON_SITE.match(line):
            is_second_blank = not line.strip() and not (self.lines and self.lines[-1].strip())
            self.lines += [] if is_second_blank else [line]

    def _closes(self, fence: re.Match[str]) -> bool:
        is_open = bool(self._fences) and self._fences[-1][0] == fence["marks"]
        return is_open and not fence["info"].strip()

    def _open(self, fence: re.Match[str], line: str) -> None:
        name, _, argument = fence["info"].strip().partition(" ")
        self._is_head = name.startswith("{")
        inside = "text" if self._is_head else "code"
        if name in _CODE:
            inside = "code"
            self.lines.append(f"{fence['indent']}{fence['marks']}{argument}")
        elif name in ("{toctree}", "{include}"):
            inside = "dropped"
            if name == "{include}":
                self.lines += (self._folder / argument).read_text().splitlines()
        elif not self._is_head:
            self.lines.append(line)
        elif title := _title(name, argument):
            self.lines += [f"{fence['indent']}**{title}**", ""]
        self._fences.append((fence["marks"], inside))


def _title(name: str, argument: str) -> str:
    """Return the title of a card, a tab or a note."""
    is_note = name in ("{note}", "{tip}", "{important}", "{warning}", "{caution}", "{danger}")
    return name.strip("{}").capitalize() if is_note else "" if name == "{grid}" else argument


def first_sentence(text: str) -> str:
    """Return the first sentence below the title, which says what the page answers."""
    paragraphs = [part.strip() for part in text.split("\n\n")]
    prose = (part for part in paragraphs if part and part[0] not in "#|`<:-!(")
    words = " ".join(next(prose, "").split())
    return re.split(r"(?<=[.?!]) ", words)[0]


def index(title: str, about: str, pages: Iterable[Page]) -> str:
    """Return `llms.txt`: a line for each page, by section."""
    lines = [f"# {title}", "", f"> {about}", ""]
    section = ""
    for page in pages:
        folder = page.name.partition("/")[0] if "/" in page.name else ""
        if folder != section:
            lines += ["", f"## {page.title}", ""]
            section = folder
        about_page = first_sentence(page.source)
        lines.append(
            f"- [{page.title}]({page.name}.html)" + (f": {about_page}" if about_page else "")
        )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def full(pages: Iterable[Page]) -> str:
    """Return `llms-full.txt`: all pages, each below a line that names it."""
    return (
        "\n\n".join(f"<!-- {page.name}.html -->\n\n{page.source.strip()}" for page in pages) + "\n"
    )
