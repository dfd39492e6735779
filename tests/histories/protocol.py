"""What a request and its reply say about locks, read from the bytes of the connection.

The package's own reading of replies is not used: it is part of what is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from celery_locks.store import scripts
from celery_locks.store.connect_errors import ErrorReply

Fields = dict[str, Any]

# They read, or do what the checker allows at any time: drop a lapsed holder, hand a slot over.
_WITHOUT_EFFECT = frozenset(
    ("count_holders", "describe", "locate", "prune", "stop", "waits", "wake_waiters")
)
# Options of acquire that change more than the checker knows of.
_UNCHECKED_OPTIONS = frozenset(("also", "park", "rate", "release", "replace"))
_VALUES = {
    "wait": 1,
    "once": 2,
    "supersede": 1,
    "newest": 1,
    "join": 1,
    "published_by": 1,
    "forget": 1,
}


@cache
def script_names() -> dict[str, str]:
    """Return the name of each script by its digest and by its text."""
    known = [it for it in vars(scripts).values() if isinstance(it, scripts.Script)]
    return {key: script.name for script in known for key in (script.sha, script.text)}


def read_request(data: bytes) -> list[Fields]:
    """Return a request's fields for each lock that it is about; none if it changes no lock."""
    command, *words = _words(data)
    if command not in (b"EVALSHA", b"EVAL"):
        return []
    text, count = words[0].decode(), int(words[1])
    keys = [key.decode(errors="replace") for key in words[2 : 2 + count]]
    args = [arg.decode(errors="replace") for arg in words[2 + count :]]
    locks = [key.partition("}:h:")[2] for key in keys if "}:h:" in key]
    name = script_names().get(text, "unknown")
    if not locks or name in _WITHOUT_EFFECT:
        return []
    if name == "renew":
        return _renewals(locks, args)
    fields = {"operation": name, "lock": locks[0], "token": args[0] if args else ""}
    if name == "acquire":
        fields |= _acquire(args)
    elif name == "release":
        fields |= {"keep": int(args[1]) / 1000, "next_token": args[2]} if len(args) > 2 else {}
    elif name != "force_release":
        return [_unchecked(lock, name) for lock in locks]
    if len(locks) > 1 or "unchecked" in fields:
        return [_unchecked(lock, str(fields.get("unchecked", name))) for lock in locks]
    return [fields]


def read_reply(request: Fields, position: int, reply: Any) -> Fields | None:
    """Return what the reply says, None if it does not say whether the request had an effect.

    ``position`` is that of the request among those of one renewal.
    """
    if isinstance(reply, ErrorReply):
        return {"not_executed": True} if "NOSCRIPT" in reply.text else None
    operation = request["operation"]
    if operation == "acquire":
        return _acquired(reply)
    if operation == "renew":
        lost = [it[0] if isinstance(it, list) else it for it in reply]
        return {"held": position not in lost}
    if operation == "release":
        return {"held": reply != 0}
    if operation == "force_release":
        return {"removed": [token.decode() for token in reply[1::3]]}
    return None


def _words(data: bytes) -> Iterator[bytes]:
    """Return the words of a packed command."""
    rest = data.partition(b"\r\n")[2]
    while rest:
        size, _, rest = rest[1:].partition(b"\r\n")
        yield rest[: int(size)]
        rest = rest[int(size) + 2 :]


def _renewals(locks: list[str], args: list[str]) -> list[Fields]:
    pairs = zip(args[::2], args[1::2], strict=False)  # one more says that the ttl changes
    return [
        {"operation": "renew", "lock": lock, "token": token, "ttl": int(ttl) / 1000}
        for lock, (token, ttl) in zip(locks, pairs, strict=True)
    ]


def _acquire(args: list[str]) -> Fields:
    options, position = set(), 3  # after the number that the caller got last
    while position < len(args):
        options.add(args[position])
        if args[position] in _UNCHECKED_OPTIONS:
            return {"unchecked": f"acquire with {args[position]}"}
        position += 1 + _VALUES.get(args[position], 0)
    return {**_described(args[1].split(" ", 4)), "waits": "wait" in options}


def _described(words: list[str]) -> Fields:
    """Return the fields of a record without its fence and since; limit 0 shares the lock."""
    ttl, limit, job, attempt = words[:4]
    return {"ttl": int(ttl) / 1000, "limit": int(limit), "job": job, "attempt": int(attempt)}


def _unchecked(lock: str, why: str) -> Fields:
    return {"operation": "unchecked", "lock": lock, "token": "", "why": why}


def _acquired(reply: Any) -> Fields:
    if isinstance(reply, int):
        return {"fence": reply}
    kind = reply[0].decode()
    if kind in ("granted", "start_in"):
        return {"fence": reply[1]}
    if kind != "busy":
        return {"not_executed": True}  # rejected: the work is completed, or the attempt has ended
    listed = zip(reply[7::3], reply[9::3], strict=True)
    return {
        "busy": [
            _listed(token.decode(), record.decode(errors="replace")) for token, record in listed
        ],
        "ahead": reply[2] - 1,
        "paused": bool(reply[6]),
    }


def _listed(token: str, record: str) -> Fields:
    fence, _, *rest = record.split(" ", 6)
    return {"token": token, "fence": int(fence), **_described(rest)}
