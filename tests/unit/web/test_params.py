"""Input is valid, or refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from celery_locks.errors import LockUsageError
from celery_locks.web.params import Param, parse_body, parse_query
from celery_locks.web.responses import HttpError

PARAMS = (
    Param("name", "name", "The lock name."),
    Param("note", "text", "Any.", default="", most=5),
    Param("token", "text", "Any.", least=1),
    Param("limit", "whole", "How many.", default=10, least=1, most=500),
    Param("grace", "number", "Seconds.", default=0, least=0, most=60),
    Param("dry", "flag", "Or not.", default=False),
    Param("state", "text", "One of two.", choices=("held", "waiting")),
)


@pytest.mark.parametrize(
    ("query", "params"),
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
def test_parse_query_reads_each_kind(query: bytes, params: dict[str, Any]) -> None:
    assert params.items() <= parse_query(PARAMS, query).items()


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
def test_parse_query_refuses_with_a_sentence(query: bytes, sentence: str) -> None:
    with pytest.raises(HttpError, match=sentence) as error:
        parse_query(PARAMS, query)
    assert error.value.status == 400
    assert len(error.value.sentence) < 200


@pytest.mark.parametrize("name", [b"name=", b"name=" + b"x" * 513, b"name=" + b"%C3%A9" * 257])
def test_parse_query_refuses_an_invalid_lock_name(name: bytes) -> None:
    with pytest.raises(LockUsageError):
        parse_query(PARAMS, name)


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
def test_parse_body_refuses_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(HttpError, match=sentence) as error:
        parse_body(PARAMS, body)
    assert error.value.status == 400


def test_parse_body_takes_an_empty_body_for_an_empty_object() -> None:
    assert parse_body(PARAMS, b"") == parse_body(PARAMS, b"{}") == parse_query(PARAMS, b"")


def test_param_may_be_null_if_declared() -> None:
    param = Param("grace", "number", "Seconds.", default=0, least=0, or_null=True)
    assert parse_body([param], b'{"grace": null}') == {"grace": None}
    assert param.schema == {"type": ["number", "null"], "minimum": 0, "default": 0}


def test_missing_required_field_is_refused() -> None:
    with pytest.raises(HttpError, match=r"The field key is missing: Which\."):
        parse_body([Param("key", "name", "Which.", required=True)], b"{}")
