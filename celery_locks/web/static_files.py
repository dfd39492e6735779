"""The page and its files: those in ``static/``, read once, and nothing else on the disk."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from celery_locks.web.responses import HttpError

_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


def page_routes() -> list[Route]:
    contents = _read_files()

    async def index(request: Request) -> Response:
        return _file_response(request, _INDEX, contents[_INDEX])

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in contents:
            raise HttpError(404, "There is no such file.")
        return _file_response(request, name, contents[name])

    return [Route("/", index), Route("/static/{name:path}", file)]


def _read_files() -> dict[str, bytes]:
    folder = files("celery_locks.web") / "static"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.is_file() and PurePath(file.name).suffix in _TYPES
    }


def _file_response(request: Request, name: str, content: bytes) -> Response:
    """Return the file, or 304 if the browser has this version; browsers ask each time."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {
        "Cache-Control": "no-cache",
        "ETag": tag,
        "Content-Type": _TYPES[PurePath(name).suffix],
    }
    if request.headers.get("If-None-Match") == tag:
        return Response(None, 304, headers)
    return Response(content, 200, headers)
