"""The former name of ``celery_locks.functions``; both are supported."""

from celery_locks.functions import (
    acquire_task_lock,
    configure,
    extend_task_lock,
    force_release_task_lock,
    get_lock_holder,
    get_lock_info,
    get_lock_ttl,
    is_task_locked,
    list_all_task_locks,
    release_task_lock,
    task_lock_context,
)

__all__ = [
    "acquire_task_lock",
    "configure",
    "extend_task_lock",
    "force_release_task_lock",
    "get_lock_holder",
    "get_lock_info",
    "get_lock_ttl",
    "is_task_locked",
    "list_all_task_locks",
    "release_task_lock",
    "task_lock_context",
]
