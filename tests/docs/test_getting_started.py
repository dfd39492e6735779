"""docs/getting-started beyond its snippets: the decision table, and the pictures of the demo."""

import re
from pathlib import Path

import pytest
from celery import Celery

from celery_locks import LockedTask, single_instance
from examples import _demo_pictures

DOCS = Path(__file__).parents[2] / "docs"
LINES = re.findall(
    r"\| `((?:@single_instance|…, ).*)` \|$",
    (DOCS / "getting-started" / "which-option.md").read_text(),
    re.MULTILINE,
)
OUTPUT = """
Starting ...


1. Five tasks.

    lock   held by
    (none)


   4 were skipped & said so.


2. Three invoices.

Done.
"""


def test_decision_table_covers_the_problems() -> None:
    assert len(LINES) > 15


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_decision_table_is_accepted(line: str) -> None:
    """An option that is misspelt, or has no effect beside the others, is refused."""
    app = Celery("shop", broker="redis://localhost:6379/0", set_as_current=False)
    line = line.replace("` `", " ")  # a long one is written in two parts
    if line.startswith("…, "):
        line = f"""@single_instance(key="invoice:{{id}}", {line.removeprefix("…, ")})"""
    names = {"single_instance": single_instance, "merge": lambda earlier, later: later}
    decorate = eval(line.removeprefix("@"), names)

    @app.task(base=LockedTask, shared=False)
    @decorate
    def work(id: int) -> None: ...

    assert work.lock_options().key is not None


def test_demo_is_split_into_its_steps() -> None:
    first, second = _demo_pictures.steps_of(OUTPUT)
    assert first.endswith("   4 were skipped & said so.")
    assert second == "2. Three invoices."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_of_the_demo_loads_nothing(scheme: str) -> None:
    """A page that is read offline shows it all the same, and nobody else learns who reads it."""
    [step, _] = _demo_pictures.steps_of(OUTPUT)
    drawn = _demo_pictures.draw(step, _demo_pictures.THEMES[scheme], "demo")
    stored = [path.read_text() for path in (DOCS / "_static").glob(f"demo-?-{scheme}.svg")]
    assert len(stored) == 4
    for svg in (drawn, *stored):
        assert set(re.findall(r"https?://[^\"]+", svg)) == {"http://www.w3.org/2000/svg"}
        assert "@font-face" not in svg
