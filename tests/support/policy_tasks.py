"""Tasks for ``celery_app`` that lock some of their calls only, or take a second lock inside."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_locks import LockedTask
from tests.support.celery_app import note, noted, pass_gate
from tests.support.keys import key_alone


def add_policy_tasks(app: Celery) -> None:
    bound: dict[str, Any] = {"base": LockedTask, "bind": True, "shared": False}

    @app.task(
        name="partly",
        lock_key=lambda key, gate=None: key,
        lock_scope="queued+running",
        lock_ttl=1,
        **bound,
    )
    def partly(self: Any, key: str | None, gate: str | None = None) -> Any:
        with noted(app, self):
            pass_gate(app, gate)
            self.lock.check()
        return self.lock.name

    @app.task(name="fails", lock_key=key_alone, **bound)
    def fails(self: Any, key: str, gate: str | None = None) -> None:
        with noted(app, self):
            pass_gate(app, gate)
            raise ValueError(key)

    @app.task(name="deaf", lock_key=key_alone, **bound)
    def deaf(self: Any, key: str, gate: str | None = None) -> None:
        with noted(app, self):
            while True:
                try:
                    pass_gate(app, gate)
                    return
                except Exception:
                    note(app, "ignored", self)

    def enter(task: Any, inner: str, on_conflict: str, wait: float | None) -> Any:
        note(app, "begin", task)
        try:
            with task.locks.hold(inner, on_conflict=on_conflict, wait=wait) as lease:
                with noted(app, task, inner=lease.name):
                    task.lock.check()
        except Exception:  # what many bodies have around their work
            note(app, "caught", task)
            raise
        return [task.lock.name, inner, task.request.retries]

    # Retried by Celery for any error: a busy lock must not be one.
    retried: dict[str, Any] = {"autoretry_for": (Exception,), "max_retries": 1, **bound}

    @app.task(name="inside", lock_key=key_alone, **retried)
    def inside(
        self: Any, key: str, inner: str, on_conflict: str = "requeue", wait: float | None = None
    ) -> Any:
        return enter(self, inner, on_conflict, wait)

    @app.task(name="inside_queued", lock_key=key_alone, lock_scope="queued+running", **retried)
    def inside_queued(self: Any, key: str, inner: str) -> Any:
        return enter(self, inner, "requeue", None)

    @app.task(
        name="inside_late",
        lock_key=key_alone,
        lock_at_least=3,
        lock_once=60,
        lock_reuse="never",
        acks_late=True,
        **retried,
    )
    def inside_late(self: Any, key: str, inner: str) -> Any:
        return enter(self, inner, "requeue", None)

    @app.task(name="inside_unlocked", lock_enabled=False, **retried)
    def inside_unlocked(self: Any, key: str, inner: str) -> Any:
        return enter(self, inner, "requeue", None)
