"""A skipped task inside a canvas, with a real worker: what docs/how-to/canvas.md says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chord, group

from celery_locks import LockConflict, is_skipped, without_skipped
from tests.support.celery_worker import PATIENCE, Rig, fresh_rig

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig, rig.worker():
        yield rig


def test_a_chord_body_can_leave_out_the_members_that_were_skipped(rig: Rig) -> None:
    """The body gets a skipped member's dict among the results; a sum over them would fail."""
    work = rig.task("work")
    members = [work.s("free"), work.s("busy"), work.s("also free")]
    with rig.locks.hold("busy"):
        plain = chord(members)(rig.task("gather").s())
        values = plain.get(timeout=PATIENCE)
        ran = chord(members)(rig.task("gather_ran").s())
        assert ran.get(timeout=PATIENCE) == ["free", "also free"]
    assert [is_skipped(value) for value in values] == [False, True, False]
    assert values[1]["lock"] == "busy"


def test_the_results_of_a_group_are_told_apart_by_the_caller(rig: Rig) -> None:
    work = rig.task("work")
    with rig.locks.hold("busy"):
        values = group(work.s("free"), work.s("busy"))().get(timeout=PATIENCE)
    assert without_skipped(values) == ["free"]


def test_a_link_of_a_chain_raises_instead(rig: Rig) -> None:
    """The next link would be run on the dict."""
    with rig.locks.hold("busy"):
        result = (rig.task("work").s("busy") | rig.task("echo").s()).apply_async()
        with pytest.raises(LockConflict):
            result.get(timeout=PATIENCE)


def test_a_direct_call_returns_the_skip(rig: Rig) -> None:
    work = rig.task("work")
    with rig.locks.hold("busy"):
        assert is_skipped(work("busy"))
