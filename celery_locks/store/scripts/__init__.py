"""The Lua scripts, one file each; the head of a file states its arguments and its reply.

``lib/`` holds the parts that scripts include.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from celery_locks.store.resp import Arg, pack, pack_args

_INCLUDE = re.compile(r"^--include (\w+)$", re.MULTILINE)


def _read(path: str) -> str:
    """Read a file and replace its include lines by the files they name (see ``common.lua``)."""
    text = (files(__name__) / path).read_text()
    return _INCLUDE.sub(lambda found: _read(f"lib/{found[1]}.lua"), text)


class Script:
    """A script's text and digest, and the commands that call it for one shard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._heads: dict[tuple[str, int], bytes] = {}
        self._text = ""
        self._sha = ""

    # No cached_property: before Python 3.12 all its users share one lock, and a process that is
    # forked while the renewer's thread reads a script would never get that lock.

    @property
    def text(self) -> str:
        if not self._text:
            self._text = _read(f"{self.name}.lua")
        return self._text

    @property
    def sha(self) -> str:
        if not self._sha:
            self._sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        return self._sha

    def by_sha(self, root: str, args: tuple[Arg, ...]) -> bytes:
        """Pack an EVALSHA; its first part is cached for each shard and number of arguments."""
        head = self._heads.get((root, len(args))) or self._cached_head(root, len(args))
        return head + pack_args(args)

    def _cached_head(self, root: str, args: int) -> bytes:
        head = self._head("EVALSHA", self.sha, root, args)
        if len(self._heads) < 256:
            self._heads[root, args] = head
        return head

    def by_text(self, root: str, args: tuple[Arg, ...]) -> bytes:
        """Pack an EVAL, which also loads the script into the server for the next EVALSHA."""
        return self._head("EVAL", self.text, root, len(args)) + pack_args(args)

    @staticmethod
    def _head(command: str, script: str, root: str, args: int) -> bytes:
        return b"*%d\r\n%b" % (4 + args, pack_args((command, script, 1, root)))


class PlainCommand:
    """A plain Redis command instead of a script."""

    def __init__(self, name: str) -> None:
        self.name = name

    def by_sha(self, root: str, args: tuple[Arg, ...]) -> bytes:
        return pack(self.name, root, *args)

    by_text = by_sha


ACQUIRE = Script("acquire")
RELEASE = Script("release")
RENEW = Script("renew")
FORCE_RELEASE = Script("force_release")
LOCATE = Script("locate")
INFO = Script("info")
LIST = Script("list")
WAITS = Script("waits")
HISTORY = Script("history")
DURATIONS = Script("durations")
PRUNE = Script("prune")
SERVER = Script("server")
STOP = Script("stop")
COMPLETED_PAGE = Script("completed_page")
RESET = Script("reset")
CLAIM = Script("claim")
DRAIN_LIST = Script("drain_list")
PUSH_MESSAGE = Script("push_message")
TAKE_BATCH = Script("take_batch")
END_BATCH = Script("end_batch")
BUFFERED = Script("buffered")
STOCK_ITEMS = Script("stock_items")
TAKE_ITEM = Script("take_item")
GIVE_BACK_ITEM = Script("give_back_item")
COUNT = Script("count")
TALLY = Script("tally")
