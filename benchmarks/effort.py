"""How much a benchmark does: all of it for published figures, a little of it for development."""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """The share of the usual number of rounds, and what a report says about it."""

    share: float = 1.0
    label: str = ""

    @property
    def is_quick(self) -> bool:
        return self.share < 1

    def count(self, full: int, least: int = 1) -> int:
        """Return how many of ``full`` rounds, calls or processes to do."""
        return max(least, round(full * self.share))

    def sizes(self, *sizes: int) -> tuple[int, ...]:
        """Return the sizes of a table of growth; a quick one leaves out the two largest."""
        return sizes[:-2] if self.is_quick else sizes


FULL = Effort()
QUICK = Effort(0.05, "QUICK, for development only")
