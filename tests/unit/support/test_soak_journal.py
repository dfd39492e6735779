"""The judge of soak runs convicts what it should: a judge that finds nothing proves nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.journal import Journal, judge

ROOT = Path(__file__).parents[3]


def line(what: str, job: str, fence: int = 0, account: int = 1) -> dict:
    return {"what": what, "job": job, "account": account, "fence": fence}


def test_job_that_was_killed_and_ran_again_completed_once():
    verdict = judge(["a"], [line("start", "a", 1), line("start", "a", 2), line("end", "a", 2)])
    assert (verdict.started, verdict.completed, verdict.completed_twice) == (2, 1, 0)
    assert verdict.excludes
    assert not verdict.lost


def test_job_without_an_end_is_lost():
    assert judge(["a", "b"], [line("start", "a"), line("end", "b")]).lost == ("a",)


def test_job_with_two_ends_completed_twice():
    assert judge(["a"], [line("end", "a"), line("end", "a")]).completed_twice == 1


@pytest.mark.parametrize("second", [5, 4])
def test_fence_that_does_not_increase_is_an_error(second):
    lines = [line("start", "a", 5), line("start", "b", second)]
    assert judge(["a", "b"], lines).fence_errors == 1
    assert not judge(["a", "b"], lines).excludes


def test_fences_of_two_accounts_are_independent():
    assert judge([], [line("start", "a", 5), line("start", "b", 4, account=2)]).excludes


def test_two_runs_of_one_account_overlap(tmp_path):
    journal = Journal(tmp_path)
    with journal.run("a", 1, 1), journal.run("b", 1, 2), journal.run("c", 2, 3):
        pass
    assert judge("abc", journal.lines()).overlaps == 1


def test_killed_run_does_not_overlap_with_the_next(tmp_path):
    """The kernel releases what a dead process held: a kill is not an overlap."""
    code = (
        "import os, pathlib, sys; from tests.soak.journal import Journal\n"
        "with Journal(pathlib.Path(sys.argv[1])).run('a', 1, 1): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    journal = Journal(tmp_path)
    with journal.run("b", 1, 2):
        pass
    assert [entry["what"] for entry in journal.lines()] == ["start", "start", "end"]
    assert judge("ab", journal.lines()).overlaps == 0
