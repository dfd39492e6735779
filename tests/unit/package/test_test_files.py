"""Whoever opens a module finds its tests: ``tests/unit`` mirrors the package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
# They test the package as a whole, the tools of the tests, and the benchmarks.
APART = ("package", "support", "benchmarks")


def modules_in(folder: Path) -> list[str]:
    """Return the names of the modules and packages in a folder of the package."""
    return [path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()]


@pytest.mark.parametrize(
    "path",
    [
        path.relative_to(UNIT)
        for path in sorted(UNIT.rglob("test_*.py"))
        if path.relative_to(UNIT).parts[0] not in APART
    ],
    ids=str,
)
def test_file_is_named_after_a_module(path: Path) -> None:
    """``test_lease.py`` or ``test_lease_…py`` are the tests of ``lease.py`` in the same folder."""
    subject = path.stem.removeprefix("test_")
    assert any(
        subject == module or subject.startswith(f"{module}_")
        for module in modules_in(ROOT / "celery_locks" / path.parent)
    ), f"celery_locks/{path.parent} has no module {subject}"
