"""Every snippet of the documentation runs, and the output that a page shows is the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page_process import run_page
from tests.docs.snippets import NOT_RUN, SnippetError, parse

DOCS = Path(__file__).parents[2] / "docs"
# Where pages are: a page belongs into a section, and at the top there is only the front page.
PAGES = [DOCS / "index.md", *sorted(DOCS.glob("[!_]*/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_page(page: Path) -> None:
    """What the documentation says is what happens."""
    report = run_page(page) if _has_work(page) else ""
    if report:
        pytest.fail(report, pytrace=False)


def _has_work(page: Path) -> bool:
    """Whether anything on the page runs."""
    try:
        return any(it.action != "skip" and it.language not in NOT_RUN for it in parse(page))
    except SnippetError as error:
        pytest.fail(str(error), pytrace=False)
