"""The table of endpoints as an OpenAPI 3.1 document.

More than 300 lines: most of them are the schemas of the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from celery_locks.web.auth import KEY_HEADER, PAGE_HEADER, Authenticator
from celery_locks.web.endpoints import Endpoint
from celery_locks.web.params import Param

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_FLAG: Schema = {"type": "boolean"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MAYBE_WHOLE: Schema = {"type": ["integer", "null"]}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(**properties: Schema) -> Schema:
    """Return an object with these properties, all required; later versions may add more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_HOLDER = {
    "token": _TEXT,
    "fence": _WHOLE,
    "task_id": _MAYBE_TEXT,
    "task": _MAYBE_TEXT,
    "retries": _WHOLE,
    "replaced": _WHOLE,
    "worker": _MAYBE_TEXT,
    "host": _MAYBE_TEXT,
    "pid": _MAYBE_WHOLE,
    "ttl": _NUMBER,
    "acquired_at": _NUMBER,
    "expires_at": _NUMBER,
}
_OVERRIDE = {
    "limit": _WHOLE,
    "by": _TEXT,
    "why": _TEXT,
    "since": _NUMBER,
    "until": _MAYBE_NUMBER,
    "glob": _TEXT,
    "rate": _TEXT,
}
_RATE = {
    "name": _TEXT,
    "limits": _list_of(_TEXT),
    "free_in": _NUMBER,
    "pushed_back": _NUMBER,
    "pause": _ref("MaybeOverride"),
    "rate_override": _ref("MaybeOverride"),
    "delayed": _WHOLE,
    "callers": _list_of(_object(task_id=_MAYBE_TEXT, starts_in=_NUMBER, is_promised=_FLAG)),
    "as_of": _NUMBER,
}
_LOCK = {
    "name": _TEXT,
    "limit": _WHOLE,
    "pause": _ref("MaybeOverride"),
    "limit_override": _ref("MaybeOverride"),
    "other_limits": _list_of(_WHOLE),
    "shared": _FLAG,
    "default_grace": _NUMBER,
    "holders": _list_of(_ref("Holder")),
    "waiters": _list_of(_ref("Holder")),
    "waiting": _WHOLE,
    "parked": _WHOLE,
    "remaining": _NUMBER,
    "as_of": _NUMBER,
}
SCHEMAS: dict[str, Schema] = {
    "Error": _object(error=_TEXT),
    "Me": _object(
        role={"enum": ["read", "write"]},
        now=_NUMBER,
        app=_FLAG,
        app_name=_MAYBE_TEXT,
        server=_TEXT,
        db=_WHOLE,
        prefix=_TEXT,
    ),
    "Holder": _object(**_HOLDER),
    "Override": _object(**_OVERRIDE),
    "MaybeOverride": {**_object(**_OVERRIDE), "type": ["object", "null"]},
    "Overridden": _object(name=_TEXT, was_set=_FLAG, locks=_list_of(_ref("Lock"))),
    "Patterns": _object(patterns=_list_of(_ref("Override"))),
    "Rate": _object(**_RATE),
    "MaybeRate": {**_object(**_RATE), "type": ["object", "null"]},
    "Rates": _object(rates=_list_of(_ref("Rate")), total=_WHOLE),
    "OverriddenRate": _object(name=_TEXT, was_set=_FLAG, rate=_ref("MaybeRate")),
    "Lock": _object(**_LOCK),
    "Liveness": _object(verdict=_TEXT, sentence=_TEXT),
    "JudgedHolder": _object(**_HOLDER, liveness=_ref("Liveness")),
    "HolderInFull": _object(
        **_HOLDER,
        liveness=_ref("Liveness"),
        arguments={"type": ["object", "null"], "properties": {"args": _TEXT, "kwargs": _TEXT}},
    ),
    "ListedLock": _object(
        **_LOCK | {"holders": _list_of(_ref("JudgedHolder"))}, usual=_ref("Usual")
    ),
    "Workers": {
        "type": ["object", "null"],
        "properties": {
            "asked": _WHOLE,
            "answered": _WHOLE,
            "age": _MAYBE_NUMBER,
            "trouble": _TEXT,
        },
        "required": ["asked", "answered", "age", "trouble"],
    },
    "Locks": _object(
        locks=_list_of(_ref("ListedLock")),
        total=_WHOLE,
        held=_WHOLE,
        waiting=_WHOLE,
        queued=_WHOLE,
        paused=_WHOLE,
        parked=_WHOLE,
        suspect=_WHOLE,
        workers=_ref("Workers"),
        as_of=_NUMBER,
        read_in=_NUMBER,
    ),
    "Act": _object(
        id=_TEXT,
        at=_NUMBER,
        act=_TEXT,
        name=_TEXT,
        by=_TEXT,
        why=_TEXT,
        held_for=_MAYBE_NUMBER,
        limit=_MAYBE_WHOLE,
        until=_MAYBE_NUMBER,
        count=_MAYBE_WHOLE,
        rate=_TEXT,
        holders=_list_of(_ref("Holder")),
    ),
    "Usual": {"type": ["object", "null"], "properties": {"held_for": _NUMBER, "holds": _WHOLE}},
    "Detail": _object(
        **_LOCK | {"holders": _list_of(_ref("HolderInFull"))},
        usual=_ref("Usual"),
        workers=_ref("Workers"),
        likely_to_end_in=_MAYBE_NUMBER,
        past=_list_of(_ref("Act")),
    ),
    "Why": _object(subject=_TEXT, sentences=_list_of(_TEXT), locks=_list_of(_ref("Lock"))),
    "History": _object(acts=_list_of(_ref("Act"))),
    "Stale": _object(
        name=_TEXT,
        verdict=_TEXT,
        sentence=_TEXT,
        held_for=_NUMBER,
        is_old=_FLAG,
        usual=_ref("Usual"),
        holder=_ref("Holder"),
    ),
    "StaleLocks": _object(stale=_list_of(_ref("Stale")), doubt=_TEXT),
    "Findings": _object(
        findings=_list_of(
            _object(level={"enum": ["error", "warning", "note"]}, where=_TEXT, sentence=_TEXT)
        )
    ),
    "DoneWork": _object(
        done=_list_of(_object(key=_TEXT, state=_TEXT, size=_WHOLE, lapses_in=_NUMBER, error=_TEXT)),
        looked_at=_WHOLE,
        complete=_FLAG,
    ),
    "Purged": _object(name=_TEXT, purged=_list_of(_ref("Holder")), unmarked=_TEXT, trouble=_TEXT),
    "Reset": _object(key=_TEXT, reset=_FLAG),
    "Freed": _object(freed=_list_of(_ref("Holder"))),
    "FreedMany": _object(
        freed=_list_of(_ref("FreedHolder")),
        not_held=_list_of(_ref("Target")),
        unknown=_list_of(_ref("Target")),
        trouble=_TEXT,
    ),
    "FreedHolder": _object(name=_TEXT, **_HOLDER),
    "Target": _object(name=_TEXT, token=_TEXT),
    "AskedToStop": _object(asked=_list_of(_ref("Holder"))),
    "Swept": _object(freed=_list_of(_ref("Stale")), spared=_list_of(_ref("Stale")), doubt=_TEXT),
    "HeldByTask": _object(name=_TEXT, **_HOLDER, as_of=_NUMBER),
    "TaskLocks": _object(locks=_list_of(_ref("HeldByTask")), total=_WHOLE, as_of=_NUMBER),
    "TaskLock": _object(
        task_id=_TEXT, locked=_FLAG, locks=_list_of(_ref("HeldByTask")), as_of=_NUMBER
    ),
    "FreedTask": _object(task_id=_TEXT, freed=_list_of(_ref("HeldByTask"))),
}
_ERRORS = {
    400: "Invalid input.",
    401: "No credential, or a wrong one.",
    403: "The credential does not permit this, or the request came from another site.",
    404: "Not found.",
    409: "Not possible here.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many requests.",
    500: "Internal error.",
    503: "The lock server or the broker does not answer.",
}
_COMMON_ERRORS = (400, 401, 403, 429, 500, 503)
_POST_ERRORS = (413, 415)


