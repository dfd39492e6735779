"""What goes to the scripts and how their replies are read; the scripts write the records."""

import zlib
from typing import Any

import fakeredis
import pytest

from celery_locks.errors import LockUsageError
from celery_locks.store.commands.locks import (
    CALL_LIMIT,
    WOKE,
    LockCommands,
    budget_of,
    reservation_token,
)
from celery_locks.store.commands.replies import Renewal, RenewReply
from celery_locks.store.effects import Call, run_sync
from celery_locks.store.redis_store import RedisStore
from celery_locks.types import Conflict, Holder, LockSpec, Override


@pytest.fixture
def perform() -> Any:
    return RedisStore.from_client(fakeredis.FakeRedis(), "p").perform


@pytest.mark.parametrize("prefix", ["", "a b", "a{b", "a}b", "a\nb", "a\rb"])
def test_prefix_that_breaks_the_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(LockUsageError, match="prefix"):
        LockCommands(prefix)


@pytest.mark.parametrize("shards", [0, -1, 1.5, True, "2"])
def test_shards_that_are_refused(shards: Any) -> None:
    with pytest.raises(LockUsageError, match="whole number from 1"):
        LockCommands("p", shards)


def test_root_is_the_same_in_every_process() -> None:
    """Python's own hash differs between processes; two roots for one name would be two locks."""
    commands = LockCommands("p", 16)
    assert commands.root("invoice:42") == f"p:{{{zlib.crc32(b'invoice:42') % 16}}}:"
    assert commands.root("invoice:42") == "p:{14}:"
    assert len({commands.root(f"n{i}") for i in range(1000)}) == 16
    assert LockCommands("p").root("anything") == "p:{0}:"


@pytest.mark.parametrize(("ttl", "budget"), [(1, 1 / 3), (3, 1), (9, 3), (3600, CALL_LIMIT)])
def test_budget_is_a_third_of_the_ttl(ttl: float, budget: float) -> None:
    assert budget_of(ttl) == pytest.approx(budget)


def test_acquire_sends_milliseconds() -> None:
    call = LockCommands("p").acquire(LockSpec("a", 1.9005), "t", Holder(), alive=0.4)
    assert call.keys == ("p:{0}:h:a", "p:{0}:q:a")
    assert call.args == ("t", "1900 1 - 1 - 1 a{}", 0, "wait", 400)
    assert call.budget == budget_of(1.9005)


def test_acquire_sends_the_latest_number_of_its_shard() -> None:
    """By it the server notices that it lost its data; a reservation needs no guard."""
    commands, off = LockCommands("p"), LockCommands("p", guard_after_loss=False)
    for answer in (17, [b"busy", 1500, 3, 99, 23, 0, b""], 19):
        commands.acquire(LockSpec("a"), "t", Holder()).parse(answer)
        off.acquire(LockSpec("a"), "t", Holder()).parse(answer)
    assert commands.acquire(LockSpec("a"), "t", Holder()).args[2] == 23
    assert off.acquire(LockSpec("a"), "t", Holder()).args[2] == ""
    reservation = LockCommands("p")
    reservation.acquire(LockSpec("a"), reservation_token("j"), Holder()).parse(17)
    assert reservation.acquire(LockSpec("a"), reservation_token("j"), Holder()).args[2] == ""
    assert reservation.acquire(LockSpec("a"), "t", Holder()).args[2] == 0


def test_acquire_reply_is_a_fence_or_a_conflict() -> None:
    parse = LockCommands("p").acquire(LockSpec("a"), "t", Holder()).parse
    assert parse(17) == 17
    busy = parse([b"busy", 1500, 3, 99, 7, 4, b""])
    assert busy == Conflict("a", (), 1.5, 3, 0.099, 7, held_limit=4)
    assert parse([b"busy", -4, 3, 99, 0, 0, b""]).lapses_in == 0
    granted = parse([b"granted", 17, 3])
    assert (granted, granted.held_limit) == (17, 3)


def test_acquire_reply_of_a_paused_lock_says_who_paused_it() -> None:
    parse = LockCommands("p").acquire(LockSpec("a"), "t", Holder()).parse
    marker = b'~glob 5000 2000 0 {"by": "ops", "why": "bad data", "glob": "a*"}'
    conflict = parse([b"busy", 0, 1, 3000, 0, 0, marker])
    assert conflict.pause == Override(0, "ops", "bad data", 2.0, 5.0, "a*")
    assert conflict.lapses_in == 2.0
    assert Conflict.from_dict(conflict.as_dict()) == conflict
    assert str(conflict) == (
        "lock 'a' is paused by ops (all names that match 'a*'), until 1970-01-01 00:00:05 UTC: "
        "bad data"
    )


def test_renew_reply_names_the_lost_tokens() -> None:
    batch = [Renewal(f"n{i}", f"t{i}", 30) for i in range(4)]
    call = LockCommands("p").renew(batch, 1)
    assert call.parse([]) == RenewReply()
    assert call.parse([0, 3]).lost == {"t0", "t3"}
    assert call.keys == tuple(f"p:{{0}}:h:n{i}" for i in range(4))
    assert call.args == tuple(x for i in range(4) for x in (f"t{i}", 30_000))


def test_release_reply_says_whether_it_was_ours() -> None:
    call = LockCommands("p").release("a", "t", keep_for=0.25)
    assert call.args[:2] == ("t", 250)
    assert [call.parse(reply) for reply in (0, 1, WOKE)] == [0, 1, WOKE]


def test_page_walks_every_shard() -> None:
    commands, sent = LockCommands("p", 3), list[Call]()

    def perform(call: Call) -> Any:
        sent.append(call)
        return call.parse([b"77" if len(sent) == 1 else b"0", []])

    cursors = [""]
    while len(cursors) == 1 or cursors[-1]:
        page = run_sync(commands.page(cursors[-1]), perform)
        assert page.locks == []
        cursors.append(page.cursor)
    assert cursors == ["", "0:77", "1:0", "2:0", ""]
    assert [(call.root, call.args[0]) for call in sent] == [
        ("p:{0}:", "0"),
        ("p:{0}:", "77"),
        ("p:{1}:", "0"),
        ("p:{2}:", "0"),
    ]


def test_holder_is_read_as_it_was_written(perform: Any) -> None:
    commands = LockCommands("p")
    original = Holder(
        task_id="ü b%20-",
        task="t",
        retries=4,
        worker="w@h",
        host="h",
        pid=7,
        extra={"tag": "a b\n", "n": [1, 2]},
    )
    fence = perform(commands.acquire(LockSpec("a", 2.5), "tok", original))
    [holder] = perform(commands.info("a")).holders
    assert (holder.token, holder.fence, holder.ttl) == ("tok", fence, 2.5)
    for field in ("task_id", "task", "retries", "worker", "host", "pid", "extra"):
        assert getattr(holder, field) == getattr(original, field)
    assert holder.expires_at == pytest.approx(holder.acquired_at + 2.5)


def test_holder_without_a_record_is_still_shown(perform: Any) -> None:
    """Somebody deleted the hash: the lock is still held and must be shown."""
    commands = LockCommands("p")
    client = fakeredis.FakeRedis()
    perform = RedisStore.from_client(client, "p").perform
    perform(commands.acquire(LockSpec("a"), "tok", Holder()))
    client.delete("p:{0}:records")
    info = perform(commands.info("a"))
    assert [(h.token, h.fence) for h in info.holders] == [("tok", 0)]
    assert info.limit == 1
