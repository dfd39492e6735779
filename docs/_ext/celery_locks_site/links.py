"""Checks the built pages: every link inside the site leads somewhere, nothing loads remotely."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself; a link that a reader follows may lead anywhere.
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_LOADED_BY_CSS = re.compile(r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")]+)")


class _Reader(HTMLParser):
    """The targets and the links of a page; a link is its text and whether a browser loads it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        for attribute in ("href", "src"):
            if attribute in values:
                self.links.append((values[attribute], _LOADED.get(tag) == attribute))


@cache
def _read(page: Path) -> _Reader:
    reader = _Reader()
    reader.feed(page.read_text())
    return reader


def problems(site: Path) -> list[str]:
    """Return a sentence for each link that leads nowhere and each file from another server."""
    _read.cache_clear()
    found = [sentence for page in sorted(site.rglob("*.html")) for sentence in _in_page(page, site)]
    for style in sorted(site.rglob("*.css")):
        for url in _LOADED_BY_CSS.findall(style.read_text()):
            found.append(f"{style.relative_to(site)}: loads {url} from another server")
    return found


def _in_page(page: Path, site: Path) -> Iterator[str]:
    where = page.relative_to(site)
    for link, is_loaded in dict.fromkeys(_read(page).links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if is_loaded and parts.scheme != "data":
                yield f"{where}: loads {link} from another server"
            continue
        target = _target(page, site, unquote(parts.path))
        if not target.is_file():
            yield f"{where}: there is no {link}"
        elif not _has_anchor(target, unquote(parts.fragment)):
            yield f"{where}: there is no anchor {link}"


def _has_anchor(target: Path, fragment: str) -> bool:
    return not fragment or target.suffix != ".html" or fragment in _read(target).ids


def _target(page: Path, site: Path, path: str) -> Path:
    if not path:
        return page
    target = site / path.lstrip("/") if path.startswith("/") else page.parent / path
    return (target / "index.html" if target.is_dir() else target).resolve()
