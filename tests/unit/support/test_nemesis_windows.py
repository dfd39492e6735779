"""The judge of nemesis rows convicts what it should: one that finds nothing proves nothing."""

from typing import Any

import pytest

from tests.nemesis import windows
from tests.nemesis.faults.fault import Fault
from tests.nemesis.journal import Run, read_runs
from tests.nemesis.promises import COLUMNS, NO_OCCASION, Cell, Observation, judge
from tests.nemesis.table import Row, markdown
from tests.nemesis.tasks import TTL, limit_of

LOCK, PAIR = "row:long", "row:pair"


def lines_of(job: str, *signs: tuple[str, float, float], **more: Any) -> list[dict[str, Any]]:
    """The lines of one run: what, when, and the deadline that it knew then."""
    run = {"run": f"{job} {signs[0][1]}", "job": job, "lock": LOCK, "pid": 1, "fence": 1, **more}
    return [{**run, "what": what, "at": at, "deadline": deadline} for what, at, deadline in signs]


def a_run(job: str, start: float, last: float, fence: int = 1, **more: Any) -> Run:
    fields = {"lock": LOCK, "pid": 1, "deadline": last + TTL, "outcome": "ended", **more}
    return Run(job=job, start=start, last_sign=last, fence=fence, **fields)


def lost(job: str, start: float, last: float, fence: int = 1, **more: Any) -> Run:
    return a_run(job, start, last, fence, **{"told": last, "outcome": "lost", **more})


def test_run_without_a_last_line_is_gone_at_its_last_sign():
    """A killed process writes nothing more, and holds nothing more."""
    [run] = read_runs(lines_of("a", ("start", 1, 4), ("tick", 2, 5)))
    assert (run.outcome, run.last_sign, run.inside_until) == ("gone", 2, 2)


def test_run_that_is_told_late_was_inside_until_its_deadline():
    """A stopped process believes nothing; its deadline passes all the same."""
    [run] = read_runs(lines_of("a", ("start", 1, 4), ("tick", 2, 4), ("lost", 9, 4)))
    assert (run.outcome, run.last_sign, run.told, run.inside_until) == ("lost", 2, 9, 4)


def test_run_that_is_told_early_was_inside_until_then():
    [run] = read_runs(lines_of("a", ("start", 1, 4), ("tick", 2, 5), ("lost", 3, 5)))
    assert run.inside_until == 3


def test_runs_are_in_the_order_of_their_starts():
    lines = lines_of("b", ("start", 2, 4)) + lines_of("a", ("start", 1, 4))
    assert [run.job for run in read_runs(lines)] == ["a", "b"]


@pytest.mark.parametrize(
    ("limit", "intervals", "seconds"),
    [
        (1, [], 0),
        (1, [(1, 2), (2, 3)], 0),
        (1, [(1, 3), (2, 4)], 1),
        (1, [(1, 9), (2, 3), (4, 6)], 3),
        (2, [(1, 5), (2, 6)], 0),
        (2, [(1, 5), (2, 6), (3, 4)], 1),
        (1, [(1, 5), (2, 6), (3, 4)], 3),
    ],
)
def test_time_above_the_limit_is_added_up(limit, intervals, seconds):
    assert windows.seconds_above(limit, intervals) == seconds


def test_two_inside_their_deadlines_are_a_crowd():
    """The window after FLUSHALL: another is granted what the first still believes to hold."""
    runs = [lost("a", 1.0, 5.0), a_run("b", 4.0, 8.0, fence=2)]
    assert windows.crowded(runs, limit_of) == 1.0
    assert windows.crowded([lost("a", 1.0, 5.0, deadline=4.0), runs[1]], limit_of) == 0.0


def test_semaphore_has_room_for_its_limit():
    runs = [a_run(job, 1.0, 5.0, fence, lock=PAIR) for fence, job in enumerate("abc")]
    assert windows.crowded(runs[:2], limit_of) == 0.0
    assert windows.crowded(runs, limit_of) == 4.0


def test_locks_do_not_crowd_each_other():
    runs = [a_run("a", 1.0, 5.0), a_run("b", 1.0, 5.0, lock="row:brief")]
    assert windows.crowded(runs, limit_of) == 0.0


def test_job_that_runs_twice_at_once_is_found_whatever_its_lock():
    runs = [a_run("a", 1.0, 5.0), a_run("a", 4.5, 6.0, fence=2), a_run("a", 7.0, 8.0, fence=3)]
    assert windows.doubled(runs) == 0.5
    assert windows.doubled([runs[0], runs[2]]) == 0.0


def test_lock_of_a_dead_holder_is_free_at_the_next_run():
    runs = [a_run("a", 1.0, 2.0, outcome="gone"), a_run("b", 4.5, 5.0, fence=2)]
    assert windows.freed_after(runs, limit_of) == 2.5
    assert windows.freed_after(runs, limit_of, server_back=4.0) == 0.5
    assert windows.freed_after(runs[1:], limit_of) is None


def test_lock_that_is_never_given_again_is_taken_until_the_end():
    runs = [a_run("a", 1.0, 2.0, outcome="gone"), a_run("b", 8.0, 9.0, lock="row:brief")]
    assert windows.freed_after(runs, limit_of) == 7.0


