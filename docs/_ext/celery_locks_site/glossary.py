"""The glossary: the table in CONTRIBUTING.md, which is its source."""

from __future__ import annotations

from pathlib import Path

_SOURCE = Path(__file__).parents[3] / "CONTRIBUTING.md"


def page() -> str:
    section = _SOURCE.read_text().partition("\n## Glossary\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    if not table:
        raise ValueError("CONTRIBUTING.md has no table in a section Glossary")
    return "\n".join(table) + "\n"
