"""Tasks with a lock from publish time, for ``celery_app``: what each does is said in its call."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_locks import LockedTask
from tests.support.celery_app import client_of, noted, pass_gate
from tests.support.keys import key_alone

KEY = key_alone


def join_items(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    return {**later, "items": earlier["items"] + later["items"]}


class Refusing(LockedTask):
    """Refuses before the task's own call: the lock is never asked for."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if args[1] == "die":
            os.kill(os.getpid(), 9)
        raise {"error": KeyError, "ignore": Ignore, "reject": Reject}[args[1]]("before it starts")


def add_queued_tasks(app: Celery) -> None:
    bound: dict[str, Any] = {"bind": True, "shared": False}
    locked: dict[str, Any] = {"base": LockedTask, "lock_key": KEY, **bound}

    def act(task: Any, do: str | None) -> Any:
        if do == "ignore":
            raise Ignore
        if do == "reject":
            raise Reject("not this one")
        if do == "fail":
            raise KeyError(do)
        if do == "retry" and task.request.retries < 1:
            raise task.retry(countdown=1, max_retries=3)
        return None

    @app.task(name="sent", lock_scope="queued+running", **locked)
    def sent(
        self: Any, key: str, value: Any = None, gate: str | None = None, do: str | None = None
    ) -> Any:
        with noted(app, self, value=value):
            pass_gate(app, gate)
            act(self, do)
        return value

    @app.task(name="also_sent", lock_scope="queued+running", **locked)
    def also_sent(self: Any, key: str, gate: str | None = None) -> Any:
        with noted(app, self):
            pass_gate(app, gate)
        return "also"

    @app.task(
        name="sends_itself",
        lock_scope="queued+running",
        lock_on_conflict={"publish": "wait", "run": "skip"},
        lock_wait=60,
        **locked,
    )
    def sends_itself(self: Any, key: str) -> Any:
        return self.delay(key).id

    @app.task(name="refusing", base=Refusing, lock_key=KEY, lock_scope="queued", **bound)
    def refusing(self: Any, key: str, how: str) -> Any:
        return how

    @app.task(
        name="one_more",
        lock_scope="queued",
        lock_on_conflict={"publish": "return_existing", "run": "requeue"},
        **locked,
    )
    def one_more(self: Any, key: str, gate: str | None = None, lasts: float = 0.0) -> Any:
        """Looks at the counter first, as a job that reads what changed does."""
        store = client_of(app.conf.journal_url)
        seen = int(store.get(f"version:{key}") or 0)
        with noted(app, self):
            pass_gate(app, gate)
            time.sleep(lasts)
        store.set(f"seen:{key}", seen)
        return seen

    @app.task(name="settled", lock_debounce=1.5, **locked)
    def settled(self: Any, key: str, value: Any, gate: str | None = None) -> Any:
        with noted(app, self, value=value):
            pass_gate(app, gate)
        return value

    def note_items(self: Any, items: Any, gate: str | None) -> Any:
        with noted(app, self, value=items):
            pass_gate(app, gate)
        return items

    @app.task(name="quiet", lock_settle=1, lock_max_wait=1.5, **locked)
    def quiet(self: Any, key: str, items: Any, gate: str | None = None) -> Any:
        return note_items(self, items, gate)

    merging = {"lock_settle": 0.5, "lock_max_wait": 1.5, "lock_arguments": join_items}

    @app.task(name="joined", **merging, **locked)
    def joined(self: Any, key: str, items: list[Any], gate: str | None = None) -> Any:
        return note_items(self, items, gate)

    @app.task(name="first_kept", lock_debounce=1.5, lock_arguments="first", **locked)
    def first_kept(self: Any, key: str, items: Any, gate: str | None = None) -> Any:
        return note_items(self, items, gate)

    @app.task(name="listed", lock_key="*", base=LockedTask, lock_scope="queued+running", **bound)
    def listed(self: Any, items: list[Any], gate: str | None = None) -> Any:
        with noted(app, self):
            items.append("more")
            pass_gate(app, gate)
        return items

    @app.task(name="dying", lock_scope="queued+running", **locked)
    def dying(self: Any, key: str) -> Any:
        with noted(app, self):
            os.kill(os.getpid(), 9)
