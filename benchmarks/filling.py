"""Many held locks on a server, as workers write them, in a short time."""

from __future__ import annotations

import hashlib
import uuid

from celery_locks import Holder
from celery_locks.store import scripts
from celery_locks.store.commands.locks import LockCommands
from celery_locks.types import LockSpec
from tests.servers.embedded import EmbeddedServer

TTL = 3600.0
COMMANDS = LockCommands()


def fill(server: EmbeddedServer, count: int, first: int = 0) -> None:
    """Acquire the locks from number ``first`` up to ``count``: in pipelines, without a renewer."""
    with server.client() as client:
        client.script_load(scripts.ACQUIRE.text)
        for start in range(first, count, 1000):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, min(start + 1000, count)):
                call = COMMANDS.acquire(
                    LockSpec(name_of(number), TTL), token_of(number), holder_of(number)
                )
                keys = (*scripts.ACQUIRE.shard_keys(call.root), *call.keys)
                pipeline.evalsha(scripts.ACQUIRE.sha, len(keys), *keys, *call.args)
            assert all(isinstance(fence, int) for fence in pipeline.execute())


def name_of(number: int) -> str:
    return f"invoices.sync:customer={number:06}"


def token_of(number: int) -> str:
    return hashlib.sha1(name_of(number).encode()).hexdigest()[:24]


def holder_of(number: int) -> Holder:
    """Return a holder as a worker writes it."""
    return Holder(
        task_id=str(uuid.uuid4()),
        task="shop.tasks.sync_invoices",
        worker=f"celery@worker-{number % 8}.internal",
        host=f"worker-{number % 8}.internal",
        pid=4242 + number % 16,
    )
