"""A set on a server of its own, read and written as a whole: without a lock, updates get lost.

With a fence, the storage remembers the highest one that it has seen and rejects every access with
a lower one. The read counts too: else a late writer could still come between the next holder's
read and write.
"""

from __future__ import annotations

import json
from typing import Any

import redis

_READ = """
local fence = tonumber(ARGV[1])
if fence < tonumber(redis.call('GET', 'fence') or 0) then return false end
redis.call('SET', 'fence', ARGV[1])
return redis.call('GET', 'set') or '[]'
"""
_WRITE = """
if tonumber(ARGV[1]) < tonumber(redis.call('GET', 'fence') or 0) then return 0 end
redis.call('SET', 'fence', ARGV[1])
redis.call('SET', 'set', ARGV[2])
return 1
"""


class Rejected(Exception):
    """The storage has seen a higher fence."""


class Storage:
    """The set without a fence: whoever writes last wins."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url)

    def read(self, fence: int) -> list[str]:
        return list(json.loads(self._client.get("set") or "[]"))

    def write(self, elements: list[str], fence: int) -> None:
        self._client.set("set", json.dumps(elements))

    def close(self) -> None:
        self._client.close()


class FencedStorage(Storage):
    """The set with a fence: an access with a lower fence than the highest is ``Rejected``."""

    def read(self, fence: int) -> list[str]:
        text = self._client.eval(_READ, 0, fence)
        if text is None:
            raise Rejected
        return list(json.loads(text))

    def write(self, elements: list[str], fence: int) -> None:
        if not self._client.eval(_WRITE, 0, fence, json.dumps(elements)):
            raise Rejected
