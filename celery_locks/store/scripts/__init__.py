"""The Lua scripts, one file each; the head of a file states its keys, its arguments and its reply.

``lib/`` holds the parts that scripts include. A script declares every key that it touches: in
``KEYS`` come the keys of the shard that its ``--keys`` line names, then those of the call.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from celery_locks.errors import LockUsageError

Arg = str | int

# Keys that a shard has once; ``lib/common.lua`` describes them.
SHARD_KEYS = frozenset(
    (
        *("records", "index", "fence", "past", "usual", "completed", "notices", "log", "patterns"),
        *("due", "parked", "kept", "epoch"),
    )
)
_INCLUDE = re.compile(r"^--include (\w+)$", re.MULTILINE)
_KEYS = re.compile(r"^--keys (.+)$", re.MULTILINE)


def pack_args(args: tuple[Arg, ...]) -> bytes:
    """Pack arguments with one join; redis-py sends the bytes as they are."""
    packed = "".join([f"${len(text)}\r\n{text}\r\n" for text in map(str, args)])
    if packed.isascii():
        return packed.encode()
    # Lengths are in bytes, and now a character may be several of them.
    try:
        coded = [text.encode() for text in map(str, args)]
    except UnicodeEncodeError as error:
        raise LockUsageError(
            f"the text {error.object!r} has no UTF-8 form: {error.reason}; nothing was sent"
        ) from None
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in coded])


def pack(*args: Arg) -> bytes:
    """Pack one whole command."""
    return b"*%d\r\n%b" % (len(args), pack_args(args))


def _read(path: str) -> str:
    """Read a file and replace its include lines by the files they name (see ``common.lua``)."""
    text = (files(__name__) / path).read_text()
    return _INCLUDE.sub(lambda found: _read(f"lib/{found[1]}.lua"), text)


class Script:
    """A script's text and digest, and the commands that call it for one shard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._heads: dict[tuple[str, int, int], bytes] = {}
        self._text = ""
        self._sha = ""
        self._shard_keys: list[str] = []

    # No cached_property: before Python 3.12 all its users share one lock, and a process that is
    # forked while the renewer's thread reads a script would never get that lock.

    @property
    def text(self) -> str:
        if not self._text:
            self._text = _KEYS.sub(self._declare, self._read())
        return self._text

    def _read(self) -> str:
        return _read(f"{self.name}.lua")

    def _declare(self, line: re.Match[str]) -> str:
        """Return the local variables that have the names of the ``--keys`` line."""
        names = line[1].split()
        self._shard_keys = [name for name in names if name in SHARD_KEYS]
        values = (f"KEYS[{number}]" for number in range(1, len(names) + 1))
        return f"local {', '.join(names)} = {', '.join(values)}"

    @property
    def sha(self) -> str:
        if not self._sha:
            self._sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        return self._sha

    def shard_keys(self, root: str) -> list[str]:
        """Return the first of the script's KEYS; those of the call follow."""
        assert self.text
        return [root + key for key in self._shard_keys]

    def by_sha(self, root: str, keys: tuple[str, ...], args: tuple[Arg, ...]) -> bytes:
        """Pack an EVALSHA; its first part is cached for each shard and number of arguments."""
        shape = (root, len(keys), len(args))
        return (self._heads.get(shape) or self._cached_head(shape)) + pack_args((*keys, *args))

    def _cached_head(self, shape: tuple[str, int, int]) -> bytes:
        head = self._head("EVALSHA", self.sha, *shape)
        if len(self._heads) < 256:
            self._heads[shape] = head
        return head

    def by_text(self, root: str, keys: tuple[str, ...], args: tuple[Arg, ...]) -> bytes:
        """Pack an EVAL, which also loads the script into the server for the next EVALSHA."""
        return self._head("EVAL", self.text, root, len(keys), len(args)) + pack_args((*keys, *args))

    def _head(self, command: str, script: str, root: str, keys: int, args: int) -> bytes:
        shard_keys = self.shard_keys(root)
        first: tuple[Arg, ...] = (command, script, len(shard_keys) + keys, *shard_keys)
        return b"*%d\r\n%b" % (len(first) + keys + args, pack_args(first))


class PlainCommand:
    """A plain Redis command instead of a script, with the same reply in RESP2 and RESP3."""

    def __init__(self, name: str) -> None:
        self.name = name

    def by_sha(self, root: str, keys: tuple[str, ...], args: tuple[Arg, ...]) -> bytes:
        return pack(self.name, *keys, *args)

    by_text = by_sha


ACQUIRE = Script("acquire")
RELEASE = Script("release")
RELEASE_SEVERAL = Script("release_several")
RENEW = Script("renew")
REASSERT = Script("reassert")
FORCE_RELEASE = Script("force_release")
LOCATE = Script("locate")
DESCRIBE = Script("describe")
WAITS = Script("waits")
HISTORY = Script("history")
DURATIONS = Script("durations")
PRUNE = Script("prune")
SERVER = Script("server")
STOP = Script("stop")
OVERRIDE = Script("override")
PATTERN = Script("pattern")
APPLY_PATTERNS = Script("apply_patterns")
PAUSES = Script("pauses")
PREPARE_MESSAGE = Script("prepare_message")
COMMIT_MESSAGE = Script("commit_message")
LEAVE_MESSAGE = Script("leave_message")
COMPLETED_PAGE = Script("completed_page")
DELETE_MARK = Script("delete_mark")
CLAIM = Script("claim")
DRAIN_LIST = Script("drain_list")
BUFFER_PUSH = Script("buffer_push")
TAKE_BATCH = Script("take_batch")
END_BATCH = Script("end_batch")
BUFFER_USERS = Script("buffer_users")
STOCK_ITEMS = Script("stock_items")
TAKE_ITEM = Script("take_item")
GIVE_BACK_ITEM = Script("give_back_item")
ADD_METRICS = Script("add_metrics")
COUNT_HOLDERS = Script("count_holders")
THROTTLE = Script("throttle")
PUSH_BACK = Script("push_back")
OVERRIDE_RATE = Script("override_rate")
RATES = Script("rates")
POLL_DUE = Script("poll_due")
WAKE_WAITERS = Script("wake_waiters")
CONFIRM_WAKE = Script("confirm_wake")
RETURN_DUE = Script("return_due")
UNPARK = Script("unpark")
PURGE = Script("purge")
KEEP_MESSAGE = Script("keep_message")
SCAN_KEPT = Script("scan_kept")
RECOVER_MESSAGE = Script("recover_message")
SHARE_RUNS = Script("share_runs")
CLAIM_RUN = Script("claim_run")
