"""The REST API, from the OpenAPI document that the web surface serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from celery_locks.web.auth import make_authenticator
from celery_locks.web.endpoints import ENDPOINTS
from celery_locks.web.openapi import describe_api
from celery_locks_site.markdown import code, codes, table, text

Schema = dict[str, Any]


def document() -> Schema:
    """Return the document of a server with API keys."""
    return describe_api(ENDPOINTS, make_authenticator(["r" * 16], ["w" * 16], None, False), "")


def operations(api: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def page() -> str:
    api = document()
    rows = [
        [f"[{code(f'{method} {path}')}](#{_anchor(method, path)})", text(operation["summary"])]
        for method, path, operation in operations(api)
    ]
    parts = [
        table(["request", "what it does"], rows),
        *(_section(*operation) for operation in operations(api)),
        "## Objects\n\nEvery field is always there; later versions may add fields.",
        *(_object(name, schema) for name, schema in api["components"]["schemas"].items()),
    ]
    return "\n\n".join(parts) + "\n"


def _anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{method} {path}".lower()).strip("-")


def _section(method: str, path: str, operation: Schema) -> str:
    parts = [
        f"({_anchor(method, path)})=\n\n## {code(f'{method} {path}')}",
        text(operation["summary"]),
        *_params(operation),
        _responses(operation["responses"]),
    ]
    return "\n\n".join(parts)


def _params(operation: Schema) -> Iterator[str]:
    rows = [
        [
            code(it["name"]),
            it["in"],
            _type(it["schema"]),
            _needed(it["schema"], it["required"]),
            text(it["description"]),
        ]
        for it in operation["parameters"]
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = body.get("schema", {})
    rows += [
        [
            code(name),
            "body",
            _type(field),
            _needed(field, name in schema["required"]),
            text(field["description"]),
        ]
        for name, field in schema.get("properties", {}).items()
    ]
    if rows:
        yield table(["parameter", "in", "type", "default", "meaning"], rows)


def _needed(schema: Schema, is_required: bool) -> str:
    if is_required:
        return "required"
    return code(json.dumps(schema["default"])) if "default" in schema else "–"


def _responses(responses: Schema) -> str:
    rows = []
    for status, response in responses.items():
        schema = response["content"]["application/json"]["schema"]
        rows.append([code(status), text(response["description"]), _type(schema)])
    return table(["status", "meaning", "body"], rows)


def _object(name: str, schema: Schema) -> str:
    fields = schema.get("properties", {})
    required = schema.get("required", [])
    rows = [
        [code(it), _type(field), "always" if it in required else "may be missing"]
        for it, field in fields.items()
    ]
    maybe = "May be `null`.\n\n" if "null" in schema["type"] else ""
    body = table(["field", "type", "there"], rows)
    return f"({_object_anchor(name)})=\n\n### {name}\n\n{maybe}{body}"


def _object_anchor(name: str) -> str:
    return f"object-{name.lower()}"


def _type(schema: Schema) -> str:
    """Return the type of a value, with its bounds, as Markdown."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_object_anchor(name)})"
    if "enum" in schema:
        return codes(json.dumps(value) for value in schema["enum"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object":
        return "object with " + codes(schema.get("properties", {}))
    kinds = schema.get("type", "any")
    kinds = " or ".join(kinds) if isinstance(kinds, list) else kinds
    return kinds + _bounds(schema)


def _bounds(schema: Schema) -> str:
    texts = {
        "minimum": "from {:,}",
        "maximum": "to {:,}",
        "minLength": "at least {:,} characters",
        "maxLength": "at most {:,} characters",
    }
    found = [words.format(schema[name]) for name, words in texts.items() if name in schema]
    return f", {' '.join(found)}" if found else ""
