"""Answers: JSON whatever is in it, errors as sentences, and the headers that every answer has."""

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
# Names and holders are nobody's business but the asker's; the page's files say otherwise.
NO_STORE = "no-store"


class HttpError(Exception):
    """The answer is no, in a sentence."""

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_dumped(value), status, headers, "application/json")


def refused(refusal: HttpError) -> Response:
    return reply({"error": refusal.sentence}, refusal.status, refusal.headers)


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        # What a holder says of itself may hold a NaN, which is no JSON; it must not spoil a list.
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda word: None))
