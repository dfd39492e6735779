"""Around every request: the rate limit, the allowed hosts, and the headers of every response."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_locks.errors import LockUsageError
from celery_locks.loopback import is_loopback_header
from celery_locks.web.responses import HEADERS, NO_STORE, HttpError, error_response

_MINUTE = 60.0
_MAX_CALLERS = 10_000


class RequestLimit:
    """At most this many requests a minute from each caller, counted in this process.

    The memory is bounded: with too many callers in a minute, the count of the oldest is dropped.
    Counting does not stop an attacker with that many networks, but nobody else is locked out.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        if isinstance(per_minute, bool) or not isinstance(per_minute, int) or per_minute < 1:
            raise LockUsageError(
                f"requests_per_minute is {per_minute!r}; it must be a whole number from 1"
            )
        self._per_minute = per_minute
        self._clock = clock
        self._ends = 0.0
        self._counts: dict[str, int] = {}

    def count(self, caller: str) -> None:
        """Count a request; raise ``HttpError`` 429 if it is one too many."""
        now = self._clock()
        if now >= self._ends:
            self._ends = now + _MINUTE
            self._counts.clear()
        count = self._counts.get(caller, 0)
        if count >= self._per_minute:
            raise self._too_many(max(1, math.ceil(self._ends - now)))
        if not count and len(self._counts) >= _MAX_CALLERS:
            del self._counts[next(iter(self._counts))]
        self._counts[caller] = count + 1

    def _too_many(self, seconds: int) -> HttpError:
        return HttpError(
            429,
            f"More than {self._per_minute} requests in a minute; try again in {seconds} s.",
            {"Retry-After": str(seconds)},
        )


def mount_path(root: str) -> str:
    """Return where the app is mounted, as a path on this site: ``//evil.example`` is another."""
    inside = root.strip("/")
    return f"/{quote(inside)}" if inside else ""


def check_loopback_host(host: str) -> None:
    """Refuse a foreign host name that was made to resolve to this machine (DNS rebinding)."""
    if not is_loopback_header(host):
        raise HttpError(
            403, "This server accepts local requests only: use localhost or 127.0.0.1 as the host."
        )


class Guard:
    """Check each request before it is routed, and set the headers of each response."""

    def __init__(self, app: ASGIApp, limit: RequestLimit, loopback_only: bool) -> None:
        self._app = app
        self._limit = limit
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", NO_STORE)
            await send(message)

        app = self._early_response(scope) or self._app
        await app(scope, receive, send_with_headers)

    def _early_response(self, scope: Scope) -> Response | None:
        """Return the response of a request that never reaches the app; None for all others."""
        try:
            if self._loopback_only:
                check_loopback_host(Headers(scope=scope).get("Host", ""))
            self._limit.count(network_of(scope))
        except HttpError as error:
            return error_response(error)
        root = scope.get("root_path", "")
        if scope["path"] in ("", root) and scope["path"] != "/":
            # The page's links are relative to the folder it is in.
            return RedirectResponse(mount_path(root) + "/")
        return None


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
UNKNOWN = "an unknown address"


def address_of(scope: Scope) -> str:
    """Return the client's address, to be read by people.

    The ASGI server sets it; behind a proxy, it takes it from a header. It is parsed, so that the
    text of a header is never stored.
    """
    address = _parse_client(scope)
    return str(address) if address else UNKNOWN


def network_of(scope: Scope) -> str:
    """Return what requests are counted by: an IPv4 address, or an IPv6 /64 (one machine's)."""
    address = _parse_client(scope)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address) if address else UNKNOWN


def _parse_client(scope: Scope) -> Address | None:
    try:
        address = ipaddress.ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    # Drop the zone ("fe80::1%anything"): it may be any text of any length.
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))
