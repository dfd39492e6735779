"""Two kinds of charts as SVG, for a light and a dark page: bars of candidates, lines of growth.

Pure: a chart is a value, and its picture a text. Bars begin at zero. A bar that is many times
longer than the others is cut off, with a gap in it, and has its value beside it. Lines have
logarithmic axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, MARGIN, ROW, HEAD = 720, 16, 24, 56
_LABELS, _VALUES = 170, 150  # on either side of the bars
_LEFT, _BOTTOM, _PLOT = 78, 66, 240  # of a chart of lines
# A bar this many times longer than the next one is cut off.
_CUT = 4.0


class Theme(NamedTuple):
    """The colours of a page."""

    name: str
    back: str
    ink: str
    soft: str
    line: str
    ours: str
    others: str
    series: tuple[str, ...]


LIGHT = Theme(
    *("light", "#ffffff", "#1f2328", "#59636e", "#d0d7de", "#0a58ca", "#9aa5b1"),
    ("#0a58ca", "#b35900", "#1a7f37"),
)
DARK = Theme(
    *("dark", "#0f141b", "#e6edf3", "#9aa5b1", "#3a434d", "#79b8ff", "#6b7682"),
    ("#79b8ff", "#ffa657", "#56d364"),
)
THEMES = (LIGHT, DARK)


class Bar(NamedTuple):
    """A value with its interval; ``text`` is shown instead of the number, such as "> 3 s"."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    is_open: bool = False  # the value is a lower bound


class Bars(NamedTuple):
    """Groups of bars on one scale."""

    title: str
    unit: str
    groups: dict[str, list[Bar]]

    def describe(self) -> str:
        """Return what the picture shows, for who cannot see it."""
        groups = (
            f"{name}: {', '.join(f'{bar.label} {_shown(bar, self.unit)}' for bar in bars)}"
            for name, bars in self.groups.items()
        )
        return f"{self.title}. {'; '.join(groups)}."


class Lines(NamedTuple):
    """Series of points (x, y), all above zero."""

    title: str
    x: str
    y: str
    series: dict[str, list[tuple[float, float]]]

    def describe(self) -> str:
        series = (
            f"{name}: {', '.join(f'{y:.3g} at {x:,.0f}' for x, y in points)}"
            for name, points in self.series.items()
        )
        return f"{self.title}; {self.y} against {self.x}. {'; '.join(series)}."


Chart = Bars | Lines


def render(chart: Chart, theme: Theme) -> str:
    """Return the picture."""
    height, body = _bars(chart, theme) if isinstance(chart, Bars) else _lines(chart, theme)
    title = _text(MARGIN, 26, chart.title, "title")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" '
            f'height="{height:g}" viewBox="0 0 {WIDTH} {height:g}">',
            f"  <title>{escape(chart.describe())}</title>",
            f"  <style>\n{_style(theme)}  </style>",
            f'  <rect class="back" width="{WIDTH}" height="{height:g}" rx="8"/>',
            *(f"  {line}" for line in [title, *body]),
            "</svg>\n",
        ]
    )


def _style(theme: Theme) -> str:
    lines = [
        'text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; '
        f"fill: {theme.ink} }}",
        f".back {{ fill: {theme.back} }}",
        ".title { font-weight: 600; font-size: 14px }",
        f".group, .axis {{ fill: {theme.soft} }}",
        ".group { font-style: italic }",
        ".ours-label { font-weight: 600 }",
        f".ours {{ fill: {theme.ours} }}",
        f".others {{ fill: {theme.others} }}",
        f".interval {{ stroke: {theme.ink}; stroke-width: 1.5; fill: none }}",
        f".grid {{ stroke: {theme.line}; fill: none }}",
        f".cut {{ stroke: {theme.back}; stroke-width: 4; fill: none }}",
    ]
    for number, colour in enumerate(theme.series):
        lines.append(f".line{number} {{ stroke: {colour}; stroke-width: 2; fill: none }}")
        lines.append(f".dot{number} {{ fill: {colour} }}")
    return "".join(f"    {line}\n" for line in lines)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _shown(bar: Bar, unit: str) -> str:
    digits = 0 if abs(bar.value) >= 100 else 1 if abs(bar.value) >= 10 else 2
    return bar.text or f"{bar.value:,.{digits}f} {unit}"


