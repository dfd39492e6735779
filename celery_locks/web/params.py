"""What goes into a question: each field says what it allows, to the parser and to OpenAPI."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

from celery_locks.validation import check_name
from celery_locks.web.responses import HttpError

Params = dict[str, Any]
ParamKind = Literal["text", "name", "whole", "number", "flag"]
_TYPES = {"text": "string", "name": "string", "whole": "integer", "number": "number"}
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_NUMBER = re.compile(r"-?[0-9]{1,99}(\.[0-9]{1,99})?([eE][-+]?[0-9]{1,3})?")
_FLAGS = {"true": True, "false": False}
_MOST_PARAMETERS = 50


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter, or a field of the body. ``least`` and ``most`` are of a text's length."""

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
        if self.kind == "flag":
            said: dict[str, Any] = {"type": "boolean"}
        elif self.kind == "name":
            said = {"type": "string", "format": "lock-name", "minLength": 1}
        else:
            ends = ("minLength", "maxLength") if self.kind == "text" else ("minimum", "maximum")
            bounds = zip(ends, (self.least, self.most), strict=True)
            said = {"type": _TYPES[self.kind], **{k: v for k, v in bounds if v is not None}}
        if self.choices:
            said["enum"] = list(self.choices)
        if self.or_null:
            said["type"] = [said["type"], "null"]
        if self.default is not None:
            said["default"] = self.default
        return said

    def read(self, text: str) -> Any:
        """The value that a query's text stands for."""
        if self.kind == "whole" and _WHOLE.fullmatch(text):
            return self.checked(int(text))
        if self.kind == "number" and _NUMBER.fullmatch(text):
            return self.checked(float(text))
        if self.kind == "flag" and text in _FLAGS:
            return _FLAGS[text]
        return self.checked(text)

    def checked(self, value: Any) -> Any:
        if self.kind == "name":
            check_name(value)
            return value
        if value is None and self.or_null:
            return None
        if not self._is_right(value):
            raise HttpError(400, f"{self.name} must be {self._allowed}, not {_shown(value)}.")
        return value

    def _is_right(self, value: Any) -> bool:
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "text":
            return isinstance(value, str) and _has_utf8(value) and self._fits(len(value), value)
        types = int if self.kind == "whole" else int | float
        is_number = isinstance(value, types) and not isinstance(value, bool)
        # An int may be beyond every float; a comparison takes it all the same.
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
        words = {"text": "a text", "whole": "a whole number", "number": "a number"}
        unit = " characters" if self.kind == "text" else ""
        least = "" if self.least is None else f" from {self.least:g}{unit}"
        most = "" if self.most is None else f" up to {self.most:g}{unit}"
        return words.get(self.kind, "true or false") + least + most


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    said = ascii(value)
    return said if len(said) <= 60 else f"{said[:60]}…"


def from_query(fields: Iterable[Param], query: bytes) -> Params:
    """The parameters by name; unknown, doubled and unreadable ones are refused."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:
        raise HttpError(
            400, "The query is not readable: write it percent-encoded, in UTF-8."
        ) from None
    said: dict[str, str] = {}
    for name, text in pairs:
        if name in said:
            raise HttpError(400, f"The parameter {_shown(name)} is given twice; give it once.")
        said[name] = text
    return _gathered(fields, said, "parameter", Param.read)


def from_body(fields: Iterable[Param], body: bytes) -> Params:
    """The fields of a JSON object; an empty body is an empty object."""
    try:
        said = json.loads(body or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise HttpError(400, "The body is not readable: write a JSON object, in UTF-8.") from None
    if not isinstance(said, dict):
        raise HttpError(400, f"The body must be a JSON object, not {_shown(said)}.")
    return _gathered(fields, said, "field", lambda field, value: field.checked(value))


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _gathered(fields: Iterable[Param], said: Mapping[str, Any], what: str, value: Any) -> Params:
    known = {field.name: field for field in fields}
    for name in said:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise HttpError(400, f"There is no {what} {_shown(name)} here; there is: {allowed}.")
    for field in known.values():
        if field.required and field.name not in said:
            raise HttpError(400, f"The {what} {field.name} is missing: {field.about}")
    return {
        name: value(field, said[name]) if name in said else field.default
        for name, field in known.items()
    }
