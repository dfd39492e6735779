"""Finds scripts that touch a key that they do not declare in KEYS.

A server does not check this: it runs such a script, and a managed server or a Cluster may refuse
it later. So the scripts get a head that asks the server, ``COMMAND GETKEYS``, which keys each of
their commands touches. It notes the others in a list, because an error could be caught by a pcall.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_locks.store import scripts
from celery_locks.store.scripts import Script

UNDECLARED = "undeclared-keys"

_HEAD = f"""
local declared = {{}}
for _, key in ipairs(KEYS) do declared[key] = true end
local real = redis
local function check(...)
  local keys = real.pcall('COMMAND', 'GETKEYS', ...)
  if keys.err then
    if not keys.err:find('no key arg') then error(keys.err) end
    keys = {{}}
  end
  for _, key in ipairs(keys) do
    if not declared[key] then real.call('RPUSH', '{UNDECLARED}', 'NAME ' .. ... .. ' ' .. key) end
  end
end
local redis = {{
  call = function(...) check(...) return real.call(...) end,
  pcall = function(...) check(...) return real.pcall(...) end,
}}
"""


@contextmanager
def checked(*more: Script) -> Iterator[None]:
    """Make every script note the keys that it touches and does not declare."""
    all_scripts = [it for it in vars(scripts).values() if isinstance(it, Script)]
    for script in (*all_scripts, *more):
        text = _HEAD.replace("NAME", script.name) + script.text
        script._text, script._sha, script._heads = text, "", {}
    try:
        yield
    finally:
        for script in all_scripts:
            script._text, script._sha, script._heads = "", "", {}


def undeclared(client: Any) -> list[str]:
    """Return what was noted, "script command key", and forget it."""
    found = [entry.decode() for entry in client.lrange(UNDECLARED, 0, -1)]
    client.delete(UNDECLARED)
    return found
