"""What many processes say they did, and whether a correct lock allows it. No I/O but reading files.

Each process writes its own file, a line for each step (see `contenders`), with times on
CLOCK_MONOTONIC, which all processes of one machine share. A section is what one of them did inside
one lease; its times are taken so that it lies strictly inside the hold: entered after the grant
was known, left before the release was sent, and never counted past the holder's own deadline.

Every checker returns what it found, in words; an empty list is good news.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path


@dataclass(frozen=True)
class Section:
    """One stay inside the lock. ``queued`` is when it surely stood in line; inf if it never did."""

    process: int
    token: str
    fence: int
    asked: float
    queued: float
    entered: float
    left: float

    def __str__(self) -> str:
        return f"{self.process} [{self.entered:.4f} to {self.left:.4f}] fence {self.fence}"


def read(directory: Path, killed: dict[int, float] | None = None) -> list[Section]:
    """The sections of all files; a process that was killed inside one left it at that moment."""
    sections = []
    for path in directory.glob("*.jsonl"):
        process = int(path.stem)
        open_one: dict[str, float] | None = None
        for line in path.read_text().splitlines():
            step = json.loads(line)
            if "left" not in step:
                open_one = step
            else:
                sections.append(Section(process, **{**(open_one or {}), **step}))
                open_one = None
        if open_one:
            left = (killed or {}).get(process, open_one["entered"])
            sections.append(Section(process, **{**open_one, "left": left}))  # type: ignore[arg-type]
    return sorted(sections, key=lambda section: section.entered)


def overlaps(sections: Iterable[Section], limit: int = 1) -> list[str]:
    """Moments at which more than ``limit`` were inside."""
    moves = sorted(
        [(s.entered, 1, s) for s in sections] + [(s.left, 0, s) for s in sections],
        key=lambda move: move[:2],
    )
    inside: dict[str, Section] = {}
    found = []
    for moment, comes, section in moves:
        if not comes:
            inside.pop(section.token, None)
            continue
        inside[section.token] = section
        if len(inside) > limit:
            found.append(f"at {moment:.4f} inside: " + "; ".join(map(str, inside.values())))
    return found


def fence_errors(sections: Iterable[Section], limit: int = 1) -> list[str]:
    """Fences given twice, or not rising from one holder to one that came surely after it.

    Surely after: it asked when the other was inside already, or, where one alone may be inside, it
    came in when the other had left.
    """
    ordered = list(sections)
    found = [
        f"given twice: {one}; {other}"
        for one, other in pairwise(sorted(ordered, key=lambda s: s.fence))
        if one.fence == other.fence
    ]
    found += _not_rising(ordered, [s.entered for s in ordered], [s.asked for s in ordered])
    if limit == 1:
        found += _not_rising(ordered, [s.left for s in ordered], [s.entered for s in ordered])
    return found


def fifo_inversions(sections: Iterable[Section]) -> list[str]:
    """Who asked when another surely stood in line already, and was granted before it."""
    ordered = list(sections)
    return _not_rising(ordered, [s.queued for s in ordered], [s.asked for s in ordered])


def longest_gap(sections: Sequence[Section]) -> float:
    """The longest time in which nobody came in."""
    return max((b.entered - a.entered for a, b in pairwise(sections)), default=inf)


def _not_rising(sections: list[Section], ends: list[float], begins: list[float]) -> list[str]:
    """Pairs where one's end precedes the other's beginning and its fence is not the lower one."""
    earlier = sorted(zip(ends, sections, strict=True), key=lambda pair: pair[0])
    found, highest, at = [], None, 0
    for begin, section in sorted(zip(begins, sections, strict=True), key=lambda pair: pair[0]):
        while at < len(earlier) and earlier[at][0] < begin:
            candidate = earlier[at][1]
            if highest is None or candidate.fence > highest.fence:
                highest = candidate
            at += 1
        if highest is not None and highest is not section and highest.fence >= section.fence:
            found.append(f"{highest} came before {section}")
    return found
