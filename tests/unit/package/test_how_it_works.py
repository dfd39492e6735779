"""The page how-it-works.md names functions that exist, and its diagrams are up to date."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
PAGE = next((ROOT / "docs").rglob("how-it-works.md"))  # in any section
DIAGRAMS = ROOT / "docs/diagrams"
SCRIPTS = ROOT / "celery_locks/store/scripts"
SOURCES = sorted(DIAGRAMS.glob("*.txt"))
DOTTED = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`")


def load_draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_diagrams", DIAGRAMS / "draw.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


draw = load_draw()


def sections() -> dict[str, str]:
    """The text of each walk, by the name of its diagram."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    shown = {
        part: re.findall(r"!\[.{20,}\]\((?:\.\./)*diagrams/([a-z-]+)\.svg\)", part)
        for part in parts
    }
    return {names[0]: part for part, names in shown.items() if names}


def names_on_page() -> list[str]:
    names = [name for name in DOTTED.findall(PAGE.read_text()) if not name.endswith(".lua")]
    return sorted(set(names))


@pytest.mark.parametrize("name", names_on_page())
def test_name_on_the_page_exists(name: str) -> None:
    """A page that names a function which was renamed leads its reader nowhere."""
    pkgutil.resolve_name(f"celery_locks.{name}")


def test_scripts_on_the_page_exist() -> None:
    named = set(re.findall(r"`(\w+\.lua)`", PAGE.read_text()))
    assert len(named) > 5
    assert named <= {path.name for path in SCRIPTS.rglob("*.lua")}


def test_page_has_a_diagram_for_each_of_its_four_walks() -> None:
    assert set(sections()) == {"task-run", "wait", "lost-lease", "manual-release"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_diagram_is_on_a_page(source: Path) -> None:
    """Of any section: one that nobody sees is not kept up to date."""
    pages = (ROOT / "docs").glob("[!_]*/*.md")
    assert any(f"diagrams/{source.stem}.svg" in page.read_text() for page in pages)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_picture_is_drawn_from_its_source(source: Path) -> None:
    """Run docs/diagrams/draw.py after a change."""
    assert source.with_suffix(".svg").read_text() == draw.render(draw.parse(source.read_text()))


@pytest.mark.parametrize("walk", sections())
def test_table_has_a_row_for_every_arrow(walk: str) -> None:
    """And names the function that the arrow names, so that it is known to exist."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \| .+ \|$", sections()[walk], re.MULTILINE)
    arrows = draw.parse((DIAGRAMS / f"{walk}.txt").read_text()).arrows
    assert [int(number) for number, _ in rows] == list(range(1, len(arrows) + 1))
    for arrow, (number, functions) in zip(arrows, rows, strict=True):
        named = [f".{name}" for name in DOTTED.findall(functions)]
        is_named = any(name.endswith(f".{arrow.code}") for name in named)
        assert is_named or not arrow.code, f"arrow {number} has {arrow.code}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_picture_has_colours_for_light_and_dark(source: Path) -> None:
    """And is XML with a title, which screen readers read."""
    text = source.with_suffix(".svg").read_text()
    title = ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("line", ["a -> b | text", "actor a", "a -> a", "a => a | text", "text"])
def test_line_that_is_not_understood_is_an_error(line: str) -> None:
    """A typing error must not leave out an arrow."""
    with pytest.raises(ValueError, match="not"):
        draw.parse(f"title t\nactor a A\n{line}")
