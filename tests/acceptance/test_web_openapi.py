"""The OpenAPI document is correct: schemathesis generates valid and invalid requests from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import strategies
from schemathesis.config import SchemathesisConfig

from celery_locks import Locks
from celery_locks.types import Holder, LockSpec
from celery_locks.validation import NAME_BYTES
from celery_locks.web import create_app
from tests.servers.embedded import EmbeddedServer
from tests.support.web import READ, WRITE

HELD = ("invoice:42", "a/b?c=d&e", "<script>\n\u202e")
_tokens = itertools.count()

schemathesis.openapi.format(
    "lock-name",
    strategies.sampled_from(HELD)
    | strategies.text(min_size=1).filter(
        lambda name: len(name.encode(errors="replace")) <= NAME_BYTES
    ),
)
schemathesis.openapi.format("rate", strategies.sampled_from(["1/s", "30/m", "10/s 500/h"]))


class Late:
    """The app; replaced once there is a server, because tests are collected before that."""

    def __init__(self) -> None:
        self.use(Locks.from_url("redis://127.0.0.1:1"))

    def use(self, locks: Locks) -> None:
        self._app = create_app(
            locks, read_keys=[READ], write_keys=[WRITE], requests_per_minute=10_000_000
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


app = Late()
CONFIG = {
    "seed": 1,
    "suppress-health-check": ["all"],  # a busy machine is no fault of the description
    "auth": {"openapi": {"key": {"api_key": WRITE}, "bearer": {"bearer": WRITE}}},
    "generation": {"max-examples": 10, "deterministic": True, "mode": "all"},
}
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", app, config=SchemathesisConfig.from_dict(CONFIG)
)


@pytest.fixture(scope="module")
def locks() -> Iterator[Locks]:
    with EmbeddedServer() as server:
        locks = Locks.from_url(server.url)
        app.use(locks)
        yield locks
        locks.close()


@schema.parametrize()
def test_answers_are_as_described(case: Any, locks: Locks) -> None:
    """Every generated request is answered as described, with all checks on."""
    for name in HELD:
        if not locks.holders(name):
            holder = Holder(task_id="t1", task=name, worker=name)
            locks.perform(locks.commands.acquire(LockSpec(name, 60), f"t{next(_tokens)}", holder))
    _hurry(case)
    case.call_and_validate()


def _hurry(case: Any) -> None:
    """Shorten a valid grace period: no holder here releases anything on its own."""
    grace = case.body.get("grace") if isinstance(case.body, dict) else None
    if isinstance(grace, int | float) and 0 < grace <= 60 and not isinstance(grace, bool):
        case.body["grace"] = 0.001
