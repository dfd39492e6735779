"""Who is let in, and what a foreign page cannot do."""

from __future__ import annotations

import hmac
from typing import Any

import pytest

from celery_locks import Locks
from celery_locks.errors import LockUsageError
from celery_locks.web import create_app
from tests.support.web import MAY_READ, MAY_WRITE, OURS, READ, WRITE, ask, error_of

NOWHERE = Locks.from_url("redis://127.0.0.1:1")
SWEEP = ("POST", "/api/v1/locks/sweep")  # 409 without an app: let in, and nothing is changed
LET_IN = 409


def build(**options: Any) -> Any:
    return create_app(NOWHERE, **options)


@pytest.fixture
def keyed() -> Any:
    return build(read_keys=["another", READ], write_keys=[WRITE, "schlüssel"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs credentials"),
        ({"read_keys": [], "write_keys": []}, "needs credentials"),
        ({"read_keys": "secret"}, "read_keys must be a list"),
        ({"write_keys": [""]}, "a key in write_keys is empty"),
        ({"write_keys": [" padded"]}, "a key in write_keys is empty"),
        ({"read_keys": ["same"], "write_keys": ["same"]}, "given twice"),
        ({"read_keys": ["key"], "open_to_all": True}, "open_to_all cannot be combined"),
        ({"authorize": "admin"}, "authorize must be a function"),
        ({"open_to_all": True, "requests_per_minute": 0}, "requests_per_minute is 0"),
    ],
)
def test_create_app_refuses_unsafe_settings(options: Any, sentence: str) -> None:
    """An app that is open by default stays open."""
    with pytest.raises(LockUsageError, match=sentence):
        build(**options)


def test_create_app_refuses_a_source_without_locks() -> None:
    with pytest.raises(LockUsageError, match="needs a Celery app or Locks"):
        create_app("redis://localhost", open_to_all=True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": READ[:-1]}, 401),
        ({"X-API-Key": "Ω".encode()}, 401),
        ({"Authorization": f"Basic {WRITE}"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Cookie": f"X-API-Key={WRITE}"}, 401),
        (MAY_READ, 403),
        ({"Authorization": f"Bearer {READ}"}, 403),
        ({"X-API-Key": READ, "Authorization": f"Bearer {WRITE}"}, 403),
        (MAY_WRITE, LET_IN),
        ({"Authorization": f"bearer {WRITE}"}, LET_IN),
        ({"X-API-Key": "schlüssel".encode()}, LET_IN),
    ],
)
def test_keys_let_in_by_role(keyed: Any, headers: Any, status: int) -> None:
    answer = ask(keyed, *SWEEP, headers=headers, json={})
    assert answer.status_code == status
    assert error_of(answer)
    assert (answer.headers.get("WWW-Authenticate") == "Bearer") is (status == 401)


def test_key_in_the_query_is_ignored(keyed: Any) -> None:
    """Addresses end up in logs."""
    assert ask(keyed, "GET", f"/api/v1/me?X-API-Key={READ}").status_code == 401


def test_keys_are_compared_in_constant_time(keyed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys are compared, also after a match, by digests of one length."""
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def recording(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return compare(first, second)

    monkeypatch.setattr(hmac, "compare_digest", recording)
    for key in ("another", READ, "wrong"):
        ask(keyed, *SWEEP, headers={"X-API-Key": key}, json={})
    assert compared == [(32, 32)] * 12


def test_page_and_description_need_no_key(keyed: Any) -> None:
    """They hold no secret, and the page is where the user types the key."""
    assert ask(keyed, "GET", "/").status_code == 200
    assert ask(keyed, "GET", "/openapi.json").status_code == 200


async def allow_write(request: Any) -> Any:
    return "write"


@pytest.mark.parametrize(
    ("authorize", "status"),
    [
        (lambda request: None, 401),
        (lambda request: "read", 403),
        (lambda request: "write", LET_IN),
        (allow_write, LET_IN),
        (lambda request: allow_write(request), LET_IN),
        (lambda request: request.cookies.get("role"), LET_IN),
        (lambda request: ("read", "ann"), 403),
        (lambda request: ("write", "ann"), LET_IN),
        (lambda request: (None, "ann"), 401),
        (lambda request: ("admin", "ann"), 500),
        (lambda request: ("write", 5), 500),
        (lambda request: ("write", "ann", "more"), 500),
        (lambda request: True, 500),
        (lambda request: 1 / 0, 500),
    ],
)
def test_authorize_decides_the_role(authorize: Any, status: int) -> None:
    """An unexpected return value or an error lets nobody in."""
    headers = {**OURS, "Cookie": "role=write"}
    answer = ask(build(authorize=authorize), *SWEEP, headers=headers, json={})
    assert answer.status_code == status
    assert "ZeroDivisionError" not in error_of(answer)


def test_authorize_and_keys_go_together() -> None:
    """People log in and programs use a key; a wrong key is refused even with a login."""
    app = build(authorize=lambda request: "read", write_keys=[WRITE])
    assert ask(app, *SWEEP, headers=MAY_WRITE, json={}).status_code == LET_IN
    assert ask(app, *SWEEP, headers=OURS, json={}).status_code == 403
    assert ask(app, "GET", "/api/v1/locks/why", headers={"X-API-Key": "no"}).status_code == 401


AMBIENT = ({"open_to_all": True}, {"authorize": lambda request: "write"})


@pytest.mark.parametrize("options", AMBIENT)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"X-Celery-Locks": "0"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 403),
        ({**OURS, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**OURS, "Sec-Fetch-Site": "same-site"}, 403),
        ({**OURS, "Origin": "http://evil.example"}, 403),
        ({**OURS, "Origin": "http://localhost:8000"}, 403),
        ({**OURS, "Origin": "null"}, 403),
        ({**OURS, "Origin": "http://["}, 403),
        (OURS, LET_IN),
        ({**OURS, "Sec-Fetch-Site": "same-origin", "Origin": "https://proxied"}, LET_IN),
        ({**OURS, "Origin": "http://localhost"}, LET_IN),
    ],
)
def test_change_must_come_from_our_own_page(options: Any, headers: Any, status: int) -> None:
    """A browser adds the login's cookie to a foreign page's request; it cannot add this header."""
    answer = ask(build(**options), *SWEEP, headers=headers, json={})
    assert answer.status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_change_must_be_json(kind: str) -> None:
    """A foreign form can send these types without a preflight request."""
    headers = {**OURS, "Content-Type": kind}
    answer = ask(build(open_to_all=True), *SWEEP, headers=headers, content=b"{}")
    assert answer.status_code == 415
    assert error_of(answer) == "Send the body as application/json."


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:5557", 200),
        ("127.0.0.1:5557", 200),
        ("[::1]:5557", 200),
        ("evil.example", 403),
        ("localhost.evil.example:5557", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_loopback_only_refuses_foreign_host_names(host: str, status: int) -> None:
    """A foreign page must not reach us under its own name (DNS rebinding)."""
    for app in (build(open_to_all=True), build(read_keys=[READ], loopback_only=True)):
        answer = ask(app, "GET", "/", headers={"Host": host})
        assert answer.status_code == status


def test_keys_or_loopback_only_false_allow_any_host() -> None:
    """Behind a proxy the host name differs; with keys, a foreign page has no credential."""
    for app in (build(read_keys=[READ]), build(open_to_all=True, loopback_only=False)):
        assert ask(app, "GET", "/", headers={"Host": "locks.example"}).status_code == 200
