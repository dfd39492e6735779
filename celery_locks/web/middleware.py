"""Around everything: what is looked at before any question is, and the headers on every answer."""

from __future__ import annotations

from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_locks.web.addresses import network_of
from celery_locks.web.auth import check_loopback_host
from celery_locks.web.limits import RequestLimit
from celery_locks.web.responses import HEADERS, NO_STORE, HttpError, refused


def mount_path(root: str) -> str:
    """Where the app is mounted, as a path on this very site: ``//evil.example`` is another one."""
    inside = root.strip("/")
    return f"/{quote(inside)}" if inside else ""


class Guard:
    """The request limit, the host, the way to the page; and the headers."""

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

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """What there is to say before anything is looked at."""
        try:
            if self._loopback_only:
                check_loopback_host(Headers(scope=scope).get("Host", ""))
            self._limit.count(network_of(scope))
        except HttpError as refusal:
            return refused(refusal)
        root = scope.get("root_path", "")
        if scope["path"] in ("", root) and scope["path"] != "/":
            # The page's addresses are relative to the folder it is in.
            return RedirectResponse(mount_path(root) + "/")
        return None
