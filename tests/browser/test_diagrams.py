"""The diagrams of docs/project/how-it-works.md as a browser draws them, light and dark."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

PICTURES = sorted((Path(__file__).parents[2] / "docs/diagrams").glob("*.svg"))
# The box of every text and arrowhead; a number lies on its dot and is left out.
BOXES = """() => [...document.querySelectorAll("text:not(.number), .tip, .dot, .box")].map((it) => {
  const { x, y, width, height } = it.getBBox();
  return [it.textContent || it.getAttribute("class"), x, y, x + width, y + height];
})"""
COLOURS = """() => ["--back", "--ink", "--soft", "--mark"].map((name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim())"""

Box = tuple[str, float, float, float, float]


def overlap(one: Box, other: Box) -> bool:
    """A box of text is a little higher than its letters."""
    across = one[1] < other[3] - 1 and other[1] < one[3] - 1
    return across and one[2] < other[4] - 2 and other[2] < one[4] - 2


def luminance(colour: str) -> float:
    """As the rules of web accessibility (WCAG) define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_diagram_can_be_read(
    browser: Browser, picture: Path, scheme: Literal["light", "dark"]
) -> None:
    """No text lies on another or outside the picture, and every colour stands out."""
    page = browser.new_page(color_scheme=scheme)
    try:
        page.goto(picture.as_uri())
        width = page.evaluate("() => document.documentElement.viewBox.baseVal.width")
        boxes: list[Box] = page.evaluate(BOXES)
        back, *colours = page.evaluate(COLOURS)
    finally:
        page.close()
    texts = [box for box in boxes if box[0] not in ("tip", "dot", "box")]
    marks = [box for box in boxes if box[0] in ("tip", "dot")]
    assert len(texts) > 15
    pairs = [*itertools.combinations(texts, 2), *itertools.product(texts, marks)]
    assert not [(one[0], other[0]) for one, other in pairs if overlap(one, other)]
    assert all(box[1] >= 0 and box[3] <= width for box in boxes)
    assert (luminance(back) > 0.5) == (scheme == "light")
    for colour in colours:
        low, high = sorted((luminance(colour), luminance(back)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour
