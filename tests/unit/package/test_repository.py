"""What GitHub, PyPI and pre-commit read is well-formed, and says what is true here.

None of them runs here: a mistake would be seen first on the day of a release.
"""

from __future__ import annotations

import csv
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = "https://github.com/celery-locks/celery-locks"
# An action is pinned to a major version; PyPI's own is a branch of that meaning.
PINNED = re.compile(r"actions/[a-z-]+@v\d+|pypa/gh-action-pypi-publish@release/v1")


def load(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_has_what_github_requires(path: Path) -> None:
    """And no right that it does not need: what is not granted for all is granted for one job."""
    workflow = load(path)
    assert workflow["name"] == path.stem
    assert workflow[True]  # `on`, as YAML 1.1 reads it
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 60
        assert set(job.get("needs", "").split()) <= workflow["jobs"].keys()
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        assert "run" in step or PINNED.fullmatch(step["uses"])
        assert "${{" not in step.get("run", ""), "a value in a script could be a command"


def test_ci_runs_what_developers_run() -> None:
    workflow = load(GITHUB / "workflows/ci.yml")
    commands = {step.get("run", "").partition(" #")[0] for step in steps(workflow)}
    assert {"bash .ci/run", "make release"} <= commands


def test_ci_runs_every_pair_of_versions_that_the_site_names() -> None:
    """The oldest are a part of .ci/run itself; the rest are the cells of the matrix."""
    workflow = load(GITHUB / "workflows/ci.yml")
    cells = workflow["jobs"]["suite"]["strategy"]["matrix"]["include"]
    in_ci = {(cell["python"], cell["celery"], cell["redis_py"]) for cell in cells}
    with (ROOT / "docs/project/compatibility.csv").open() as file:
        named = [(row["python"], row["celery"], row["redis_py"]) for row in csv.DictReader(file)]
    oldest = dict(
        re.findall(r"^(celery|redis)==(\S+)", (ROOT / "tests/oldest.txt").read_text(), re.M)
    )
    newest = named[0][1:]
    on_site = {
        (python, "newest", "newest") if (celery, redis_py) == newest else (python, celery, redis_py)
        for python, celery, redis_py in named
        if (celery, redis_py) != (oldest["celery"], oldest["redis"])
    }
    assert in_ci == on_site
    assert len(on_site) < len(named), "the oldest are on the page too"


def test_publishing_needs_no_secret_and_signs() -> None:
    """Trusted publishing: the one right, in the one job that uploads what another job built."""
    workflow = load(GITHUB / "workflows/publish.yml")
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert "permissions" not in build
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    assert publish["needs"] == "build"
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert publish["steps"][-1]["with"] == {"attestations": True}
    assert "secrets." not in (GITHUB / "workflows/publish.yml").read_text()
    assert [step.get("run") for step in build["steps"]].count("make release") == 1


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_issue_form_is_one(name: str) -> None:
    form = load(GITHUB / f"ISSUE_TEMPLATE/{name}.yml")
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown")
        assert field["attributes"]["label"]


def test_bug_form_names_commands_that_exist() -> None:
    import click

    from celery_locks.cli import locks

    text = (GITHUB / "ISSUE_TEMPLATE/bug.yml").read_text()
    named = set(re.findall(r"celery -A \w+ locks (\w+)", text))
    assert named == {"check", "why"}
    assert named <= set(locks.list_commands(click.Context(locks)))


def test_addresses_are_those_of_one_repository() -> None:
    assert PROJECT["project"]["urls"].keys() == {"Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith(REPOSITORY) for url in PROJECT["project"]["urls"].values())
    for contact in load(GITHUB / "ISSUE_TEMPLATE/config.yml")["contact_links"]:
        assert contact["url"].startswith(REPOSITORY)


def test_classifiers_name_the_pythons_that_ci_runs() -> None:
    """A classifier is a promise; so is the lower bound."""
    workflow = load(GITHUB / "workflows/ci.yml")
    in_ci = {cell["python"] for cell in workflow["jobs"]["suite"]["strategy"]["matrix"]["include"]}
    classifiers = PROJECT["project"]["classifiers"]
    prefix = "Programming Language :: Python :: 3."
    assert {c.rpartition(" ")[2] for c in classifiers if c.startswith(prefix)} == in_ci
    assert PROJECT["project"]["requires-python"] == f">={min(in_ci)}"
    assert classifiers == sorted(classifiers)


def test_hooks_are_the_tools_of_make_check() -> None:
    """All from .venv: a hook needs no network, and has the version that CI uses."""
    config = load(ROOT / ".pre-commit-config.yaml")
    [repo] = config["repos"]
    assert repo["repo"] == "local"
    entries = {hook["id"]: hook["entry"] for hook in repo["hooks"]}
    assert all(hook["language"] == "system" for hook in repo["hooks"])
    makefile = (ROOT / "Makefile").read_text()
    check = makefile.partition("\ncheck:")[2].partition("\n\n")[0].replace("$(BIN)", ".venv/bin")
    assert entries.keys() == {"ruff-format", "ruff-check", "mypy", "architecture", "check"}
    assert entries["mypy"] in check
    for hook in ("ruff-format", "ruff-check"):
        assert " ".join(entries[hook].split()[:2]) in check
    assert entries["check"] == "make check"
