"""How long tasks usually hold their locks, from those that ended."""

from __future__ import annotations

from typing import Any

from celery_locks import Locks, admin
from tests.support.held_locks import held_for, take


def test_usual_tells_when_it_is_likely_to_end(locks: Locks, clock: Any) -> None:
    held_for(locks, clock, 3, 245, 9000)
    take(locks, "a", worker="w", task="bill", task_id="t", ttl=600)
    clock.shift(185)
    detail = admin.info(locks, "a")
    assert detail
    assert detail.usual == admin.Usual(245.0, 3)
    assert detail.likely_to_end_in == 60.0
    fields = detail.as_dict()
    assert (fields["usual"], fields["likely_to_end_in"]) == ({"held_for": 245.0, "holds": 3}, 60.0)
    why = admin.why(locks, "a").sentences
    assert (
        "It usually takes 4 min 5 s (3 past holds), so it is likely to end in about 1 min 0 s."
        in why
    )


def test_usual_tells_that_it_takes_longer(locks: Locks, clock: Any) -> None:
    held_for(locks, clock, 4)
    take(locks, "a", worker="w", task="bill", task_id="t", ttl=600)
    clock.shift(12)
    detail = admin.info(locks, "a")
    assert detail
    assert detail.likely_to_end_in is None
    assert (
        "It usually takes 4 s (1 past hold); it has already taken 3.0 × as long."
        in admin.why(locks, "a").sentences
    )


def test_usual_is_of_tasks_at_work_only(locks: Locks, clock: Any) -> None:
    """A message in the queue, another task, a plain process: nobody knows."""
    held_for(locks, clock, 60, 60)
    take(locks, "queued", task="bill", task_id="q", retries=-1)
    take(locks, "other", task="mail", task_id="t")
    take(locks, "plain", host="h")
    for name in ("queued", "other", "plain"):
        detail = admin.info(locks, name)
        assert detail
        assert (detail.usual, detail.likely_to_end_in) == (None, None)
        assert not any("usual" in sentence for sentence in admin.why(locks, name).sentences)
