"""Durations, times, counts and lists as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_SHOWN = 3
_ORDINALS = (
    *("first", "second", "third", "fourth", "fifth"),
    *("sixth", "seventh", "eighth", "ninth", "tenth"),
)


def format_time(at: float) -> str:
    """Format a Unix time as 2026-01-31 23:59:59 UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_duration(seconds: float) -> str:
    """Format a duration as 7 s, 4 min 5 s or 3 h 2 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_about(seconds: float) -> str:
    """Format an estimate: about 7 s, about 4 min, about 3 h 2 min."""
    if seconds < 60:
        return f"about {max(1, round(seconds))} s"
    if seconds < 3600:
        return f"about {round(seconds / 60)} min"
    return f"about {format_duration(seconds)}"


def format_position(position: int) -> str:
    """Format a position: first, second … tenth, number 11."""
    return _ORDINALS[position - 1] if position <= len(_ORDINALS) else f"number {position}"


def format_ratio(value: float, usual: float) -> str:
    """Format how many times as large as usual a value is: 3.4, or 12 from 10 on."""
    ratio = value / usual
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: 1 lock, 2 locks."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def join_names(names: Sequence[str], conjunction: str) -> str:
    """Quote the first names and join them: 'a', 'b' or 'c'."""
    shown = [repr(name) for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown.append(f"{len(names) - _SHOWN} more")
    return f" {conjunction} ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
