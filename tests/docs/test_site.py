"""The built site: it is complete, and it needs no other server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import click
import pytest
from celery_locks_site import links

import celery_locks
from celery_locks import admin, errors, events, options, recipes, testing
from celery_locks.cli import locks, main
from celery_locks.metrics.collector import LocksCollector
from celery_locks.metrics.series import COUNTERS, HISTOGRAMS
from celery_locks.settings import Settings
from celery_locks.web.endpoints import ENDPOINTS
from celery_locks.web.openapi import SCHEMAS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does; a warning fails the tests."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q"]
    done = subprocess.run(
        [*build, "-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Reader(HTMLParser):
    """The ids of a page, its headings, and the texts that are code."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.headings: list[str] = []
        self.codes: list[str] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag == "code":
            self._open.append((tag, self.codes))
            self.codes.append("")
        elif tag in ("h1", "h2", "h3"):
            self._open.append((tag, self.headings))
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for _, texts in self._open:
            texts[-1] += data


def read(site: Path, name: str) -> Reader:
    page = Reader(site / "reference" / f"{name}.html")
    page.headings = [heading.rstrip("¶") for heading in page.headings]
    return page


def missing(expected: set[str], found: object) -> set[str]:
    assert expected, "there is nothing to look for"
    return expected - set(found)  # type: ignore[call-overload]


def test_every_option_has_a_section(site: Path) -> None:
    assert not missing(set(options.WORDS), read(site, "options").headings)


def test_every_setting_is_listed(site: Path) -> None:
    own = {it.name for it in fields(Settings)} - {"task"}
    settings = {f"locks_{name}" for name in own | set(options.WORDS)}
    assert not missing(settings, read(site, "settings").codes)


def test_every_error_is_described(site: Path) -> None:
    found = {
        f"celery_locks.{name}"
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LockError)
    }
    assert not missing(found, read(site, "errors").ids)


def test_every_event_is_listed(site: Path) -> None:
    page = read(site, "events")
    assert not missing(set(get_args(events.EventKind)), page.codes)
    assert {"celery_locks.LockEvent", "celery_locks.subscribe"} <= page.ids


def commands(group: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if path:
        yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, f"{path} {name}".strip())


def test_every_command_and_option_is_listed(site: Path) -> None:
    page = read(site, "cli")
    found = dict(commands(locks, ""))
    assert not missing({f"locks {path}" for path in found}, page.headings)
    shown = " ".join(page.codes)
    for command in (*found.values(), main):
        for param in command.params:
            for option in param.opts if isinstance(param, click.Option) else ():
                assert option in shown, (command.name, option)


def test_every_request_and_object_has_a_section(site: Path) -> None:
    headings = read(site, "rest").headings
    assert not missing({f"{it.method} {it.path}" for it in ENDPOINTS}, headings)
    assert not missing(set(SCHEMAS), headings)


def test_every_metric_is_listed(site: Path) -> None:
    codes = read(site, "metrics").codes
    assert not missing({f"celery_locks_{name}_total" for name in COUNTERS}, codes)
    assert not missing({f"celery_locks_{name}_seconds" for name in HISTOGRAMS}, codes)
    described = LocksCollector.describe(None)  # type: ignore[arg-type]
    assert not missing({it.name for it in described if it.type == "gauge"}, codes)


def test_every_public_name_has_an_entry(site: Path) -> None:
    """Also one that is exported tomorrow."""
    found = {name for page in (site / "reference").glob("*.html") for name in Reader(page).ids}
    for module in (celery_locks, admin, recipes, testing):
        names = {f"{module.__name__}.{name}" for name in module.__all__}
        assert not missing(names, found)


@pytest.mark.parametrize("name", ["Locks", "AsyncLocks", "LockedTask"])
def test_every_method_for_users_is_shown(site: Path, name: str) -> None:
    """A method that is added is either listed on the page or named here."""
    for_other_layers = {
        *("follow", "run", "perform", "store_for_thread"),
        *("after_return", "apply", "bind", "on_replace"),  # Celery's, or called by Celery
    }
    own = {
        method
        for method, value in vars(getattr(celery_locks, name)).items()
        if not method.startswith("_") and (callable(value) or isinstance(value, classmethod))
    }
    expected = {f"celery_locks.{name}.{method}" for method in own - for_other_layers}
    pages = {"Locks": "locks", "AsyncLocks": "async-locks", "LockedTask": "tasks"}
    assert not missing(expected, read(site, pages[name]).ids)


def test_signatures_show_the_real_options(site: Path) -> None:
    """`**options` tells a reader nothing."""
    text = (site / "llms-full.txt").read_text()
    assert "Locks.hold(name: str, *more: str, required: bool = True, ttl: float = 30.0," in text
    assert "single_instance(target: Any = None, /, *, key: Key | None = None, ttl:" in text
    assert "Unpack[" not in text


def test_every_page_is_in_the_files_for_language_models(site: Path) -> None:
    index, full = (site / "llms.txt").read_text(), (site / "llms-full.txt").read_text()
    sources = [ROOT / "docs" / "index.md", *(ROOT / "docs").glob("[!_]*/**/*.md")]
    for source in sources:
        name = source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f"]({name})" in index
        assert f"<!-- {name} -->" in full
    assert "<!-- generated" not in full
    assert "{toctree}" not in full


def test_the_site_needs_no_other_server(site: Path) -> None:
    """It is read offline, and nobody learns who reads it."""
    assert links.problems(site) == []
