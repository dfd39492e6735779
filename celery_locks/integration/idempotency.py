"""The task option ``once``: ``core/idempotency.py`` with Celery's result serializer."""

from __future__ import annotations

import base64
from typing import Any

from kombu import serialization

from celery_locks.core.idempotency import Codec, Once
from celery_locks.options import LockOptions

_PICKLE = "application/x-python-serialize"


def once_of(task: Any, options: LockOptions, name: str) -> Once:
    """Return the rule for completed work."""
    codec = codec_for(task.app.conf.result_serializer)
    return Once(f"o:{name}", options.once, options.reuse, codec, options.once_failed)


def join_of(task: Any, name: str, ttl: float) -> Once:
    """Return the rule for the result of a run that others join; it is kept for ``ttl``."""
    return Once(f"j:{name}", ttl, "failed_only", codec_for(task.app.conf.result_serializer))


def codec_for(serializer: str) -> Codec:
    """Make a codec that reads only its own format, and never pickle, which could run any code.

    The lock server may have other users than the broker. Values of an app that pickles are stored
    here as JSON; a mark with a pickled result counts as completed without a result.
    """
    accepted = serialization.prepare_accept_content([serializer])
    if _PICKLE in accepted:
        serializer, accepted = "json", serialization.prepare_accept_content(["json"])

    def encode(result: Any) -> str:
        kind, encoding, payload = serialization.dumps(result, serializer=serializer)
        if isinstance(payload, bytes):
            return f"{kind} {encoding} b {base64.b64encode(payload).decode()}"
        return f"{kind} {encoding} t {payload}"

    def decode(text: str) -> Any:
        kind, encoding, form, encoded = text.split(" ", 3)
        payload = base64.b64decode(encoded) if form == "b" else encoded
        return serialization.loads(payload, kind, encoding, accept=accepted)

    return Codec(encode, decode)
