"""Responses: JSON whatever the values are, errors as sentences, and the headers of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# Names and holders must not stay in any cache; the page's own files set another value.
NO_STORE = "no-store"


class HttpError(Exception):
    """A request that fails, with its status and a sentence for the caller."""

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(_to_json(value), status, headers, "application/json")


def error_response(error: HttpError) -> Response:
    return json_response({"error": error.sentence}, error.status, error.headers)


def _to_json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        # A holder's own data may contain NaN, which is not JSON; one holder must not break a list.
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda name: None))
