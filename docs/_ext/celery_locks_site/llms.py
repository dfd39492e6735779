"""The documentation for language models: `llms.txt` (one line a page) and `llms-full.txt` (all)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"(?P<indent> *)(?P<marks>`{3,}|:{3,})(?P<info>.*)")
# Directives that only arrange the site. Others, such as notes, are kept without their fences.
_DROPPED = ("{toctree}",)
_CODE = ("{code-block}", "{code}")
_ONLY_ON_SITE = re.compile(r"^\(\S+\)=$|^<!-- .* -->$|^ *:[\w-]+:.*$|^\+\+\+.*$|^\[\]\{#\S+\}")


class Page(NamedTuple):
    """One page: its name, such as `how-to/names`, its title and its source."""

    name: str
    title: str
    source: str


def plain(source: str, folder: Path) -> str:
    """Return the page as plain Markdown: without directives and comments, with what it includes."""
    lines: list[str] = []
    fences: list[tuple[str, str]] = []  # the open fences: their marks, and what becomes of them
    is_head = False  # of a directive: its options stand there
    for line in source.splitlines():
        fence = _FENCE.fullmatch(line)
        kind = fences[-1][1] if fences else "text"
        if fence and fences and fence["marks"] == fences[-1][0] and not fence["info"].strip():
            fences.pop()
            lines += [line] if kind == "code" else []
        elif kind == "code":
            lines += [] if is_head and re.match(r" *:[\w-]+:", line) else [line]
            continue
        elif fence and kind != "dropped":
            info = fence["info"].strip()
            name, _, argument = info.partition(" ")
            fences.append((fence["marks"], _treatment(fence["marks"], name)))
            is_head = name.startswith("{")
            if name in _CODE:
                lines.append(f"{fence['indent']}{fence['marks']}{argument}")
            elif name == "{include}":
                lines += (folder / argument).read_text().splitlines()
            elif not name.startswith("{"):
                lines.append(line)
            elif title := _title(name, argument):
                lines += [f"{fence['indent']}**{title}**", ""]
            continue
        elif kind != "dropped" and not _ONLY_ON_SITE.match(line):
            lines += [line] if line.strip() or (lines and lines[-1].strip()) else []
        is_head = False
    return "\n".join(lines).strip() + "\n"


def _title(name: str, argument: str) -> str:
    """Return the title of a card, a tab or a note."""
    is_note = name in ("{note}", "{tip}", "{important}", "{warning}", "{caution}", "{danger}")
    return name.strip("{}").capitalize() if is_note else "" if name == "{grid}" else argument


def _treatment(marks: str, name: str) -> str:
    if name in _DROPPED or name == "{include}":
        return "dropped"
    return "text" if name.startswith("{") and name not in _CODE else "code"


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
