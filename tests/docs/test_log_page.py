"""The page of the log lines has every line that the package writes, with its level."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_locks import logs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations" / "logs.md").read_text()
LEVELS = {
    **dict.fromkeys(("exception", "failure", "error"), "ERROR"),
    "warning": "WARNING",
    "info": "INFO",
}
LOGGERS = {"logger", "reports", "_reports"}


def pattern_of(text: str) -> re.Pattern[str]:
    """What the page may show for a line: any text, such as an ellipsis, for each value."""
    return re.compile(".+".join(map(re.escape, re.split(r"%(?:\(\w+\))?[\d.]*[srdf]", text))))


def rows_with(text: str) -> list[str]:
    """The rows of the page's tables that begin with this line."""
    rows = [(row, re.match(r"\| `([^`]+)`", row)) for row in PAGE.splitlines()]
    return [row for row, found in rows if found and pattern_of(text).fullmatch(found[1])]


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that a module writes, with its level; those of events are in `logs.py`."""
    tree = ast.parse(path.read_text())
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            owner = node.func.value
            name = getattr(owner, "attr", getattr(owner, "id", ""))
            if name in LOGGERS and node.func.attr in LEVELS:
                yield LEVELS[node.func.attr], text_of(node.args[0], constants)


def text_of(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return constants[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values
        )
    assert isinstance(node, ast.Constant), ast.dump(node)
    return str(node.value)


OTHERS = sorted(
    (level, text)
    for path in (ROOT / "celery_locks").rglob("*.py")
    if path.name != "logs.py"
    for level, text in lines_of(path)
)
EVENTS = [(logging.getLevelName(logs.LEVELS[kind]), logs._SENTENCES[kind]) for kind in logs.LEVELS]


@pytest.mark.parametrize(("level", "text"), [*EVENTS, *OTHERS])
def test_line_is_on_the_page(level: str, text: str) -> None:
    """Somebody reads it at night and looks for it here."""
    rows = rows_with(text)
    assert rows, f"not on the page: {text}"
    assert any(f"| {level} |" in row for row in rows), f"{level} is not in {rows}"


def test_lines_are_found() -> None:
    """The search itself: without it the test above would prove nothing."""
    texts = [text for _, text in OTHERS]
    assert len(texts) > 20
    assert any("could not be kept invisible" in text for text in texts)
