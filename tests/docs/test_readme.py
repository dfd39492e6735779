"""The README is short, its example works, and its links lead somewhere."""

import re
from pathlib import Path

from tests.support.page_code import Bench

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text()


def test_readme_is_short() -> None:
    """It is read in two minutes; the rest is in docs/."""
    assert len(TEXT.split()) <= 600


def test_readme_example_runs_one_at_a_time() -> None:
    """The example as it stands, with work instead of the three dots."""
    with Bench(README, "shop", {}, {}) as bench:
        module = bench.directory / "shop.py"
        code = module.read_text()
        assert code.count("    ...  #") == 1
        module.write_text(code.replace("    ...  #", "    __import__('work').work(invoice_id)  #"))
        with bench.worker():
            first = bench.send("bill", 42)
            run = bench.wait_run(1)
            second = bench.get(bench.send("bill", 42))
            assert second["skipped"] is True
            assert second["lock"] == "invoice:42"
            bench.finish(run)
            assert bench.get(first) is None
            third = bench.send("bill", 42)
            bench.finish(bench.wait_run(2))
            assert bench.get(third) is None


def test_readme_links_lead_to_files() -> None:
    """Also its pictures; a page may be missing only together with its whole section."""
    targets = [ROOT / target for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)]
    assert len(targets) > 20
    missing = [target for target in targets if not target.exists() and target.parent.exists()]
    assert not missing
