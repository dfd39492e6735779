"""Two kinds of charts as SVG, for a light and a dark page: bars of candidates, lines of growth.

Pure: a chart is a value, and its picture a text. Bars begin at zero. Few bars that are many times
longer than the others are cut off, with a gap in them, and have their values beside them. The x
axis of lines is logarithmic, the y axis too unless the chart says that it begins at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, MARGIN, ROW, HEAD = 720, 16, 24, 56
_CHARACTER = 7.0  # the width of one, a little more than usual
_VALUES = 150  # to the right of the bars
_LEFT, _BOTTOM, _PLOT = 84, 66, 240  # of a chart of lines
_RIGHT, _TOP = WIDTH - MARGIN - 24, HEAD + 24
# Bars this many times longer than the next one are cut off.
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
    from_zero: bool = False

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
    all_bars = [bar for bars in chart.groups.values() for bar in bars]
    low, high = _range(all_bars)
    left = MARGIN + 8 + _CHARACTER * max(len(bar.label) for bar in all_bars)
    width = WIDTH - MARGIN - left - _VALUES

    def place(value: float) -> float:
        return round(left + (min(value, high) - low) / (high - low) * width, 1)

    drawn, y = [], float(HEAD)
    for name, bars in chart.groups.items():
        if name:
            drawn.append(_text(MARGIN, y + 6, name, "group"))
            y += ROW
        for bar in bars:
            kind = "ours-label" if _is_ours(bar) else ""
            drawn.append(_text(left - 8, y + 5, bar.label, kind, "end"))
            drawn += _bar(bar, y, place, high, chart.unit)
            y += ROW
    zero = place(0)
    drawn.append(f'<path class="grid" d="M{zero:g} {HEAD - 14} V{y - 12:g}"/>')
    return y + 4, drawn


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    """Return the ends of the scale; a minority of bars far beyond the others does not count."""
    ends = sorted(max(bar.value, bar.high or 0.0) for bar in bars)
    high = ends[-1] if ends[-1] > 0 else 1.0
    for number in range(len(ends) // 2, len(ends) - 1):
        if 0 < ends[number] * _CUT < ends[number + 1]:
            high = ends[number] * 1.25
            break
    # An interval may reach below zero; one that is wider than the chart is cut off.
    low = min(0.0, *(bar.value if bar.low is None else bar.low for bar in bars))
    return max(low, -high / 2), high


def _is_ours(bar: Bar) -> bool:
    return bar.label.startswith("celery-locks")


def _bar(
    bar: Bar, y: float, place: Callable[[float], float], high: float, unit: str
) -> Iterator[str]:
    start, end = sorted((place(0), place(bar.value)))
    kind = "ours" if _is_ours(bar) else "others"
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
    x_axis = _LogAxis([x for x, _ in points], _LEFT, _RIGHT)
    y_kind = _LinearAxis if chart.from_zero else _LogAxis
    y_axis = y_kind([y for _, y in points], _TOP + _PLOT, _TOP)
    drawn = [*_grid(chart, x_axis, y_axis)]
    key = float(_LEFT)
    for number, (name, series) in enumerate(chart.series.items()):
        drawn += _series(series, number, x_axis, y_axis)
        drawn.append(f'<circle class="dot{number}" cx="{key + 5:g}" cy="{HEAD - 5}" r="5"/>')
        drawn.append(_text(key + 16, HEAD, name))
        key += 40 + _CHARACTER * len(name)
    drawn += _values(list(chart.series.values()), x_axis, y_axis)
    return _TOP + _PLOT + _BOTTOM, drawn


class _LogAxis:
    """An axis from one power of ten to another, between two pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._first = floor(log10(min(values)))
        self._last = max(ceil(log10(max(values))), self._first + 1)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (log10(value) - self._first) / (self._last - self._first)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        powers = range(self._first, self._last + 1)
        return [(self.place(10.0**power), f"{10.0**power:,.7g}") for power in powers]


class _LinearAxis:
    """An axis from zero to a round number above all values, between two pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        power = 10.0 ** floor(log10(max(values)))
        steps = next(it for it in (1, 2, 5, 10, 20) if it * power / 2 * 1.6 > max(values))
        self._step = steps * power / 5
        self._count = ceil(max(values) * 1.1 / self._step)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = value / (self._count * self._step)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        values = [number * self._step for number in range(self._count + 1)]
        return [(self.place(value), f"{value:,.6g}") for value in values]


_Axis = _LogAxis | _LinearAxis


def _grid(chart: Lines, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    bottom = _TOP + _PLOT
    for y, text in y_axis.ticks():
        yield f'<path class="grid" d="M{_LEFT} {y:g} H{_RIGHT}"/>'
        yield _text(_LEFT - 8, y + 4, text, "axis", "end")
    for x, text in x_axis.ticks():
        yield f'<path class="grid" d="M{x:g} {_TOP} V{bottom}"/>'
        yield _text(x, bottom + 20, text, "axis", "middle")
    yield _text((_LEFT + _RIGHT) / 2, bottom + 44, chart.x, "axis", "middle")
    middle = _TOP + _PLOT / 2
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
    for x, y in places:
        yield f'<circle class="dot{number}" cx="{x:g}" cy="{y:g}" r="4"/>'


def _values(
    all_series: Sequence[Sequence[tuple[float, float]]], x_axis: _Axis, y_axis: _Axis
) -> Iterator[str]:
    """Write the highest value above its point and the lowest below; the table has the others."""
    for points in zip(*all_series, strict=True):
        x, values = points[0][0], sorted({y for _, y in points})
        # Right of the first point, which is on the axis.
        is_first = x_axis.place(x) < _LEFT + 20
        shift, anchor = (7, "start") if is_first else (0, "middle")
        for value, below in {values[-1]: -10, values[0]: 20 if len(values) > 1 else -10}.items():
            place = x_axis.place(x) + shift, y_axis.place(value) + below
            yield _text(*place, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", "", anchor)
