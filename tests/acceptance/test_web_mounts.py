"""The app mounted below a prefix in other applications, as docs/operations/rest-access.md shows."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from a2wsgi import ASGIMiddleware
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from celery_locks import Locks
from celery_locks.types import Holder, LockSpec
from celery_locks.web import create_app
from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import new_directory
from tests.support.celery_worker import PATIENCE, ROOT
from tests.support.web import MAY_READ, MAY_WRITE, READ, WRITE

_tokens = itertools.count()
AcquireRequest = Callable[..., httpx.Response]
DJANGO = """
import os
from celery_locks import Locks
from celery_locks.web import create_app
from django.conf import settings
from django.core.asgi import get_asgi_application

settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"])
django = get_asgi_application()
locks = Locks.from_url(os.environ["LOCKS_URL"])
web = create_app(locks, read_keys=[os.environ["READ"]], write_keys=[os.environ["WRITE"]])


async def application(scope, receive, send):
    if scope["type"] == "http" and f"{scope['path']}/".startswith("/locks/"):
        await web({**scope, "root_path": "/locks"}, receive, send)
    else:
        await django(scope, receive, send)
"""


@contextmanager
def in_fastapi(web: Any, url: str) -> Iterator[AcquireRequest]:
    app = FastAPI()
    app.mount("/locks", web)
    yield asking(app)


@contextmanager
def in_starlette(web: Any, url: str) -> Iterator[AcquireRequest]:
    app = Starlette(routes=[Mount("/locks", web)])
    yield asking(app)


@contextmanager
def in_flask(web: Any, url: str) -> Iterator[AcquireRequest]:
    app = Flask(__name__)
    app.wsgi_app = DispatcherMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, {"/locks": ASGIMiddleware(web)}
    )
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://host") as client:
        yield client.request


@contextmanager
def in_django(web: Any, url: str) -> Iterator[AcquireRequest]:
    """Run it in its own process, because Django allows one set of settings per process."""
    directory = new_directory()
    (directory / "asgi.py").write_text(DJANGO)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{directory}",
        "LOCKS_URL": url,
        "READ": READ,
        "WRITE": WRITE,
    }
    with socket.create_server(("127.0.0.1", 0)) as listening:
        fd, port = listening.fileno(), listening.getsockname()[1]
        serve = [sys.executable, "-m", "uvicorn", "asgi:application", "--fd", str(fd)]
        process = subprocess.Popen(serve, env=environment, pass_fds=[fd], cwd=directory)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            yield client.request
    finally:
        process.terminate()
        process.wait(PATIENCE)


def asking(app: Any) -> AcquireRequest:
    def ask(method: str, path: str, **request: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())

    return ask


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="module")
def locks(server: EmbeddedServer) -> Iterator[Locks]:
    locks = Locks.from_url(server.url)
    yield locks
    locks.close()


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_django, in_flask])
def test_everything_works_below_a_prefix(
    mount: Callable[..., Any], locks: Locks, server: EmbeddedServer
) -> None:
    """Page, files, list and release work anywhere, and so does the application around them."""
    web = create_app(locks, read_keys=[READ], write_keys=[WRITE])
    with mount(web, server.url) as ask:
        shows_everything(ask, locks)


def shows_everything(ask: AcquireRequest, locks: Locks) -> None:
    token, task_id = f"t{next(_tokens)}", "a/task id"
    locks.perform(locks.commands.acquire(LockSpec("n/1", 60), token, Holder(task_id=task_id)))

    bare = ask("GET", "/locks")
    assert bare.status_code in (307, 308)
    assert bare.url.join(bare.headers["Location"]).path == "/locks/"
    page = ask("GET", "/locks/")
    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    for address in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert ask("GET", page.url.join(address).path).status_code == 200
    assert ask("GET", "/locks/openapi.json").json()["servers"] == [{"url": "/locks"}]

    assert ask("GET", "/locks/api/v1/locks").status_code == 401
    listed = ask("GET", "/locks/api/v1/locks", headers=MAY_READ).json()
    assert [lock["name"] for lock in listed["locks"]] == ["n/1"]
    assert ask("GET", "/locks/api/v1/locks/info?name=n/1", headers=MAY_READ).json()["name"] == "n/1"
    path = "/locks/api/v1/tasks/a%2Ftask%20id"
    assert ask("GET", f"{path}/lock", headers=MAY_READ).json()["locked"]
    freed = ask("POST", f"{path}/release-lock", headers=MAY_WRITE, json={"reason": "é"})
    assert [row["name"] for row in freed.json()["freed"]] == ["n/1"]
    assert not locks.holders("n/1")
    again = ask("POST", "/locks/api/v1/locks/release", headers=MAY_WRITE, json={"name": "n/1"})
    assert again.status_code == 404
    assert ask("GET", "/elsewhere").status_code == 404
    assert "Content-Security-Policy" not in ask("GET", "/elsewhere").headers
