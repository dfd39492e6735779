"""Who may call: API keys with a role, the host application's login, or, if configured, everybody.

A key is sent in a header on purpose, so no foreign page can make a browser send it. A browser adds
a login's cookie to whatever a foreign page sends: without a key, every change must prove that our
own page, or a program, sent it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Literal, get_args
from urllib.parse import urlsplit

from starlette.requests import Request

from celery_locks.errors import LockUsageError
from celery_locks.web.responses import HttpError
from celery_locks.web.threads import run_in_thread

Role = Literal["read", "write"]
# A role, or a role and the user's name.
Verdict = Role | tuple[Role, str] | None
Authorize = Callable[[Request], Verdict | Awaitable[Verdict]]
KEY_HEADER = "X-API-Key"
PAGE_HEADER = "X-Celery-Locks"
_MAX_USER_NAME = 200


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: their role, and the name of their key or login if it is verified."""

    role: Role
    name: str = ""
    has_key: bool = False


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    principal: Principal


class Authenticator:
    """Finds out who calls; ``make_authenticator`` builds it and refuses unsafe settings."""

    def __init__(
        self, keys: tuple[_Key, ...], authorize: Authorize | None, open_to_all: bool
    ) -> None:
        self._keys = keys
        self._authorize = authorize
        self._open_to_all = open_to_all

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    @property
    def is_ambient(self) -> bool:
        """Whether a browser may be let in by what it sends by itself, such as a cookie."""
        return self._open_to_all or self._authorize is not None

    async def authenticate(self, request: Request, method: str) -> Principal:
        """Return who calls; raise ``HttpError`` if they may not use this method."""
        principal = await self._find_principal(request)
        if principal is None:
            hint = f"Send an API key in the header {KEY_HEADER}." if self._keys else "Log in."
            challenge = {"WWW-Authenticate": "Bearer"}
            raise HttpError(401, f"A credential is required. {hint}", challenge)
        if method == "POST" and principal.role != "write":
            raise HttpError(403, "This credential is read-only; changes need one that may write.")
        if method == "POST" and not principal.has_key:
            check_same_origin(request)
        return principal

    async def _find_principal(self, request: Request) -> Principal | None:
        key = _key_in(request)
        if self._keys and key is not None:
            return self._principal_of(key)
        if self._authorize is not None:
            return await _call_authorize(self._authorize, request)
        return Principal("write") if self._open_to_all else None

    def _principal_of(self, key: bytes) -> Principal | None:
        """Compare all keys, also after a match, so that the time it takes reveals nothing."""
        digest = _digest(key)
        matches = [known for known in self._keys if hmac.compare_digest(known.digest, digest)]
        return matches[0].principal if matches else None


def make_authenticator(
    read_keys: Sequence[str],
    write_keys: Sequence[str],
    authorize: Authorize | None,
    open_to_all: bool,
) -> Authenticator:
    """Build the authenticator; refuse settings that would let in anybody by mistake."""
    keys = (*_keys(read_keys, "read"), *_keys(write_keys, "write"))
    if len({key.digest for key in keys}) < len(keys):
        raise LockUsageError("an API key is given twice; each key must be unique")
    if open_to_all and (keys or authorize):
        raise LockUsageError("open_to_all cannot be combined with keys or authorize")
    if not keys and authorize is None and not open_to_all:
        raise LockUsageError(
            "the web app can release locks and needs credentials: pass read_keys and "
            "write_keys, or authorize, or open_to_all=True"
        )
    if authorize is not None and not callable(authorize):
        raise LockUsageError(f"authorize must be a function of the request, not {authorize!r}")
    return Authenticator(keys, authorize, open_to_all)


def _keys(keys: Sequence[str], role: Role) -> list[_Key]:
    if isinstance(keys, str):
        raise LockUsageError(f"{role}_keys must be a list of keys, not a string")
    for key in keys:
        if not isinstance(key, str) or not key.strip() or key != key.strip():
            raise LockUsageError(
                f"a key in {role}_keys is empty, not a string, or has spaces around it"
            )
    return [
        _Key(_digest(key.encode()), Principal(role, f"{role} key {number}", has_key=True))
        for number, key in enumerate(keys, 1)
    ]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key_in(request: Request) -> bytes | None:
    """Return the key as it was sent, in bytes: it may have letters beyond ASCII."""
    headers = dict(request.headers.raw)
    if (key := headers.get(KEY_HEADER.lower().encode())) is not None:
        return key.strip()
    kind, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else None


async def _call_authorize(authorize: Authorize, request: Request) -> Principal | None:
    if iscoroutinefunction(authorize):
        verdict = await authorize(request)
    else:
        verdict = await run_in_thread("quick", authorize, request)
        if isawaitable(verdict):
            verdict = await verdict
    role, name = verdict if isinstance(verdict, tuple) and len(verdict) == 2 else (verdict, "")
    if role not in (None, *get_args(Role)) or not isinstance(name, str):
        raise TypeError(
            f"authorize returned {verdict!r}; it must return 'read', 'write', None or "
            "(role, user name)"
        )
    return Principal(role, f"user {_storable(name)!r}" if name else "") if role else None


def _storable(name: str) -> str:
    return name[:_MAX_USER_NAME].encode(errors="replace").decode()


def check_same_origin(request: Request) -> None:
    """Refuse a change that a foreign page may have sent with the user's login."""
    if request.headers.get(PAGE_HEADER) != "1":
        raise HttpError(
            403, f"A change needs the header {PAGE_HEADER}: 1, which a foreign page cannot send."
        )
    fetch_origin, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if fetch_origin is not None:
        is_foreign = fetch_origin not in ("same-origin", "none")
    else:
        is_foreign = origin is not None and _host_of(origin) != request.headers.get("Host")
    if is_foreign:
        raise HttpError(403, "A change must come from this site; this request came from another.")


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return None