def test_lock_that_was_given_away_before_is_free_at_once():
    runs = [lost("a", 1.0, 5.0), a_run("b", 4.0, 8.0, fence=2), a_run("c", 9.0, 9.5, fence=3)]
    assert windows.freed_after(runs, limit_of) == 0.0


def test_loss_is_counted_from_the_earliest_moment_at_which_it_was_one():
    """Its own deadline, the server's loss of memory, the grant to another."""
    run = lost("a", 1.0, 5.0, deadline=4.75)
    other = a_run("b", 4.0, 6.0, fence=2)
    assert windows.learned_after([run], limit_of) == 0.25
    assert windows.learned_after([run, other], limit_of) == 1.0
    assert windows.learned_after([run, other], limit_of, forgotten=2.0) == 3.0
    assert windows.learned_after([run], limit_of, forgotten=0.5) == 0.25
    assert windows.learned_after([other], limit_of) is None


def test_task_that_does_not_work_after_its_deadline_learned_in_time():
    assert windows.learned_after([lost("a", 1.0, 3.0, deadline=4.0, told=9.0)], limit_of) == 0.0


def test_callers_continue_when_each_lock_has_a_new_run():
    runs = [a_run("a", 1.0, 2.0), a_run("b", 5.0, 6.0), a_run("c", 5.5, 6.0, lock=PAIR)]
    assert windows.continued_after(runs, 4.0, [LOCK, PAIR]) == 1.5
    assert windows.continued_after(runs, 5.25, [LOCK, PAIR]) is None


def test_job_that_never_ended_is_lost():
    runs = [lost("a", 1.0, 2.0), a_run("b", 3.0, 4.0)]
    assert windows.lost_jobs(["a", "b", "c"], runs) == ["a", "c"]


@pytest.mark.parametrize(
    ("start", "fence", "errors"),
    [(3.0, 8, 0), (3.0, 7, 1), (3.0, 6, 1), (1.5, 6, 0), (1.5, 7, 1)],
)
def test_fence_must_rise_after_the_end_of_the_run_before(start, fence, errors):
    """Two that overlap write in any order, but not the same number."""
    runs = [a_run("a", 1.0, 2.0, 7), a_run("b", start, 4.0, fence)]
    assert windows.fence_errors(runs, limit_of) == errors


@pytest.mark.parametrize(("fence", "errors"), [(6, 0), (7, 1)])
def test_slot_of_a_semaphore_may_be_granted_first_and_start_last(fence, errors):
    """The reply to its grant was lost, and it asked again."""
    runs = [a_run("a", 1.0, 2.0, 7, lock=PAIR), a_run("b", 3.0, 4.0, fence, lock=PAIR)]
    assert windows.fence_errors(runs, limit_of) == errors


def a_fault(**more: Any) -> Fault:
    return Fault("wiped", "all is wiped", cause=lambda rig, run: None, **more)  # type: ignore


def observed(*runs: Run, fault: Fault, stall: float = 0.0, published: str = "ab") -> Observation:
    return Observation(fault, runs, list(published), [LOCK], began=4.0, healed=4.0, stall=stall)


def test_promises_that_hold_say_so():
    runs = (a_run("a", 1.0, 4.0), a_run("b", 4.5, 6.0, fence=2))
    cells = judge(observed(*runs, fault=a_fault()))
    assert all(cell.holds for cell in cells.values())
    assert cells["lock free again"] == cells["task learns of a loss"] == NO_OCCASION
    assert [str(cell) for cell in cells.values()] == [
        *("holds", "holds", "–", "–", "holds", "holds", "holds, 0.5 s")
    ]


def test_promises_that_are_broken_say_for_how_long():
    """A lease that outlives its lock, a task that never learns of it, a job that is lost."""
    runs = (lost("a", 1.0, 9.0, deadline=9.5), a_run("b", 5.5, 7.0, fence=1))
    cells = judge(observed(*runs, fault=a_fault(forgets="at once"), published="abc"))
    assert str(cells["at most `limit` inside"]) == "broken for 1.5 s"
    assert str(cells["fences rise"]) == "broken: 1"
    assert str(cells["task learns of a loss"]) == "broken for 5.0 s"
    assert str(cells["no job lost"]) == "broken: 2"


def test_short_window_is_not_rounded_down_to_nothing():
    assert str(Cell(False, 0.01)) == "broken for < 0.1 s"
    assert str(Cell(True, 0.0)) == "holds, 0.0 s"


def test_bound_is_missed_only_by_more_than_the_machine_took():
    runs = (a_run("a", 1.0, 4.0, outcome="gone"), a_run("b", 8.5, 9.0, fence=2))
    fault = a_fault(free_within=4.0)
    late, excused = (
        judge(observed(*runs, fault=fault, stall=stall))["lock free again"] for stall in (0.0, 0.5)
    )
    assert (late, excused) == (Cell(False, 4.5), Cell(True, 4.5))


def test_callers_that_never_continue_break_the_promise():
    cells = judge(observed(a_run("a", 1.0, 6.0), fault=a_fault(), published="a"))
    assert str(cells["waiting callers go on"]) == "broken for 2.0 s"


def test_table_says_why_a_row_is_missing():
    row = Row(a_fault(), {}, skipped="libfaketime is not installed.")
    assert markdown([row]).count("| – ") == len(COLUMNS)
    assert "Not measured: all is wiped. libfaketime is not installed." in markdown([row])
