"""Draw the sequence diagrams of the documentation: every ``*.txt`` here becomes an ``*.svg``.

    python docs/diagrams/draw.py

A source has one line for each thing:

    title A task runs                           what a screen reader says
    actor child Pool child                      a column: its id, then its heading
    child -> server | acquire the lock | f      an arrow; the last part is a function, or missing
    server ..> child | the fence                a dashed arrow, for a reply
    child -> child | run the body               a loop at one column, to its right; to its left at
                                                the last one
    == only long tasks                          a line across, with a sentence

Arrows are numbered from 1, so that a text can refer to them. Columns are as far apart as the texts
between them need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path

FOLDER = Path(__file__).parent

# Pixels. A character is counted as a little wider than it usually is.
_TEXT, _CODE = 7.3, 6.8
_HEADING = 34
_MARGIN, _LOOP = 16, 26

_STYLE = """\
    svg { --back: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #c3c9d0; --mark: #0a58ca }
    @media (prefers-color-scheme: dark) {
      svg { --back: #0f141b; --ink: #e6edf3; --soft: #9aa5b1; --line: #3a434d; --mark: #79b8ff }
    }
    text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink) }
    text { paint-order: stroke; stroke: var(--back); stroke-width: 5px; stroke-linejoin: round }
    .heading { font-weight: 600 }
    .code { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: var(--soft) }
    .section { font-style: italic; fill: var(--soft) }
    .number { font-size: 11px; font-weight: 600; fill: var(--back); stroke: none }
    .life, .rule { stroke: var(--line); fill: none }
    .rule { stroke-dasharray: 2 4 }
    .arrow { stroke: var(--mark); stroke-width: 1.5; fill: none }
    .reply { stroke-dasharray: 6 4 }
    .tip, .dot { fill: var(--mark) }
    .box { fill: var(--back); stroke: var(--soft) }
