"""Why a lock is held or a task does not run, in sentences."""

from __future__ import annotations

from celery import Celery

from celery_locks import Locks, admin
from celery_locks.types import Holder
from celery_locks.validation import QUEUED
from tests.support.held_locks import take


def test_why_tells_of_holder_and_waiters(locks: Locks) -> None:
    take(locks, "a", worker="w", task="bill", task_id="t", retries=2)
    take(locks, "a", "second", worker="w", task="bill", task_id="u", alive=60)
    text = "\n".join(admin.why(locks, "a").sentences)
    assert "Lock 'a' is held by task bill[t] on w" in text
    assert "retry 2" in text
    assert "It has 1 waiter:\n  1. task bill[u] on w" in text


def test_why_takes_a_task_id(locks: Locks) -> None:
    take(locks, "a", worker="w", task="bill", task_id="t")
    take(locks, "a", "second", worker="w", task="bill", task_id="u", alive=60)
    assert "Task t holds lock 'a'." in admin.why(locks, "t").sentences
    assert "Task u waits for lock 'a', as number 1 of 1." in admin.why(locks, "u").sentences


def test_why_finds_the_queued_message_by_the_name(locks: Locks) -> None:
    take(locks, "a" + QUEUED, task="bill", task_id="t", retries=-1, ttl=3600)
    why = admin.why(locks, "a")
    assert len(why.locks) == 1
    assert any("no worker has started" in sentence for sentence in why.sentences)


def test_why_of_a_free_lock_tells_what_was_done_to_it(locks: Locks) -> None:
    take(locks, "a", worker="w", task="bill", task_id="t")
    admin.force_release(locks, "a", reason="it hung", by="ann")
    why = admin.why(locks, "a")
    assert why.locks == ()
    text = "\n".join(why.sentences)
    assert "No lock 'a' is held" in text
    assert "ann took lock 'a' from task bill[t] on w" in text
    assert "it hung" in text


def test_why_tells_of_a_skip(locks: Locks) -> None:
    app = Celery("t", broker="memory://", backend="cache+memory://", set_as_current=False)
    value = {"skipped": True, "lock": "a", "holder": Holder(task_id="t", worker="w").as_dict()}
    app.backend.store_result("u", value, "SUCCESS")
    app.conf.worker_enable_remote_control = False
    sentences = admin.why(locks, "u", app).sentences
    assert any(
        "skipped because lock 'a' was held by task [t] on w" in sentence for sentence in sentences
    )
