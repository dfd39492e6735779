"""The verbs as Lua, one file each; a file's head says what it takes and what it returns."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from celery_locks.store.resp import Arg, pack, pack_args


def _text_of(part: str) -> str:
    """A file with what it includes, each where it says so (see ``common.lua``)."""
    text = (files(__name__) / f"{part}.lua").read_text()
    return re.sub(r"^--include (\w+)$", lambda found: _text_of(found[1]), text, flags=re.MULTILINE)


class Script:
    """A verb's text and digest, and the commands that call it for one shard."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self._heads: dict[tuple[str, int], bytes] = {}
        self._text = ""
        self._sha = ""

    # No cached_property: before Python 3.12 it has a lock, of all scripts together, and a process
    # that is forked while the keeper's thread reads one would find it taken for ever.

    @property
    def text(self) -> str:
        if not self._text:
            self._text = _text_of(self.verb)
        return self._text

    @property
    def sha(self) -> str:
        if not self._sha:
            self._sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        return self._sha

    def by_sha(self, root: str, args: tuple[Arg, ...]) -> bytes:
        """EVALSHA; what it begins with is kept, for each shard and number of arguments."""
        head = self._heads.get((root, len(args))) or self._kept_head(root, len(args))
        return head + pack_args(args)

    def _kept_head(self, root: str, args: int) -> bytes:
        head = self._head("EVALSHA", self.sha, root, args)
        if len(self._heads) < 256:
            self._heads[root, args] = head
        return head

    def by_text(self, root: str, args: tuple[Arg, ...]) -> bytes:
        """EVAL, which also leaves the script on the server for the next EVALSHA."""
        return self._head("EVAL", self.text, root, len(args)) + pack_args(args)

    @staticmethod
    def _head(command: str, script: str, root: str, args: int) -> bytes:
        return b"*%d\r\n%b" % (4 + args, pack_args((command, script, 1, root)))


class Command:
    """A plain command in a script's place, for what needs no script."""

    def __init__(self, verb: str) -> None:
        self.verb = verb

    def by_sha(self, root: str, args: tuple[Arg, ...]) -> bytes:
        return pack(self.verb, root, *args)

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
USUAL = Script("usual")
TRIM = Script("trim")
SERVER = Script("server")
STOP = Script("stop")
DONE_PAGE = Script("done_page")
RESET = Script("reset")
CLAIM = Script("claim")
DRAIN = Script("drain")
PUSH = Script("push")
TAKE_BATCH = Script("take_batch")
END_BATCH = Script("end_batch")
BUFFERED = Script("buffered")
STOCK = Script("stock")
TAKE = Script("take")
GIVE_BACK = Script("give_back")
COUNT = Script("count")
TALLY = Script("tally")
