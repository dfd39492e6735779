"""Deadlines need a clock that counts suspend and never jumps."""

import time

import pytest
import time_machine

from celery_locks import clock


def test_now_counts_suspend_where_the_system_can() -> None:
    wanted = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert wanted == clock._CLOCK
    assert abs(clock.now() - time.clock_gettime(wanted)) < 5


def test_now_never_goes_back() -> None:
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_now_is_not_moved_by_wall_time(jump: float) -> None:
    before = clock.now()
    with time_machine.travel(time.time() + jump):
        assert before <= clock.now() < before + 60
