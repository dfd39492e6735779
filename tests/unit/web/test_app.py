"""The app as a whole, without a lock server: what it serves, what it refuses, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

import celery_locks.web
from celery_locks import Locks
from celery_locks.logs import Reports
from celery_locks.web import app as web_app
from celery_locks.web import create_app
from celery_locks.web.endpoints import ENDPOINTS
from celery_locks.web.openapi import SCHEMAS
from celery_locks.web.responses import json_response
from tests.support.web import MAY_READ, MAY_WRITE, READ, WRITE, ask, error_of

NOWHERE = Locks.from_url("redis://127.0.0.1:1")
STATIC = Path(celery_locks.web.__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@pytest.fixture(scope="module")
def app() -> Any:
    return create_app(NOWHERE, read_keys=[READ], write_keys=[WRITE], requests_per_minute=10**6)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("HEAD", "/", {}, 200),
        ("GET", "/openapi.json", {}, 200),
        ("GET", "/static/none.js", {}, 404),
        ("GET", "/nothing", {}, 404),
        ("GET", "/api/v1/locks/", MAY_READ, 404),
        ("GET", "/api/v1/me", {}, 401),
        ("POST", "/api/v1/locks/release", MAY_READ, 403),
        ("DELETE", "/api/v1/locks", MAY_READ, 405),
        ("GET", "/api/v1/locks/release", MAY_WRITE, 405),
        ("POST", "/", MAY_WRITE, 405),
        ("POST", "/api/v1/locks/release", MAY_WRITE, 415),
        ("GET", "/api/v1/locks?nam=x", MAY_READ, 400),
        ("GET", "/api/v1/me", MAY_READ, 503),
        ("GET", "/api/v1/locks", MAY_READ, 503),
    ],
)
def test_every_answer_has_the_headers(
    app: Any, method: str, path: str, headers: Any, status: int
) -> None:
    """A policy that error responses lack protects nobody."""
    answer = ask(app, method, path, headers=headers)
    assert answer.status_code == status
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == (
        "no-cache" if path == "/" and status < 400 else "no-store"
    )
    assert "Access-Control-Allow-Origin" not in answer.headers
    if status >= 400:
        assert error_of(answer)


def test_unreachable_lock_server_is_reported_in_a_sentence(app: Any) -> None:
    answer = ask(app, "GET", "/api/v1/tasks/x/lock", headers=MAY_READ)
    assert answer.status_code == 503
    assert "Traceback" not in answer.text
    assert error_of(answer)


def test_internal_error_is_reported_without_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback may contain secrets; it goes to the log only."""
    monkeypatch.setattr(web_app, "_reports", Reports())
    monkeypatch.setattr(NOWHERE, "perform", lambda call: 1 / 0)
    app = create_app(NOWHERE, read_keys=[READ])
    answer = ask(app, "GET", "/api/v1/me", headers=MAY_READ)
    assert answer.status_code == 500
    assert "ZeroDivisionError" not in error_of(answer)
    assert "ZeroDivisionError" in caplog.text


def test_internal_error_that_repeats_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page asks every second."""
    monkeypatch.setattr(web_app, "_reports", Reports())
    monkeypatch.setattr(NOWHERE, "perform", lambda call: 1 / 0)
    app = create_app(NOWHERE, read_keys=[READ])
    for _ in range(3):
        ask(app, "GET", "/api/v1/me", headers=MAY_READ)
    assert caplog.messages == ["GET /api/v1/me failed"]


def test_wrong_method_names_the_right_one(app: Any) -> None:
    answer = ask(app, "DELETE", "/api/v1/locks/release")
    assert answer.headers["Allow"] == "POST"
    assert error_of(answer) == "This address accepts POST only."
    assert ask(app, "POST", "/api/v1/locks").headers["Allow"] in ("GET, HEAD", "HEAD, GET")


@pytest.mark.parametrize("body", [{"nam": "a"}, {"name": "a", "tokn": "b"}, {"name": 5}, []])
def test_unknown_field_is_refused(app: Any, body: Any) -> None:
    """If a misspelt token were ignored, the request would release another holder's lock."""
    answer = ask(app, "POST", "/api/v1/locks/release", headers=MAY_WRITE, json=body)
    assert answer.status_code == 400
    assert error_of(answer)