"""


@dataclass(frozen=True)
class Arrow:
    """A message from one column to another, or to itself."""

    start: int
    end: int
    label: str
    code: str = ""
    is_reply: bool = False

    def between(self, last: int) -> tuple[int, int]:
        """Return the two columns between which its texts must fit."""
        if self.start == self.end:
            return (last - 1, last) if self.start == last else (self.start, self.start + 1)
        return min(self.start, self.end), max(self.start, self.end)

    @property
    def width(self) -> float:
        texts = max(len(self.label) * _TEXT, len(self.code) * _CODE)
        return texts + (_LOOP + 34 if self.start == self.end else 56)

    @property
    def height(self) -> int:
        return 54 if self.code else 40


@dataclass
class Diagram:
    """What a source says."""

    title: str = ""
    headings: list[str] = field(default_factory=list)
    rows: list[Arrow | str] = field(default_factory=list)

    @property
    def arrows(self) -> list[Arrow]:
        return [row for row in self.rows if isinstance(row, Arrow)]


def parse(source: str) -> Diagram:
    """Read a source; raise ValueError with the line that is wrong."""
    diagram, ids = Diagram(), []
    for line in filter(None, map(str.strip, source.splitlines())):
        if line.startswith("title "):
            diagram.title = line.removeprefix("title ")
        elif line.startswith("actor "):
            _, name, heading = line.split(maxsplit=2)
            ids.append(name)
            diagram.headings.append(heading)
        elif line.startswith("== "):
            diagram.rows.append(line.removeprefix("== "))
        else:
            found = re.fullmatch(r"(\w+) (->|\.\.>) (\w+) \| ([^|]+?)(?: \| (\S+))?", line)
            if not found or not {found[1], found[3]} <= set(ids):
                raise ValueError(f"not understood: {line}")
            start, end = ids.index(found[1]), ids.index(found[3])
            diagram.rows.append(Arrow(start, end, found[4], found[5] or "", found[2] == "..>"))
    return diagram


def _columns(diagram: Diagram) -> list[float]:
    """Return the x of every column and, as the last one, the width of the picture."""
    boxes = [len(heading) * _TEXT + 36 for heading in diagram.headings]
    gaps = [(left + right) / 2 for left, right in pairwise(boxes)]
    needs = [(*arrow.between(len(gaps)), arrow.width) for arrow in diagram.arrows]
    for low, high, width in sorted(needs, key=lambda need: need[1] - need[0]):
        missing = width - sum(gaps[low:high])
        for column in range(low, high):
            gaps[column] += max(0.0, missing) / (high - low)
    places = list(accumulate([_MARGIN + boxes[0] / 2, *gaps, boxes[-1] / 2 + _MARGIN]))
    return [round(place) for place in places]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _tip(x: float, y: float, direction: int) -> str:
    back = x - 8 * direction
    return f'<path class="tip" d="M{x:g} {y:g} L{back:g} {y - 4:g} L{back:g} {y + 4:g} Z"/>'


def _number(x: float, y: float, number: int) -> list[str]:
    return [
        f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="9"/>',
        _text(x, y + 4, str(number), "number"),
    ]


def _loop(x: float, y: float, side: int, arrow: Arrow, number: int) -> list[str]:
    """Draw a loop and its texts to the right of x (side 1) or to the left (-1)."""
    far, low, anchor = x + _LOOP * side, y + 14, "start" if side > 0 else "end"
    texts = [_text(far + 10 * side, y + (4 if arrow.code else 11), arrow.label, anchor=anchor)]
    if arrow.code:
        texts.append(_text(far + 10 * side, y + 20, arrow.code, "code", anchor))
    line = f'<path class="arrow" d="M{x:g} {y:g} H{far:g} V{low:g} H{x + 7 * side:g}"/>'
    return [line, _tip(x, low, -side), *_number(x, y, number), *texts]


def _straight(start: float, end: float, y: float, arrow: Arrow, number: int) -> list[str]:
    direction = 1 if end > start else -1
    middle = (start + end) / 2 + 8 * direction
    kind = "arrow reply" if arrow.is_reply else "arrow"
    texts = [_text(middle, y - 8, arrow.label)]
    if arrow.code:
        texts.append(_text(middle, y + 16, arrow.code, "code"))
    line = f'<path class="{kind}" d="M{start:g} {y:g} H{end - 7 * direction:g}"/>'
    return [line, _tip(end, y, direction), *_number(start, y, number), *texts]


def render(diagram: Diagram) -> str:
    """Return the SVG."""
    *places, width = _columns(diagram)
    drawn: list[str] = []
    y, number = _MARGIN + _HEADING, 0
    for row in diagram.rows:
        if isinstance(row, str):
            y += 40
            drawn.append(f'<path class="rule" d="M{_MARGIN} {y - 4:g} H{width - _MARGIN:g}"/>')
            drawn.append(_text(width / 2, y, row, "section"))
            continue
        number += 1
        start, end = places[row.start], places[row.end]
        if start == end:
            drawn += _loop(start, y + 26, -1 if start == places[-1] else 1, row, number)
        else:
            drawn += _straight(start, end, y + 32, row, number)
        y += row.height
    height = y + 24
    heads: list[str] = []
    for x, heading in zip(places, diagram.headings, strict=True):
        wide = len(heading) * _TEXT + 20
        heads += [
            f'<path class="life" d="M{x:g} {_MARGIN + _HEADING} V{height - 8:g}"/>',
            f'<rect class="box" x="{x - wide / 2:g}" y="{_MARGIN}" width="{wide:g}" '
            f'height="{_HEADING}" rx="5"/>',
            _text(x, _MARGIN + 22, heading, "heading"),
        ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:g}" '
            f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">',
            f"  <title>{escape(diagram.title)}</title>",
            f"  <style>\n{_STYLE}  </style>",
            f'  <rect width="{width:g}" height="{height:g}" rx="8" style="fill: var(--back)"/>',
            *(f"  {line}" for line in [*heads, *drawn]),
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write the SVG of every source."""
    for source in sorted(FOLDER.glob("*.txt")):
        source.with_suffix(".svg").write_text(render(parse(source.read_text())))
        print(source.with_suffix(".svg").name)


if __name__ == "__main__":
    main()
