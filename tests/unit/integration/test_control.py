"""Remote control commands of a worker, called without one."""

from __future__ import annotations

from types import SimpleNamespace

from celery import Celery

from celery_locks import admin
from celery_locks.integration import control as remote
from celery_locks.testing import in_memory_locks
from tests.support.held_locks import take


def test_remote_control_refuses_a_wrong_reason() -> None:
    """An answer with the error reaches who asked; an exception is a line in a worker's log."""
    app = Celery("t", broker="memory://", set_as_current=False)
    state = SimpleNamespace(app=app, hostname="w")
    with in_memory_locks(app) as locks:
        take(locks, "a", worker="w")
        for wrong in ("\ud800", 5, ["why"]):
            assert "reason" in remote.release_own_lock(state, "a", wrong)["error"]
        assert "name" in remote.release_own_lock(state, "\ud800")["error"]
        [freed] = remote.release_own_lock(state, "a", "x" * 2_000_000)["ok"]["freed"]
        assert freed["token"] == "token of a"
        [act] = admin.history(locks)
        assert (act.by, act.why) == ("celery control at w", "x" * 500)
