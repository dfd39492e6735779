"""The events: kinds and fields from `events.py`, levels and sentences from `logs.py`."""

from __future__ import annotations

import logging
import re
from typing import get_args

from celery_locks import events, logs
from celery_locks.integration import celery_events
from celery_locks_site.event_details import details_by_kind
from celery_locks_site.markdown import code, codes, from_docstring, table, text


def kinds() -> tuple[str, ...]:
    return get_args(events.EventKind)


def page() -> str:
    details = details_by_kind()
    rows = [
        [
            code(kind),
            _level(kind),
            _sentence(kind),
            codes(sorted(details[kind])) or "–",
            code(celery_events.TYPES[kind]) if kind in celery_events.TYPES else "–",
        ]
        for kind in kinds()
    ]
    head = ["kind", "log level", "line in the log", "in `detail`", "Celery event"]
    doc = (events.__doc__ or "").partition("\n")[2]
    return f"{from_docstring(doc)}\n\n{table(head, rows)}"


def _level(kind: str) -> str:
    level = logs.LEVELS.get(kind)
    return "not logged" if level is None else logging.getLevelName(level).lower()


def _sentence(kind: str) -> str:
    """Return the line in the log with `…` for its values."""
    sentence = logs._SENTENCES.get(kind, "–")
    return text(re.sub(r"%\(\w+\)[\d.]*[a-z]", "…", sentence))
