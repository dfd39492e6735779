"""The app, put together: routes out of the table, and a guard around all of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from celery_locks.errors import LockError, LockUnavailable, LockUsageError
from celery_locks.locks import Locks
from celery_locks.web.addresses import address_of, network_of
from celery_locks.web.credentials import Authorize, Door, Visitor, opened
from celery_locks.web.endpoints import ENDPOINTS, Endpoint
from celery_locks.web.fields import Asked, from_body, from_query
from celery_locks.web.guard import Guard, mount_path
from celery_locks.web.limits import Kind, RequestLimit, body_of, in_slow_thread, in_thread
from celery_locks.web.openapi import described
from celery_locks.web.pages import page_routes
from celery_locks.web.replies import Refusal, refused, reply
from celery_locks.web.site import Site

logger = logging.getLogger("celery_locks")
Handler = Callable[[Request], Awaitable[Response]]
_ANYTHING = "celery_locks_anything"


class _Anything(Convertor[str]):
    """A task's id in a path; slashes and line ends too, for ids are whatever people make them."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor(_ANYTHING, _Anything())


def create_app(
    source: Any,
    *,
    read_keys: Sequence[str] = (),
    write_keys: Sequence[str] = (),
    authorize: Authorize | None = None,
    open_to_all: bool = False,
    requests_per_minute: int = 600,
    loopback_only: bool | None = None,
) -> Starlette:
    """The locks of a Celery app, or of ``Locks``, as a page and REST; an ASGI app to be mounted.

    Who may ask is said by keys (headers ``X-API-Key`` or ``Authorization: Bearer``), by
    ``authorize``, or with ``open_to_all=True`` by nobody. ``authorize`` gets the request and
    returns "read", "write" or None, or the role and the user's name, ``("write", "ann")``, which
    then goes into the history. ``requests_per_minute`` are those of one address.
    With ``loopback_only`` requests for other hosts than this machine are refused, so that a
    foreign site cannot lead a browser here (DNS rebinding); the default is ``open_to_all``.
    """
    door = opened(read_keys, write_keys, authorize, open_to_all)
    site = _site_of(source)
    limit = RequestLimit(requests_per_minute)
    loopback_only = open_to_all if loopback_only is None else loopback_only
    guard = Middleware(Guard, limit=limit, loopback_only=loopback_only)
    app = Starlette(
        routes=[
            *page_routes(),
            Route("/openapi.json", _description(door)),
            *(_route(site, door, endpoint) for endpoint in ENDPOINTS),
        ],
        middleware=[guard],
        exception_handlers={HTTPException: _http_error, Refusal: _refusal},
    )
    # It would answer with a redirect to whatever the Host header says.
    app.router.redirect_slashes = False
    # For those who have to close its locks when they end.
    app.state.site = site
    return app


def _site_of(source: Any) -> Site:
    if isinstance(source, Locks):
        return Site.of(source)
    if not hasattr(source, "conf") or not hasattr(source, "tasks"):
        raise LockUsageError(
            f"create_app needs a Celery app or Locks, not a {type(source).__name__}"
        )
    return Site.of(Locks.from_app(source), source)


def _description(door: Door) -> Handler:
    async def describe(request: Request) -> Response:
        return reply(described(ENDPOINTS, door, mount_path(request.scope.get("root_path", ""))))

    return describe


def _route(site: Site, door: Door, endpoint: Endpoint) -> Route:
    async def handle(request: Request) -> Response:
        try:
            visitor = await door.admit(request, endpoint.method)
            asked = await _asked(endpoint, request, visitor)
            caller = f"{visitor.name} {network_of(request.scope)}"
            return reply(await _run(endpoint, site, asked, caller))
        except Exception as error:  # noqa: BLE001 (an answer is a sentence, never a traceback)
            return refused(_as_refusal(error, endpoint))

    path = endpoint.path.replace("}", f":{_ANYTHING}}}")
    return Route(path, handle, methods=[endpoint.method])


async def _run(endpoint: Endpoint, site: Site, asked: Asked, caller: str) -> dict[str, Any]:
    if endpoint.is_slow:
        return await in_slow_thread(caller, endpoint.run, site, asked)
    kind: Kind = "change" if endpoint.method == "POST" else "quick"
    return await in_thread(kind, endpoint.run, site, asked)


async def _asked(endpoint: Endpoint, request: Request, visitor: Visitor) -> Asked:
    asked = {one.name: one.checked(request.path_params[one.name]) for one in endpoint.in_path}
    query = request.scope["query_string"]
    if endpoint.method == "GET":
        asked |= from_query(endpoint.elsewhere, query)
    else:
        from_query((), query)
        _check_content_type(request)
        asked |= from_body(endpoint.elsewhere, await body_of(request))
    if "by" in asked:
        asked["by"] = _signed(asked["by"], request, visitor)
    return {**asked, "role": visitor.role}


def _check_content_type(request: Request) -> None:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "Send the body as application/json.")


def _signed(by: str, request: Request, visitor: Visitor) -> str:
    """For the record: what is known of the caller first, what only the caller says last."""
    claimed = f", claimed name {by!r}" if by else ""
    who = visitor.name or "somebody"
    return f"{who} over the web from {address_of(request.scope)}{claimed}"


def _as_refusal(error: Exception, endpoint: Endpoint) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, LockUnavailable):
        return Refusal(503, _sentence(error))
    if isinstance(error, LockUsageError):
        return Refusal(400, _sentence(error))
    logger.error("%s %s failed", endpoint.method, endpoint.path, exc_info=error)
    if isinstance(error, LockError):
        return Refusal(500, _sentence(error))
    return Refusal(500, "That failed, by a fault of ours; the log of the web server says how.")


def _sentence(error: Exception) -> str:
    words = str(error).rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    sentences = {
        404: "There is nothing at this address.",
        405: f"This address answers {headers.get('Allow', 'other methods')} only.",
    }
    sentence = sentences.get(error.status_code, f"{error.detail}.")
    return refused(Refusal(error.status_code, sentence, headers))


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return refused(error)
