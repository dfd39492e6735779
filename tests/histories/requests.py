"""Requests with their replies, as values, and how the files of a run become these values."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request about one lock, when it was sent, and what came back until ``replied``.

    Times are those of CLOCK_MONOTONIC, which the processes of one machine share. Without a reply
    ``reply`` is None and ``replied`` infinite: the request may have had its effect at any time
    since, or never. ``limit`` 0 shares the lock.
    """

    lock: str
    operation: str
    token: str
    invoked: float
    replied: float = inf
    reply: Mapping[str, Any] | None = None
    process: int = 0
    ttl: float = 0.0
    limit: int = 1
    job: str = "-"
    attempt: int = 0
    waits: bool = False
    keep: float = 0.0
    next_token: str = ""
    why: str = ""

    @property
    def listed(self) -> list[dict[str, Any]]:
        """Return the holders that a busy reply names."""
        return list((self.reply or {}).get("busy", ()))

    def __str__(self) -> str:
        until = f"{self.replied:.4f}" if self.reply is not None else "no reply"
        details = f"limit {self.limit}, ttl {self.ttl:g}" if self.operation == "acquire" else ""
        return (
            f"{self.invoked:.4f} to {until}: process {self.process} {self.operation} "
            f"{self.token[:8]} {details} -> {_reply_text(self.reply)}"
        )


@dataclass
class History:
    """The requests of a run by lock, and the locks that were used in ways nobody checks."""

    locks: dict[str, list[Request]] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)


def read(paths: Iterable[Path]) -> History:
    """Read files, and the files of directories."""
    lines: list[dict[str, Any]] = []
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            lines += [json.loads(line) for line in file.read_text().splitlines()]
    return history_of(lines)


def history_of(lines: Iterable[Mapping[str, Any]]) -> History:
    """Pair requests and replies; leave out those that the server surely did not execute."""
    sent: dict[str, dict[str, Any]] = {}
    for line in lines:
        if "operation" in line:
            values = {key: value for key, value in line.items() if key not in ("id", "at")}
            sent[line["id"]] = {**values, "invoked": line["at"]}
        elif line.get("reply") is not None:
            sent[line["id"]] |= {"reply": line["reply"], "replied": line["at"]}
    history = History()
    by_lock = defaultdict(list)
    for request in (Request(**values) for values in sent.values()):
        if request.operation == "unchecked":
            history.unchecked[request.lock] = request.why
        elif not (request.reply or {}).get("not_executed"):
            by_lock[request.lock].append(request)
    for lock in by_lock.keys() - history.unchecked.keys():
        history.locks[lock] = sorted(by_lock[lock], key=lambda request: request.invoked)
    return history


def _reply_text(reply: Mapping[str, Any] | None) -> str:
    if reply is None:
        return "no reply"
    if "busy" in reply:
        holders = ", ".join(f"{it['token'][:8]} (fence {it['fence']})" for it in reply["busy"])
        return f"busy: {holders or 'nobody'}"
    return ", ".join(f"{key} {value}" for key, value in reply.items())
