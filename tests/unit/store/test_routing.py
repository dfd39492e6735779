"""One call, step by step, with a scripted server: what is tried again, and what an error means."""

from typing import Any, NamedTuple

import pytest

from celery_locks import errors
from celery_locks.errors import LockUnavailable
from celery_locks.store import routing as module
from celery_locks.store.connect_errors import ConnectionFailed, ErrorReply
from celery_locks.store.connection_config import Address, ServerConfig
from celery_locks.store.drivers import run_blocking
from celery_locks.store.effects import Call
from celery_locks.store.routing import Router
from celery_locks.store.scripts import DESCRIBE

ROOT = "p:{0}:"
KEYS = ("p:{0}:h:name", "p:{0}:q:name")
SINGLE = ServerConfig("single", (("h", 1),))
SENTINEL = ServerConfig("sentinel", (("s1", 1), ("s2", 2), ("s3", 3)), service="m")
CLUSTER = ServerConfig("cluster", (("n1", 1), ("n2", 2)))
SLOTS = [[0, 8000, [b"n1", 1, b"id"]], [8001, 16383, [b"n2", 2, b"id"]]]


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "now", made.now)
    return made


def call(budget: float = 3.0) -> Call:
    return Call(DESCRIBE, ROOT, KEYS, (), lambda reply: ("parsed", reply), budget)


class Sent(NamedTuple):
    address: Address
    data: bytes
    deadline: float


class Talk:
    """Performs a call with a scripted server: each answer is for the next exchange."""

    def __init__(self, server: ServerConfig, clock: Clock, each: float = 0.0) -> None:
        self.router = Router(server, self.exchange, self.sleep)
        self.clock = clock
        self.each = each  # seconds that an exchange takes
        self.answers: list[Any] = []
        self.sent: list[Sent] = []
        self.pauses: list[float] = []

    async def exchange(self, address: Address, data: bytes, deadline: float) -> Any:
        self.sent.append(Sent(address, data, deadline))
        self.clock.time += self.each
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.time += seconds

    def run(self, *answers: Any, budget: float = 3.0) -> Any:
        self.answers = list(answers)
        return run_blocking(self.router.perform, call(budget))

    @property
    def places(self) -> list[str]:
        return [exchange.address[0] for exchange in self.sent]


def test_answer_is_parsed(clock: Clock) -> None:
    talk = Talk(SINGLE, clock)
    assert talk.run(7) == ("parsed", 7)
    assert [e.address for e in talk.sent] == [("h", 1)]
    assert talk.sent[0].data == DESCRIBE.by_sha(ROOT, KEYS, ())


def test_noscript_sends_the_text(clock: Clock) -> None:
    talk = Talk(SINGLE, clock)
    assert talk.run(ErrorReply("NOSCRIPT No matching script."), 7) == ("parsed", 7)
    assert talk.sent[1].data == DESCRIBE.by_text(ROOT, KEYS, ())
    assert talk.pauses == []


def test_first_try_gets_half_of_the_time(clock: Clock) -> None:
    """The connection may have died while it idled: time must be left for a new one."""
    talk = Talk(SINGLE, clock)
    assert talk.run(ConnectionFailed("gone"), 7) == ("parsed", 7)
    assert [e.deadline for e in talk.sent] == [101.5, 103.0]


def test_single_server_is_given_up_after_two_tries(clock: Clock) -> None:
    talk = Talk(SINGLE, clock)
    with pytest.raises(LockUnavailable, match="no answer in 2 tries: refused"):
        talk.run(ConnectionFailed("refused"))
    assert len(talk.sent) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", errors.ServerOutOfMemory),
        ("NOAUTH Authentication required.", errors.ServerRefused),
        ("ERR Protocol error: unauthenticated multibulk length", errors.ServerRefused),
        ("WRONGPASS invalid username-password pair", errors.ServerRefused),
        ("NOPERM this user has no permissions", errors.ServerRefused),
        ("WRONGTYPE Operation against a key", errors.ForeignData),
        ("MISCONF Redis is configured to save RDB snapshots", errors.ServerReadOnly),
        ("NOREPLICAS Not enough good replicas to write.", errors.ServerReadOnly),
        ("ERR unknown command 'EVALSHA'", LockUnavailable),
        (
            "ERR Error running script (call to f_1): @user_script:9: "
            "@user_script: 9: -OOM command not allowed",
            errors.ServerOutOfMemory,
        ),
        (
            "ERR Error running script (call to f_1): @user_script:9: "
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            errors.ForeignData,
        ),
    ],
)
def test_final_error_is_raised_at_once(clock: Clock, text: str, error: type[Exception]) -> None:
    """Also as Redis 6.2 wraps it. Trying again would only take the caller's time."""
    talk = Talk(SINGLE, clock)
    with pytest.raises(error) as caught:
        talk.run(ErrorReply(text))
    assert type(caught.value) is error
    assert len(talk.sent) == 1
    assert "lock server at h:1" in str(caught.value)
    assert "'name'" not in str(caught.value), "it is about the server, whatever was asked for"


@pytest.mark.parametrize(
    "text", ["LOADING Redis is loading", "BUSY Redis is busy running a script"]
)
def test_passing_error_is_tried_again(clock: Clock, text: str) -> None:
    assert Talk(SINGLE, clock).run(ErrorReply(text), 7) == ("parsed", 7)


