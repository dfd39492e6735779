"""Who may ask: API keys with a role, or the host application's own login, or, if told so, all.

A key is sent in a header by whoever means it, so no foreign page can make a browser send it. A
login's cookie, or no credential at all, goes along with whatever a foreign page sends: there every
change must show that our own page, or a program, has sent it.
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
from celery_locks.loopback import is_loopback_header
from celery_locks.web.limits import in_thread
from celery_locks.web.responses import HttpError

Role = Literal["read", "write"]
# A role, or a role and the name of who has it.
Verdict = Role | tuple[Role, str] | None
Authorize = Callable[[Request], Verdict | Awaitable[Verdict]]
KEY_HEADER = "X-API-Key"
OURS = "X-Celery-Locks"
_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: what they may do, and the name of their key or login, as far as it is verified."""

    role: Role
    name: str = ""
    has_key: bool = False


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    principal: Principal


class Authenticator:
    """Lets in those who may ask; ``opened`` makes it and refuses what would let in anybody."""

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
        """Whether a browser may be let in by what it sends of itself."""
        return self._open_to_all or self._authorize is not None

    async def admit(self, request: Request, method: str) -> Principal:
        principal = await self._visitor(request)
        if principal is None:
            how = f" Send an API key in the header {KEY_HEADER}." if self._keys else " Log in."
            raise HttpError(401, f"This needs a credential.{how}", {"WWW-Authenticate": "Bearer"})
        if method == "POST" and principal.role != "write":
            raise HttpError(
                403, "This credential may only look; changing needs one that may write."
            )
        if method == "POST" and not principal.has_key:
            check_same_origin(request)
        return principal

    async def _visitor(self, request: Request) -> Principal | None:
        shown = _shown_key(request)
        if self._keys and shown is not None:
            return self._visitor_with(shown)
        if self._authorize is not None:
            return await _asked(self._authorize, request)
        return Principal("write") if self._open_to_all else None

    def _visitor_with(self, shown: bytes) -> Principal | None:
        """All keys are compared, whichever fits: the time it takes tells nothing."""
        digest = _digest(shown)
        fits = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        return fits[0].principal if fits else None


def make_authenticator(
    read_keys: Sequence[str],
    write_keys: Sequence[str],
    authorize: Authorize | None,
    open_to_all: bool,
) -> Authenticator:
    keys = (*_keys(read_keys, "read"), *_keys(write_keys, "write"))
    if len({key.digest for key in keys}) < len(keys):
        raise LockUsageError("an API key is given twice; each must be another one")
    if open_to_all and (keys or authorize):
        raise LockUsageError("open_to_all goes without keys and without authorize")
    if not keys and authorize is None and not open_to_all:
        raise LockUsageError(
            "the web surface needs credentials, for it can free locks: give read_keys and "
            "write_keys, or authorize, or say open_to_all=True"
        )
    if authorize is not None and not callable(authorize):
        raise LockUsageError(f"authorize must be a function of the request, not {authorize!r}")
    return Authenticator(keys, authorize, open_to_all)


def _keys(keys: Sequence[str], role: Role) -> list[_Key]:
    if isinstance(keys, str):
        raise LockUsageError(f"{role}_keys must be a list of keys, not one text")
    for key in keys:
        if not isinstance(key, str) or not key.strip() or key != key.strip():
            raise LockUsageError(f"a key in {role}_keys is empty, no text, or has space around it")
    return [
        _Key(_digest(key.encode()), Principal(role, f"{role} key {number}", has_key=True))
        for number, key in enumerate(keys, 1)
    ]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _shown_key(request: Request) -> bytes | None:
    """As it was sent: a header has bytes, and a key may have letters beyond ASCII."""
    sent = dict(request.headers.raw)
    if (key := sent.get(KEY_HEADER.lower().encode())) is not None:
        return key.strip()
    kind, _, key = sent.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else None


async def _asked(authorize: Authorize, request: Request) -> Principal | None:
    if iscoroutinefunction(authorize):
        verdict = await authorize(request)
    else:
        verdict = await in_thread("quick", authorize, request)
        if isawaitable(verdict):
            verdict = await verdict
    role, name = verdict if isinstance(verdict, tuple) and len(verdict) == 2 else (verdict, "")
    if role not in (None, *get_args(Role)) or not isinstance(name, str):
        raise TypeError(
            f"authorize returned {verdict!r}; it must return 'read', 'write', None or "
            "(role, name of the user)"
        )
    return Principal(role, f"user {_storable(name)!r}" if name else "") if role else None


def _storable(name: str) -> str:
    return name[:_NAME_LENGTH].encode(errors="replace").decode()


def check_same_origin(request: Request) -> None:
    """Refuse a change that a foreign page may have sent along with somebody's login."""
    if request.headers.get(OURS) != "1":
        raise HttpError(
            403, f"A change needs the header {OURS}: 1, which a foreign page cannot send."
        )
    context, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if context is not None:
        is_foreign = context not in ("same-origin", "none")
    else:
        is_foreign = origin is not None and _host_of(origin) != request.headers.get("Host")
    if is_foreign:
        raise HttpError(403, "A change must come from this very site; this one came from another.")


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return None


def check_loopback_host(host: str) -> None:
    """A foreign name that was made to lead here (DNS rebinding) must not be taken for ours."""
    if not is_loopback_header(host):
        raise HttpError(
            403, "It is open to this machine only: ask for it as localhost or 127.0.0.1."
        )
