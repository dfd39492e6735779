"""Files of this repository that a page names exist: a page must not point at what was moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("[!_]*/**/*.md"))
NAMED = re.compile(r"`((?:tests|benchmarks|examples|celery_locks)/[\w./-]+\.\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_named_files_exist(page: Path) -> None:
    missing = [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).is_file()]
    assert missing == []
