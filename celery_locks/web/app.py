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

from celery_locks.core.locks import Locks
from celery_locks.errors import LockError, LockUnavailable, LockUsageError
from celery_locks.web.addresses import address_of, network_of
from celery_locks.web.auth import Authenticator, Authorize, Principal, make_authenticator
from celery_locks.web.context import WebContext
from celery_locks.web.endpoints import ENDPOINTS, Endpoint
from celery_locks.web.limits import ParamKind, RequestLimit, body_of, in_slow_thread, in_thread
from celery_locks.web.middleware import Guard, mount_path
from celery_locks.web.openapi import described
from celery_locks.web.params import Params, from_body, from_query
from celery_locks.web.responses import HttpError, refused, reply
from celery_locks.web.static_files import page_routes

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
    authenticator = make_authenticator(read_keys, write_keys, authorize, open_to_all)
    context = _site_of(source)
    limit = RequestLimit(requests_per_minute)
    loopback_only = open_to_all if loopback_only is None else loopback_only
    guard = Middleware(Guard, limit=limit, loopback_only=loopback_only)
    app = Starlette(
        routes=[
            *page_routes(),
            Route("/openapi.json", _description(authenticator)),
            *(_route(context, authenticator, endpoint) for endpoint in ENDPOINTS),
        ],
        middleware=[guard],
        exception_handlers={HTTPException: _http_error, HttpError: _refusal},
    )
    # It would answer with a redirect to whatever the Host header says.
    app.router.redirect_slashes = False
    # For those who have to close its locks when they end.
    app.state.context = context
    return app


def _site_of(source: Any) -> WebContext:
    if isinstance(source, Locks):
        return WebContext.of(source)
    if not hasattr(source, "conf") or not hasattr(source, "tasks"):
        raise LockUsageError(
            f"create_app needs a Celery app or Locks, not a {type(source).__name__}"
        )
    return WebContext.of(Locks.from_app(source), source)


def _description(authenticator: Authenticator) -> Handler:
    async def describe(request: Request) -> Response:
        return reply(
            described(ENDPOINTS, authenticator, mount_path(request.scope.get("root_path", "")))
        )

    return describe


def _route(context: WebContext, authenticator: Authenticator, endpoint: Endpoint) -> Route:
    async def handle(request: Request) -> Response:
        try:
            principal = await authenticator.admit(request, endpoint.method)
            asked = await _asked(endpoint, request, principal)
            caller = f"{principal.name} {network_of(request.scope)}"
            return reply(await _run(endpoint, context, asked, caller))
        except Exception as error:  # noqa: BLE001 (an answer is a sentence, never a traceback)
            return refused(_as_refusal(error, endpoint))

    path = endpoint.path.replace("}", f":{_ANYTHING}}}")
    return Route(path, handle, methods=[endpoint.method])


async def _run(
    endpoint: Endpoint, context: WebContext, asked: Params, caller: str
) -> dict[str, Any]:
    if endpoint.is_slow:
        return await in_slow_thread(caller, endpoint.run, context, asked)
    kind: ParamKind = "change" if endpoint.method == "POST" else "quick"
    return await in_thread(kind, endpoint.run, context, asked)


async def _asked(endpoint: Endpoint, request: Request, principal: Principal) -> Params:
    asked = {one.name: one.checked(request.path_params[one.name]) for one in endpoint.in_path}
    query = request.scope["query_string"]
    if endpoint.method == "GET":
        asked |= from_query(endpoint.elsewhere, query)
    else:
        from_query((), query)
        _check_content_type(request)
        asked |= from_body(endpoint.elsewhere, await body_of(request))
    if "by" in asked:
        asked["by"] = _signed(asked["by"], request, principal)
    return {**asked, "role": principal.role}


def _check_content_type(request: Request) -> None:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "Send the body as application/json.")


def _signed(by: str, request: Request, principal: Principal) -> str:
    """For the record: what is known of the caller first, what only the caller says last."""
    claimed = f", claimed name {by!r}" if by else ""
    who = principal.name or "somebody"
    return f"{who} over the web from {address_of(request.scope)}{claimed}"


def _as_refusal(error: Exception, endpoint: Endpoint) -> HttpError:
    if isinstance(error, HttpError):
        return error
    if isinstance(error, LockUnavailable):
        return HttpError(503, _sentence(error))
    if isinstance(error, LockUsageError):
        return HttpError(400, _sentence(error))
    logger.error("%s %s failed", endpoint.method, endpoint.path, exc_info=error)
    if isinstance(error, LockError):
        return HttpError(500, _sentence(error))
    return HttpError(500, "That failed, by a fault of ours; the log of the web server says how.")


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
    return refused(HttpError(error.status_code, sentence, headers))


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return refused(error)