def _bars(chart: Bars, theme: Theme) -> tuple[float, list[str]]:
    low, high = _range([bar for bars in chart.groups.values() for bar in bars])
    left, width = MARGIN + _LABELS, WIDTH - 2 * MARGIN - _LABELS - _VALUES

    def place(value: float) -> float:
        return round(left + (min(value, high) - low) / (high - low) * width, 1)

    drawn, y = [], float(HEAD)
    for name, bars in chart.groups.items():
        if name:
            drawn.append(_text(MARGIN, y + 6, name, "group"))
            y += ROW
        for bar in bars:
            drawn += _bar(bar, y, place, high, chart.unit)
            y += ROW
    zero = place(0)
    drawn.append(f'<path class="grid" d="M{zero:g} {HEAD - 14} V{y - 12:g}"/>')
    return y + 4, drawn


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    """Return the ends of the scale; a bar far beyond the others does not count."""
    ends = sorted({max(bar.value, bar.high or 0.0, 0.0) for bar in bars} | {0.0})
    high = ends[-1] or 1.0
    while len(ends) > 2 and ends[-2] and ends[-1] > _CUT * ends[-2]:
        ends.pop()
        high = ends[-1] * 1.25
    # An interval may reach below zero; one that is wider than the chart is cut off.
    low = min(0.0, *(bar.value if bar.low is None else bar.low for bar in bars))
    return max(low, -high / 2), high


def _bar(bar: Bar, y: float, place: object, high: float, unit: str) -> Iterator[str]:
    assert callable(place)
    is_ours = bar.label.startswith("celery-locks")
    start, end = sorted((place(0), place(bar.value)))
    yield _text(
        MARGIN + _LABELS - 8, y + 5, bar.label, "ours-label" if is_ours else "", anchor="end"
    )
    kind = "ours" if is_ours else "others"
    yield (
        f'<rect class="{kind}" x="{start:g}" y="{y - 6:g}" width="{max(1.0, end - start):g}" '
        'height="13" rx="2"/>'
    )
    if bar.value > high or bar.is_open:
        yield f'<path class="cut" d="M{end - 18:g} {y + 9:g} l8 -18"/>'
    reach = end
    if bar.low is not None and bar.high is not None and bar.value <= high:
        ends = place(bar.low), place(bar.high)
        tips = "".join(f"M{x:g} {y - 4:g} v8" for x in ends)
        yield f'<path class="interval" d="M{ends[0]:g} {y:g} H{ends[1]:g} {tips}"/>'
        reach = max(reach, ends[1])
    yield _text(reach + 8, y + 5, _shown(bar, unit))


def _lines(chart: Lines, theme: Theme) -> tuple[float, list[str]]:
    points = [point for series in chart.series.values() for point in series]
    x_axis = _Axis([x for x, _ in points], _LEFT, WIDTH - MARGIN - 24)
    y_axis = _Axis([y for _, y in points], HEAD + 24 + _PLOT, HEAD + 24)
    drawn = [*_grid(chart, x_axis, y_axis)]
    key = float(_LEFT)
    for number, (name, series) in enumerate(chart.series.items()):
        drawn += _series(series, number, x_axis, y_axis)
        drawn.append(f'<circle class="dot{number}" cx="{key + 5:g}" cy="{HEAD - 5}" r="5"/>')
        drawn.append(_text(key + 16, HEAD, name))
        key += 40 + 7.2 * len(name)
    return HEAD + 24 + _PLOT + _BOTTOM, drawn


class _Axis:
    """A logarithmic axis from one power of ten to another, between two pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._first = floor(log10(min(values)))
        self._last = max(ceil(log10(max(values))), self._first + 1)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (log10(value) - self._first) / (self._last - self._first)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        powers = range(self._first, self._last + 1)
        return [(self.place(10.0**power), f"{10.0**power:,.6g}") for power in powers]


def _grid(chart: Lines, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    right, bottom = WIDTH - MARGIN - 24, HEAD + 24 + _PLOT
    for y, text in y_axis.ticks():
        yield f'<path class="grid" d="M{_LEFT} {y:g} H{right}"/>'
        yield _text(_LEFT - 8, y + 4, text, "axis", "end")
    for x, text in x_axis.ticks():
        yield f'<path class="grid" d="M{x:g} {HEAD + 24} V{bottom}"/>'
        yield _text(x, bottom + 20, text, "axis", "middle")
    yield _text((_LEFT + right) / 2, bottom + 44, chart.x, "axis", "middle")
    middle = HEAD + 24 + _PLOT / 2
    yield (
        f'<text class="axis" x="20" y="{middle:g}" text-anchor="middle" '
        f'transform="rotate(-90 20 {middle:g})">{escape(chart.y)}</text>'
    )


def _series(
    series: Sequence[tuple[float, float]], number: int, x_axis: _Axis, y_axis: _Axis
) -> Iterator[str]:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in series]
    path = " L".join(f"{x:g} {y:g}" for x, y in places)
    yield f'<path class="line{number}" d="M{path}"/>'
    for (x, y), (_, value) in zip(places, series, strict=True):
        yield f'<circle class="dot{number}" cx="{x:g}" cy="{y:g}" r="4"/>'
        yield _text(x, y - 10, f"{value:.3g}", "", "middle")