def test_change_takes_no_parameters(app: Any) -> None:
    path = "/api/v1/locks/release?token=x"
    answer = ask(app, "POST", path, headers=MAY_WRITE, json={"name": "a"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "name",
    [
        "../__init__.py",
        "..%2f__init__.py",
        "%2e%2e/build.py",
        "..\\build.py",
        "/etc/passwd",
        "//etc/passwd",
        "",
        "%00",
    ],
)
def test_static_has_nothing_but_its_files(app: Any, name: str) -> None:
    answer = ask(app, "GET", f"/static/{name}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_static_serves_every_file(app: Any) -> None:
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
    for path in STATIC.iterdir():
        answer = ask(app, "GET", f"/static/{path.name}")
        assert answer.content == path.read_bytes()
        assert answer.headers["Content-Type"].startswith(kinds.get(path.suffix, "image/"))
        tag = {"If-None-Match": answer.headers["ETag"]}
        again = ask(app, "GET", f"/static/{path.name}", headers=tag)
        assert (again.status_code, again.content) == (304, b"")
    assert ask(app, "GET", "/").content == (STATIC / "index.html").read_bytes()


def test_mount_path_without_slash_redirects_to_the_page(app: Any) -> None:
    """The page's relative links work only below the slash."""
    answer = ask(app, "GET", "/ops/locks", root_path="/ops/locks")
    assert (answer.status_code, answer.headers["Location"]) == (307, "/ops/locks/")
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert ask(app, "GET", "/ops/locks/", root_path="/ops/locks").status_code == 200


@pytest.mark.parametrize("root", ["//evil.example", "/\\evil.example", "///evil.example/x"])
def test_prefix_cannot_lead_to_another_site(app: Any, root: str) -> None:
    """A browser reads //evil.example as a host: the page and its API calls would go there."""
    moved = web_app.Guard(app, web_app.RequestLimit(9), False)._early_response(
        {"path": "", "root_path": root}
    )
    assert moved is not None
    for url in (
        moved.headers["Location"],
        url_of(ask(app, "GET", "/openapi.json", root_path=root)),
    ):
        assert re.match(r"/[^/\\]", url), url


def url_of(answer: Any) -> str:
    return str(answer.json()["servers"][0]["url"])


def test_openapi_and_routes_agree(app: Any) -> None:
    """Everything described is served, and everything served below /api/ is described."""
    document = ask(app, "GET", "/openapi.json", root_path="/ops").json()
    described = {
        (path, method.upper()) for path, methods in document["paths"].items() for method in methods
    }
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {
        (re.sub(r":\w+}", "}", route.path), method)
        for route in routes
        if route.path.startswith("/api/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert described == served == {(endpoint.path, endpoint.method) for endpoint in ENDPOINTS}
    assert document["servers"] == [{"url": "/ops"}]
    assert set(document["components"]["securitySchemes"]) == {"key", "bearer"}


def test_openapi_references_exist(app: Any) -> None:
    document = ask(app, "GET", "/openapi.json").json()
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert referred == set(SCHEMAS)


def test_openapi_names_the_header_that_a_login_needs() -> None:
    document = ask(create_app(NOWHERE, open_to_all=True), "GET", "/openapi.json").json()
    release = document["paths"]["/api/v1/locks/release"]["post"]
    assert [param["name"] for param in release["parameters"]] == ["X-Celery-Locks"]
    assert document["components"]["securitySchemes"] == {}


def test_json_response_is_valid_json_for_any_value() -> None:
    """One holder with NaN or half a surrogate pair in its data must not break the list."""
    value = {"name": "\ud800 <script>\u2028", "extra": {"x": float("nan")}}
    assert json.loads(json_response(value).body) == {**value, "extra": {"x": None}}
    assert b"\xe2" not in json_response(value).body


def test_sentence_has_a_capital_and_a_period() -> None:
    assert web_app._sentence(ValueError("the name is wrong")) == "The name is wrong."
