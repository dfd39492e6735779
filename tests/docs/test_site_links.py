"""The check of the built pages finds what is wrong."""

from pathlib import Path

import pytest
from celery_locks_site import links


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two pages that are right."""
    (tmp_path / "how-to").mkdir()
    (tmp_path / "site.css").write_text("a { background: url(data:image/png;base64,AA) }")
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="site.css?v=1"><p id="top">'
        '<a href="how-to/names.html#%C3%A4"></a><a href="#top"></a><a href="how-to/"></a>'
        '<a href="https://docs.celeryq.dev/"></a>'
    )
    (tmp_path / "how-to" / "names.html").write_text('<p id="ä"><a href="../index.html#top"></a>')
    (tmp_path / "how-to" / "index.html").write_text("")
    return tmp_path


def test_problems_accepts_a_good_site(site: Path) -> None:
    assert links.problems(site) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('<a href="missing.html">', "how-to/names.html: there is no missing.html"),
        (
            '<a href="../index.html#gone">',
            "how-to/names.html: there is no anchor ../index.html#gone",
        ),
        ('<a href="#gone">', "how-to/names.html: there is no anchor #gone"),
        ('<img src="x.png">', "how-to/names.html: there is no x.png"),
        ('<img src="https://x.io/a.png">', "how-to/names.html: loads https://x.io/a.png from"),
        (
            '<script src="//x.io/a.js"></script>',
            "how-to/names.html: loads //x.io/a.js from another",
        ),
        ('<link href="http://x.io/a.css">', "how-to/names.html: loads http://x.io/a.css from"),
    ],
)
def test_problems_names_the_link(site: Path, text: str, sentence: str) -> None:
    page = site / "how-to" / "names.html"
    page.write_text(page.read_text() + text)
    [found] = links.problems(site)
    assert found.startswith(sentence)


@pytest.mark.parametrize("text", ["@import 'https://x.io/f';", "p { src: url(//x.io/f.woff) }"])
def test_problems_reads_styles(site: Path, text: str) -> None:
    (site / "site.css").write_text(text)
    [found] = links.problems(site)
    assert found.startswith("site.css: loads ")