def test_a_password_error_is_the_same_sentence_each_time(clock: Clock) -> None:
    """A long command is refused in other words than a short one before the login."""
    texts = set()
    for text in ("NOAUTH Authentication required.", "ERR Protocol error: unauthenticated bulk"):
        with pytest.raises(errors.ServerRefused) as caught:
            Talk(SINGLE, clock).run(ErrorReply(text))
        texts.add(str(caught.value).removesuffix(text))
    [sentence] = texts
    assert "wants a password; write it into the URL" in sentence


def test_refused_after_an_unanswered_try_is_in_doubt(clock: Clock) -> None:
    """The first try may have taken the lock: whoever reads this error has to give it back."""
    with pytest.raises(errors.ServerRefused) as caught:
        Talk(SINGLE, clock).run(ConnectionFailed("closed"), errors.ServerRefused("new password"))
    assert caught.value.may_have_executed


def test_sentinel_that_refuses_us_is_passed_over(clock: Clock) -> None:
    """One sentinel with a wrong certificate or password does not stop the others from answering."""
    talk = Talk(SENTINEL, clock)
    refused = errors.ServerRefused("wrong certificate")
    assert talk.run(refused, ErrorReply("NOAUTH"), [b"primary", b"7"], 1) == ("parsed", 1)
    with pytest.raises(errors.ServerRefused, match="wants a password"):
        Talk(SENTINEL, clock).run(ErrorReply("NOAUTH Authentication required."))


def test_read_only_server_is_named_as_such(clock: Clock) -> None:
    with pytest.raises(errors.ServerReadOnly, match="point at the primary"):
        Talk(SINGLE, clock).run(ErrorReply("READONLY You can't write against a read only replica."))


def test_sentinel_is_asked_once_and_remembered(clock: Clock) -> None:
    talk = Talk(SENTINEL, clock)
    assert talk.run([b"primary", b"7"], 1) == ("parsed", 1)
    assert talk.run(2) == ("parsed", 2)
    assert talk.places == ["s1", "primary", "primary"]
    assert talk.sent[1].address == ("primary", 7)


def test_sentinel_that_is_dead_or_ignorant_is_passed_over(clock: Clock) -> None:
    talk = Talk(SENTINEL, clock)
    assert talk.run(ConnectionFailed("dead"), None, [b"primary", b"7"], 1) == ("parsed", 1)
    assert talk.places == ["s1", "s2", "s3", "primary"]


def test_sentinel_is_asked_again_after_a_failover(clock: Clock) -> None:
    talk = Talk(SENTINEL, clock)
    answers = [
        [b"old", b"7"],
        ErrorReply("READONLY You can't write against a read only replica."),
        [b"new", b"7"],
        5,
    ]
    assert talk.run(*answers) == ("parsed", 5)
    assert talk.places == ["s1", "old", "s1", "new"]


def test_sentinel_outage_ends_with_the_budget(clock: Clock) -> None:
    talk = Talk(SENTINEL, clock, each=0.05)
    with pytest.raises(LockUnavailable, match="says where the primary is"):
        talk.run(ConnectionFailed("down"), budget=1.0)
    assert clock.time <= 101.1
    assert talk.pauses == sorted(talk.pauses), "it backs off"


def test_each_sentinel_gets_a_share_of_the_time(clock: Clock) -> None:
    """One that swallows packets must not use up what the others need."""
    talk = Talk(SENTINEL, clock)
    talk.run([b"primary", b"7"], 1)
    assert talk.sent[0].deadline == pytest.approx(100.75)


def test_cluster_is_asked_where_the_slot_is(clock: Clock) -> None:
    talk = Talk(CLUSTER, clock)
    assert talk.run(SLOTS, 1) == ("parsed", 1)
    assert talk.run(2) == ("parsed", 2)
    assert talk.places == ["n1", "n2", "n2"], "slot of {0} is 13907"


@pytest.mark.parametrize("host", [b"", None])
def test_cluster_node_without_a_name_is_the_one_that_answered(
    clock: Clock, host: bytes | None
) -> None:
    """One that does not know its own address yet says '', one told not to say it says NULL."""
    talk = Talk(CLUSTER, clock)
    talk.run([[0, 16383, [host, 9, b"id"]]], 1)
    assert talk.sent[1].address == ("n1", 9)


@pytest.mark.parametrize(
    "trouble",
    [
        ErrorReply("MOVED 13907 n1:1"),
        ErrorReply("CLUSTERDOWN Hash slot not served"),
        ErrorReply("TRYAGAIN Multiple keys request during rehashing of slot"),
        ErrorReply("ASK 13907 n1:1"),
        ConnectionFailed("dead"),
    ],
)
def test_cluster_map_is_asked_for_again(clock: Clock, trouble: Any) -> None:
    talk = Talk(CLUSTER, clock)
    moved = [[0, 16383, [b"n9", 9, b"id"]]]
    assert talk.run(SLOTS, trouble, moved, 5) == ("parsed", 5)
    assert talk.places == ["n1", "n2", "n1", "n9"]


def test_cluster_slot_that_nobody_serves_is_waited_for(clock: Clock) -> None:
    talk = Talk(CLUSTER, clock)
    assert talk.run([[0, 5, [b"n1", 1]]], SLOTS, 5) == ("parsed", 5)
    with pytest.raises(LockUnavailable, match="serves slot 13907"):
        Talk(CLUSTER, clock).run([[0, 5, [b"n1", 1]]], budget=0.5)


def test_budget_is_never_exceeded_by_pausing(clock: Clock) -> None:
    talk = Talk(CLUSTER, clock)
    began = clock.time
    with pytest.raises(LockUnavailable):
        talk.run(ConnectionFailed("dead"), budget=1.0)
    assert clock.time - began < 1.0
