"""What goes into a question is right, or refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks.errors import LockUsageError
from celery_locks.web.params import Param, from_body, from_query
from celery_locks.web.responses import HttpError

FIELDS = (
    Param("name", "name", "The lock's name."),
    Param("note", "text", "Any.", default="", most=5),
    Param("token", "text", "Any.", least=1),
    Param("limit", "whole", "How many.", default=10, least=1, most=500),
    Param("grace", "number", "Seconds.", default=0, least=0, most=60),
    Param("dry", "flag", "Or not.", default=False),
    Param("state", "text", "One of two.", choices=("held", "waiting")),
)


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        (b"", {"name": None, "note": "", "limit": 10, "grace": 0, "dry": False, "state": None}),
        (b"name=a%2Fb+%3Cscript%3E%0A%E2%80%AE", {"name": "a/b <script>\n\u202e"}),
        (b"name=%00&note=", {"name": "\0", "note": ""}),
        (b"limit=500&grace=0.5&state=held", {"limit": 500, "grace": 0.5, "state": "held"}),
        (b"grace=6e1", {"grace": 60.0}),
        (b"grace=1.8121991658789489e-56", {"grace": 1.8121991658789489e-56}),
        (b"dry=true", {"dry": True}),
        (b"dry=false", {"dry": False}),
    ],
)
def test_from_query_reads_what_is_there(query: bytes, asked: dict[str, Any]) -> None:
    assert asked.items() <= from_query(FIELDS, query).items()


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (b"nam=1", "There is no parameter 'nam' here; there is: name, note"),
        (b"limit=1&limit=2", "The parameter 'limit' is given twice"),
        (b"limit=0", "limit must be a whole number from 1 up to 500, not 0"),
        (b"limit=501", "not 501"),
        (b"limit=", "not ''"),
        (b"limit=1.5", "not '1.5'"),
        (b"limit=+1", "not ' 1'"),
        (b"limit=1_0", "not '1_0'"),
        (b"limit=%D9%A1", "must be a whole number"),  # an Arabic 1, which int() would take
        (b"limit=" + b"9" * 5000, "must be a whole number"),
        (b"grace=nan", "grace must be a number from 0 up to 60, not 'nan'"),
        (b"grace=inf", "not 'inf'"),
        (b"grace=1e999", "not inf"),
        (b"grace=-1", r"not -1\.0"),
        (b"dry=1", "dry must be true or false, not '1'"),
        (b"state=", "state must be 'held' or 'waiting', not ''"),
        (b"token=", "token must be a text from 1 characters, not ''"),
        (b"note=123456", "up to 5 characters"),
        (b"name=%ff", "The query is not readable"),
        (b"\xff=1", "The query is not readable"),
        (b"&".join(b"a=1" for _ in range(51)), "The query is not readable"),
    ],
)
def test_from_query_refuses_in_a_sentence(query: bytes, sentence: str) -> None:
    with pytest.raises(HttpError, match=sentence) as refusal:
        from_query(FIELDS, query)
    assert refusal.value.status == 400
    assert len(refusal.value.sentence) < 200


@pytest.mark.parametrize("name", [b"name=", b"name=" + b"x" * 513, b"name=" + b"%C3%A9" * 257])
def test_from_query_refuses_what_no_lock_is_called(name: bytes) -> None:
    with pytest.raises(LockUsageError):
        from_query(FIELDS, name)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "The body is not readable"),
        (b"\xff", "The body is not readable"),
        (b'{"grace": NaN}', "The body is not readable"),
        (b"[" * 50_000, "The body is not readable"),
        (b"[]", r"The body must be a JSON object, not \[\]"),
        (b"null", "The body must be a JSON object, not None"),
        (b'{"nam": 1}', "There is no field 'nam' here"),
        (b'{"grace": "1"}', "grace must be a number from 0 up to 60, not '1'"),
        (b'{"grace": true}', "not True"),
        (b'{"limit": 1.5}', "not 1.5"),
        (b'{"limit": 1e400}', "not inf"),
        (b'{"grace": ' + b"9" * 400 + b"}", "grace must be a number from 0 up to 60, not 999"),
        (b'{"grace": -' + b"9" * 400 + b"}", "grace must be a number from 0 up to 60, not -999"),
        (b'{"limit": ' + b"9" * 400 + b"}", "limit must be a whole number from 1 up to 500, not 9"),
        (b'{"limit": null}', "limit must be a whole number from 1 up to 500, not None"),
        (b'{"dry": 1}', "dry must be true or false, not 1"),
        (b'{"dry": null}', "not None"),
        (b'{"note": "\\ud800"}', "note must be a text"),
        (b'{"state": ["held"]}', "state must be 'held' or 'waiting'"),
    ],
)
def test_from_body_refuses_in_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(HttpError, match=sentence) as refusal:
        from_body(FIELDS, body)
    assert refusal.value.status == 400


def test_from_body_takes_nothing_for_an_empty_object() -> None:
    assert from_body(FIELDS, b"") == from_body(FIELDS, b"{}") == from_query(FIELDS, b"")


def test_field_may_be_null_where_it_says_so() -> None:
    field = Param("grace", "number", "Seconds.", default=0, least=0, or_null=True)
    assert from_body([field], b'{"grace": null}') == {"grace": None}
    assert field.schema == {"type": ["number", "null"], "minimum": 0, "default": 0}


def test_required_field_is_missed() -> None:
    with pytest.raises(HttpError, match=r"The field key is missing: Which\."):
        from_body([Param("key", "name", "Which.", required=True)], b"{}")
