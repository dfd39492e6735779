"""All commands, by name."""

from __future__ import annotations

from celery_locks.cli.completed import once
from celery_locks.cli.manage import release, stop, sweep
from celery_locks.cli.metrics import metrics
from celery_locks.cli.overrides import limit, pause, resume
from celery_locks.cli.purge import purge
from celery_locks.cli.query import check, history, info, list_, stale, top_, why
from celery_locks.cli.rates import rate
from celery_locks.cli.web import web

COMMANDS = {
    command.name or "": command
    for command in (
        list_,
        info,
        why,
        release,
        stop,
        pause,
        resume,
        limit,
        purge,
        rate,
        stale,
        sweep,
        top_,
        history,
        check,
        once,
        metrics,
        web,
    )
}
