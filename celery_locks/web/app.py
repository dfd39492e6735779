"""Builds the Starlette app: routes from the table of endpoints, and a guard around all of them."""

from __future__ import annotations

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
from celery_locks.logs import Reports
from celery_locks.web.auth import Authenticator, Authorize, Principal, make_authenticator
from celery_locks.web.context import WebContext
from celery_locks.web.endpoints import ENDPOINTS, Endpoint
from celery_locks.web.middleware import Guard, RequestLimit, address_of, mount_path, network_of
from celery_locks.web.openapi import describe_api
from celery_locks.web.params import Params, parse_body, parse_query, read_body
from celery_locks.web.responses import HttpError, error_response, json_response
from celery_locks.web.static_files import page_routes
from celery_locks.web.threads import RequestKind, run_in_thread, run_slow

_reports = Reports()
Handler = Callable[[Request], Awaitable[Response]]
_ANYTHING = "celery_locks_anything"


class _Anything(Convertor[str]):
    """A task id in a path. Users choose ids, so it may contain slashes and line ends too."""

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
    """Build an ASGI app with the page and the REST API, for a Celery app or ``Locks``.

    Callers are let in by API keys (headers ``X-API-Key`` or ``Authorization: Bearer``), by
    ``authorize``, or with ``open_to_all=True`` without any check. ``authorize`` gets the request
    and returns "read", "write" or None, or the role and the user's name, ``("write", "ann")``; the
    name is then recorded in the history. ``requests_per_minute`` is the limit for one address.
    With ``loopback_only``, requests for another host than this machine are refused, so that a
    foreign site cannot reach the app through a browser (DNS rebinding); the default is
    ``open_to_all``.
    """
    authenticator = make_authenticator(read_keys, write_keys, authorize, open_to_all)
    context = WebContext.of(source)
    limit = RequestLimit(requests_per_minute)
    loopback_only = open_to_all if loopback_only is None else loopback_only
    guard = Middleware(Guard, limit=limit, loopback_only=loopback_only)
    app = Starlette(
        routes=[
            *page_routes(),
            Route("/openapi.json", _openapi_handler(authenticator)),
            *(_route(context, authenticator, endpoint) for endpoint in ENDPOINTS),
        ],
        middleware=[guard],
        exception_handlers={HTTPException: _on_http_exception, HttpError: _on_http_error},
    )
    # Starlette would redirect to whatever the Host header says.
    app.router.redirect_slashes = False
    # For code that has to close the locks when it ends.
    app.state.context = context
    return app


def _openapi_handler(authenticator: Authenticator) -> Handler:
    async def describe(request: Request) -> Response:
        root = mount_path(request.scope.get("root_path", ""))
        return json_response(describe_api(ENDPOINTS, authenticator, root))

    return describe


def _route(context: WebContext, authenticator: Authenticator, endpoint: Endpoint) -> Route:
    async def handle(request: Request) -> Response:
        try:
            principal = await authenticator.authenticate(request, endpoint.method)
            params = await _read_params(endpoint, request, principal)
            caller = f"{principal.name} {network_of(request.scope)}"
            return json_response(await _run(endpoint, context, params, caller))
        except Exception as error:  # noqa: BLE001 (the response is a sentence, never a traceback)
            return error_response(_to_http_error(error, endpoint))

    path = endpoint.path.replace("}", f":{_ANYTHING}}}")
    return Route(path, handle, methods=[endpoint.method])


async def _run(
    endpoint: Endpoint, context: WebContext, params: Params, caller: str
) -> dict[str, Any]:
    if endpoint.is_slow:
        return await run_slow(caller, endpoint.handler, context, params)
    kind: RequestKind = "change" if endpoint.method == "POST" else "quick"
    return await run_in_thread(kind, endpoint.handler, context, params)


async def _read_params(endpoint: Endpoint, request: Request, principal: Principal) -> Params:
    params = {
        param.name: param.check(request.path_params[param.name]) for param in endpoint.path_params
    }
    query = request.scope["query_string"]
    if endpoint.method == "GET":
        params |= parse_query(endpoint.other_params, query)
    else:
        parse_query((), query)
        _check_content_type(request)
        params |= parse_body(endpoint.other_params, await read_body(request))
    if "by" in params:
        params["by"] = _signature(params["by"], request, principal)
    return {**params, "role": principal.role}


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HttpError(415, "Send the body as application/json.")


def _signature(by: str, request: Request, principal: Principal) -> str:
    """Return the caller for the history: what is verified first, what is only claimed last."""
    claimed = f", claimed name {by!r}" if by else ""
    who = principal.name or "somebody"
    return f"{who} over the web from {address_of(request.scope)}{claimed}"


def _to_http_error(error: Exception, endpoint: Endpoint) -> HttpError:
    if isinstance(error, HttpError):
        return error
    if isinstance(error, LockUnavailable):
        return HttpError(503, _sentence(error))
    if isinstance(error, LockUsageError):
        return HttpError(400, _sentence(error))
    _reports.failure("%s %s failed", endpoint.method, endpoint.path)
    if isinstance(error, LockError):
        return HttpError(500, _sentence(error))
    return HttpError(500, "Internal error; see the log of the web server.")


def _sentence(error: Exception) -> str:
    text = str(error).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    sentences = {
        404: "There is nothing at this address.",
        405: f"This address accepts {headers.get('Allow', 'other methods')} only.",
    }
    sentence = sentences.get(error.status_code, f"{error.detail}.")
    return error_response(HttpError(error.status_code, sentence, headers))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error_response(error)
