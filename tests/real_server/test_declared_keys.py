"""The check for undeclared keys, which the contract suite uses, finds them."""

from contextlib import closing

import pytest

from celery_locks import Locks
from celery_locks.store import scripts
from celery_locks.store.effects import Call
from celery_locks.store.scripts import Script
from tests.servers.embedded import EmbeddedServer
from tests.support import declared_keys

ROOT = "celery-locks:{0}:"


class Wrong(Script):
    """A script with its own text."""

    def __init__(self, text: str) -> None:
        super().__init__("wrong")
        self.lua = text

    def _read(self) -> str:
        return self.lua


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("return redis.call('GET', KEYS[1] .. 'x')", ["wrong GET kx"]),
        ("pcall(redis.call, 'GET', 'other') return 1", ["wrong GET other"]),
        ("return redis.pcall('EXISTS', KEYS[1], 'b', 'c')", ["wrong EXISTS b", "wrong EXISTS c"]),
        ("return redis.call('LMOVE', KEYS[1], 'b', 'LEFT', 'LEFT')", ["wrong LMOVE b"]),
        (
            "--keys key\nredis.call('TIME') redis.call('PUBLISH', 'c', 'm') redis.call('GET', key)",
            [],
        ),
    ],
)
def test_undeclared_key_is_found(valkey: EmbeddedServer, text: str, found: list[str]) -> None:
    """An error in the script would be caught by a pcall, so it is noted on the server."""
    script = Wrong(text)
    with closing(Locks.from_url(valkey.url)) as locks, valkey.client() as client:
        with declared_keys.checked(script):
            locks.perform(Call(script, ROOT, ("k",), (), lambda reply: reply, 3))
        assert declared_keys.undeclared(client) == found


def test_scripts_are_as_before_after_the_check() -> None:
    before = scripts.ACQUIRE.sha
    with declared_keys.checked():
        assert scripts.ACQUIRE.sha != before
    assert scripts.ACQUIRE.sha == before
