"""Text from users and operators, made safe to show in a line of the log or of a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with unprintable characters written out: \x1b, \n, \u202e."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