def describe_api(
    endpoints: Iterable[Endpoint], authenticator: Authenticator, root_path: str
) -> Schema:
    """Return the document for this app's credentials and the path it is mounted at."""
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(
            endpoint, authenticator
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "celery-locks", "version": _version()},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": _schemes(authenticator)},
        "security": _security(authenticator),
    }


def _version() -> str:
    try:
        return version("celery-locks")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


def _schemes(authenticator: Authenticator) -> Schema:
    if not authenticator.has_keys:
        return {}
    return {
        "key": {"type": "apiKey", "in": "header", "name": KEY_HEADER},
        "bearer": {"type": "http", "scheme": "bearer"},
    }


def _security(authenticator: Authenticator) -> list[Schema]:
    schemes: list[Schema] = [{name: []} for name in _schemes(authenticator)]
    return [*schemes, {}] if authenticator.is_ambient else schemes


def _operation(endpoint: Endpoint, authenticator: Authenticator) -> Schema:
    is_post = endpoint.method == "POST"
    parameters = [_parameter(param, "path") for param in endpoint.path_params]
    if not is_post:
        parameters += [_parameter(param, "query") for param in endpoint.other_params]
    elif authenticator.is_ambient:
        parameters.append(_page_header())
    statuses = sorted({*_COMMON_ERRORS, *endpoint.errors, *(_POST_ERRORS if is_post else ())})
    operation: Schema = {
        "summary": endpoint.about,
        "operationId": endpoint.handler.__name__.rstrip("_"),
        "parameters": parameters,
        "responses": {
            "200": _response("The answer.", endpoint.schema),
            **{str(status): _response(_ERRORS[status], "Error") for status in statuses},
        },
    }
    if is_post:
        operation["requestBody"] = _body(endpoint)
    return operation


def _parameter(param: Param, location: str) -> Schema:
    return {
        "name": param.name,
        "in": location,
        "required": param.required,
        "description": param.about,
        "schema": param.schema,
    }


def _page_header() -> Schema:
    return {
        "name": PAGE_HEADER,
        "in": "header",
        "required": True,
        "description": "Proves that no foreign page sent the request.",
        "schema": {"type": "string", "enum": ["1"]},
    }


def _body(endpoint: Endpoint) -> Schema:
    params = endpoint.other_params
    schema: Schema = {
        "type": "object",
        "properties": {
            param.name: {**param.schema, "description": param.about} for param in params
        },
        "additionalProperties": False,
        "required": [param.name for param in params if param.required],
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _response(about: str, schema: str) -> Schema:
    return {"description": about, "content": {"application/json": {"schema": _ref(schema)}}}
