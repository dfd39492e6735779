"""The parameters of a request: each states what it allows, for the parser and for OpenAPI."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

from starlette.requests import Request

from celery_locks.admin import Target
from celery_locks.validation import check_name
from celery_locks.web.responses import HttpError

Params = dict[str, Any]
ParamKind = Literal["text", "name", "whole", "number", "flag"]
MAX_BODY = 64 * 1024
MAX_HOLDERS = 100
_TYPES = {"text": "string", "name": "string", "whole": "integer", "number": "number"}
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"-?[0-9]{1,99}(\.[0-9]{1,99})?([eE][-+]?[0-9]{1,3})?")
_FLAGS = {"true": True, "false": False}
_MAX_PARAMETERS = 50
_SHOWN_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter, or a field of the body. ``least`` and ``most`` bound a text's length."""

    name: str
    kind: ParamKind
    about: str
    required: bool = False
    default: Any = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    or_null: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        if self.kind == "flag":
            schema: dict[str, Any] = {"type": "boolean"}
        elif self.kind == "name":
            schema = {"type": "string", "format": "lock-name", "minLength": 1}
        else:
            ends = ("minLength", "maxLength") if self.kind == "text" else ("minimum", "maximum")
            bounds = zip(ends, (self.least, self.most), strict=True)
            schema = {"type": _TYPES[self.kind], **{k: v for k, v in bounds if v is not None}}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.or_null:
            schema["type"] = [schema["type"], "null"]
        if self.default is not None:
            schema["default"] = self.default
        return schema

    def parse(self, text: str) -> Any:
        """Return the value that a text in the query stands for."""
        if self.kind == "whole" and _WHOLE.fullmatch(text):
            return self.check(int(text))
        if self.kind == "number" and _NUMBER.fullmatch(text):
            return self.check(float(text))
        if self.kind == "flag" and text in _FLAGS:
            return _FLAGS[text]
        return self.check(text)

    def check(self, value: Any) -> Any:
        """Return the value; raise ``HttpError`` 400 if it is not allowed."""
        if self.kind == "name":
            check_name(value)
            return value
        if value is None and self.or_null:
            return None
        if self.kind == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)  # for JSON Schema 3.0 is a whole number too
        if not self._is_valid(value):
            raise HttpError(400, f"{self.name} must be {self._allowed}, not {_shorten(value)}.")
        return value

    def _is_valid(self, value: Any) -> bool:
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "text":
            return isinstance(value, str) and _is_utf8(value) and self._fits(len(value), value)
        types = int if self.kind == "whole" else int | float
        is_number = isinstance(value, types) and not isinstance(value, bool)
        # An int may be larger than any float; it can still be compared.
        is_finite = isinstance(value, int) or (is_number and math.isfinite(value))
        return is_number and is_finite and self._fits(value, value)

    def _fits(self, size: float, value: Any) -> bool:
        if self.choices and value not in self.choices:
            return False
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        return low <= size <= high

    @property
    def _allowed(self) -> str:
        if self.choices:
            return " or ".join(repr(choice) for choice in self.choices)
        nouns = {"text": "a text", "whole": "a whole number", "number": "a number"}
        unit = " characters" if self.kind == "text" else ""
        least = "" if self.least is None else f" from {self.least:g}{unit}"
        most = "" if self.most is None else f" up to {self.most:g}{unit}"
        return nouns.get(self.kind, "true or false") + least + most


TOKEN = Param("token", "text", "Only the holder with this token.", least=1, most=2000)


class RateParam(Param):
    """A rate such as "10/m"; ``admin.set_rate`` refuses others."""

    @property
    def schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        return {"type": "string", "format": "rate", "minLength": 1}


class HoldersParam(Param):
    """A list of 1 to ``MAX_HOLDERS`` holders: objects with a lock's ``name`` and a ``token``."""

    @property
    def schema(self) -> dict[str, Any]:
        """The parameter as JSON Schema."""
        name = {"type": "string", "format": "lock-name", "minLength": 1}
        item = {
            "type": "object",
            "properties": {"name": name, "token": TOKEN.schema},
            "required": ["name", "token"],
            "additionalProperties": False,
        }
        return {"type": "array", "items": item, "minItems": 1, "maxItems": MAX_HOLDERS}

    def check(self, value: Any) -> tuple[Target, ...]:
        """Return the holders; raise ``HttpError`` 400 if the list is not one of holders."""
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_HOLDERS:
            raise HttpError(400, f"{self.name} must be a list of 1 to {MAX_HOLDERS} holders.")
        return tuple(self._target(item) for item in value)

    def _target(self, item: Any) -> Target:
        if not isinstance(item, dict) or set(item) != {"name", "token"}:
            raise HttpError(400, f"Each of {self.name} must be an object with name and token.")
        check_name(item["name"])
        return Target(item["name"], TOKEN.check(item["token"]))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"


def parse_query(params: Iterable[Param], query: bytes) -> Params:
    """Return the parameters by name; refuse unknown, repeated and unreadable ones."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise HttpError(
            400, "The query is not readable: write it percent-encoded, in UTF-8."
        ) from None
    texts: dict[str, str] = {}
    for name, text in pairs:
        if name in texts:
            raise HttpError(400, f"The parameter {_shorten(name)} is given twice; give it once.")
        texts[name] = text
    return _convert(params, texts, "parameter", lambda param, text: param.parse(text))


async def read_body(request: Request) -> bytes:
    """Return the body; never keep more of it in memory than the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HttpError(413, f"The body is larger than {MAX_BODY // 1024} kB.")
    return bytes(body)


def parse_body(params: Iterable[Param], body: bytes) -> Params:
    """Return the fields of a JSON object; an empty body is an empty object."""
    try:
        values = json.loads(body or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise HttpError(400, "The body is not readable: write a JSON object, in UTF-8.") from None
    if not isinstance(values, dict):
        raise HttpError(400, f"The body must be a JSON object, not {_shorten(values)}.")
    return _convert(params, values, "field", lambda param, value: param.check(value))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _convert(
    params: Iterable[Param],
    values: Mapping[str, Any],
    noun: str,
    convert: Callable[[Param, Any], Any],
) -> Params:
    known = {param.name: param for param in params}
    for name in values:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise HttpError(400, f"There is no {noun} {_shorten(name)} here; there is: {allowed}.")
    for param in known.values():
        if param.required and param.name not in values:
            raise HttpError(400, f"The {noun} {param.name} is missing: {param.about}")
    return {
        name: convert(param, values[name]) if name in values else param.default
        for name, param in known.items()
    }
