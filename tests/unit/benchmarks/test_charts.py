"""The charts of the documentation: well-formed, complete, in both themes, as new as the results."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import charts
from benchmarks.svg import DARK, LIGHT, THEMES, WIDTH, Bar, Bars, Lines, Theme, render

SVG = "{http://www.w3.org/2000/svg}"
BARS = Bars(
    "Cost",
    "µs",
    {
        "publish": [Bar("celery-locks", 52, 48, 57), Bar("a <peer>", 300, 290, 310)],
        "run": [Bar("celery-locks", 100, 90, 110), Bar("slow", 455_000, 450_000, 460_000)],
    },
)
LINES = Lines("Growth", "n", "ms", {"p50": [(1, 0.5), (1000, 20)], "p99": [(1, 2), (1000, 90)]})


def texts(picture: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def bars(picture: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    return [node for node in found if node.get("class") in ("ours", "others")]


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_bars_have_every_candidate(theme: Theme) -> None:
    """One that is missing would look as if it had no cost."""
    picture = render(BARS, theme)
    shown = texts(picture)
    assert len(bars(picture)) == 4
    assert {"publish", "run", "celery-locks", "a <peer>", "slow", "455,000 µs"} <= set(shown)
    assert picture.count('class="interval"') == 3, "the interval of the cut bar is not drawn"


def test_bar_that_is_far_longer_is_cut() -> None:
    """Else all others would be a pixel wide; its value says what it is."""
    picture = render(BARS, LIGHT)
    widths = [float(node.get("width", 0)) for node in bars(picture)]
    assert widths[3] < 2 * widths[1]
    assert picture.count('class="cut"') == 1


def test_length_of_a_bar_is_in_proportion() -> None:
    widths = [float(node.get("width", 0)) for node in bars(render(BARS, LIGHT))]
    assert widths[1] / widths[2] == pytest.approx(3, rel=0.02)


def test_interval_below_zero_stays_in_the_picture() -> None:
    """The difference to plain Celery may be nothing but noise."""
    chart = Bars("Cost", "µs", {"": [Bar("celery-locks", -5, -90, 20), Bar("peer", 50, 40, 60)]})
    picture = ElementTree.fromstring(render(chart, LIGHT))
    for node in picture.iter(f"{SVG}rect"):
        assert 0 <= float(node.get("x", 0)) <= WIDTH


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_lines_have_every_series_and_point(theme: Theme) -> None:
    picture = render(LINES, theme)
    assert {"p50", "p99", "n", "ms", "0.5", "20", "2", "90"} <= set(texts(picture))
    assert all(f'class="line{number}"' in picture for number in (0, 1))


def test_themes_differ_in_colours_only() -> None:
    """A figure that is right on a light page is right on a dark one."""
    light, dark = render(LINES, LIGHT), render(LINES, DARK)
    for one, two in zip(LIGHT[1:-1], DARK[1:-1], strict=True):
        light = light.replace(str(one), str(two))
    assert texts(light) == texts(dark)
    assert DARK.back in dark
    assert LIGHT.back not in dark


@pytest.mark.parametrize("name", charts.CHARTS)
def test_chart_describes_its_figures(name: str) -> None:
    """Who cannot see it has the same numbers."""
    chart = charts.load(name)
    names = chart.groups if isinstance(chart, Bars) else chart.series
    assert all(each in chart.describe() for each in names)
    assert unescape(render(chart, LIGHT)).count(chart.describe()) == 1


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(*found, id=found[0].stem) for found in charts.pictures()]
)
def test_picture_is_as_new_as_its_result(path: Path, text: str) -> None:
    """`make charts` was forgotten after the last measurement otherwise."""
    assert path.read_text() == text, "run `make charts`"
    ElementTree.fromstring(text)
