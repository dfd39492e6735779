"""From arguments to a lock's name: equal calls have one name, different ones do not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_locks import LockUsageError, name_from_arguments

A_UUID = UUID("12345678-1234-5678-1234-567812345678")


def name_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return name_from_arguments.from_all(
        "task", name_from_arguments.Parameters(function).bound(args, kwargs)
    )


def filled(template: str, **arguments: Any) -> str:
    return name_from_arguments.from_template(template, arguments)


def pay(invoice: int, dry: bool = False, *, note: str = "") -> None: ...
def pay_by_position(invoice: int) -> None: ...
def anything(*args: Any, **kwargs: Any) -> None: ...


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


def test_positional_and_keyword_are_one_name() -> None:
    """How a call is written is no reason to run twice."""
    assert name_of(pay, 1, True) == name_of(pay, 1, dry=True) == name_of(pay, dry=True, invoice=1)


def test_a_default_that_is_written_out_is_one_name_with_an_omitted_one() -> None:
    assert name_of(pay, 1) == name_of(pay, 1, False) == name_of(pay, 1, note="", dry=False)
    assert name_of(pay, 1) == 'task(invoice=1,dry=false,note="")'


def test_different_arguments_are_different_names() -> None:
    calls = [name_of(pay, 1), name_of(pay, 2), name_of(pay, 1, True), name_of(pay, 1, note="x")]
    assert len(set(calls)) == 4


def test_a_number_and_its_text_are_different() -> None:
    """``f(1)`` and ``f("1")`` are two calls."""
    assert name_of(pay, 1) != name_of(pay, "1")


def test_star_arguments_count_in_their_order_and_keywords_do_not() -> None:
    assert name_of(anything, 1, 2, a=1, b=2) == name_of(anything, 1, 2, b=2, a=1)
    assert name_of(anything, 1, 2) != name_of(anything, 2, 1)


def test_a_text_cannot_look_like_two_arguments() -> None:
    """A name made by joining would let an argument pose as its neighbour."""

    def two(a: str, b: str) -> None: ...

    assert name_of(two, 'x",b="y', "z") != name_of(two, "x", 'y",b="z')


def test_a_call_that_does_not_fit_still_has_a_name() -> None:
    """The call fails with Python's own words, not with ours."""
    assert name_of(pay, 1, 2, 3, 4)
    assert name_of(pay)


@pytest.mark.parametrize(
    ("value", "after_the_message"),
    [
        (A_UUID, str(A_UUID)),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 12, tzinfo=UTC), "2024-02-29T12:00:00+00:00"),
        (time(12, 30), "12:30:00"),
        (Decimal("1.50"), "1.50"),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Word.YES, "yes"),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        ({True: 1, None: 2}, {"true": 1, "null": 2}),
    ],
)
def test_a_value_has_one_name_on_both_ends_of_a_message(value: Any, after_the_message: Any) -> None:
    """JSON turns some values into others on the way: the caller's name is the worker's."""
    assert name_of(pay, value) == name_of(pay, after_the_message)


def test_sets_and_mappings_have_no_order() -> None:
    """Nested too; a set's order differs from process to process."""
    one = {"b": {"y": [1], "x": 2}, "a": {3, 1, 2}}
    two = {"a": {2, 3, 1}, "b": {"x": 2, "y": [1]}}
    assert name_of(pay, one) == name_of(pay, two)
    assert name_of(pay, frozenset("abc")) == name_of(pay, set("cba"))
    assert name_of(pay, {1, "1", (2,)}) == name_of(pay, {(2,), "1", 1})


def test_bytes_and_durations_have_a_text() -> None:
    assert name_of(pay, b"\xff\x00") == name_of(pay, bytearray(b"\xff\x00"))
    assert name_of(pay, b"a") != name_of(pay, b"b")
    assert name_of(pay, timedelta(minutes=1)) != name_of(pay, timedelta(minutes=2))


def test_unicode_stays_readable() -> None:
    assert name_of(pay, "Zürich 東京") == 'task(invoice="Zürich 東京",dry=false,note="")'


@pytest.mark.parametrize("value", [object(), lambda: None, [object()], {"x": object()}])
def test_a_value_without_a_stable_text_is_refused_by_its_argument(value: Any) -> None:
    """The repr of an object has its address: such a lock would never be met again."""
    with pytest.raises(LockUsageError, match="argument 'invoice' has no stable text"):
        name_of(pay, value)
    with pytest.raises(LockUsageError, match="argument 'x' has no stable text"):
        filled("a:{x}", x=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_no_json_are_text_still(value: float) -> None:
    assert name_of(pay, value) == name_of(pay, value)


def test_a_template_is_filled_with_plain_texts() -> None:
    assert filled("invoice:{n}", n=42) == "invoice:42"
    assert filled("{a}/{b}", a="x", b=A_UUID) == f"x/{A_UUID}"
    assert filled("{day}", day=date(2024, 2, 29)) == "2024-02-29"
    assert filled("{c}", c=Colour.RED) == "red"
    assert filled("{w}", w=Word.YES) == "yes"
    assert filled("{a}", a=None) == "null"
    assert filled("{a}", a=True) == "true"
    assert filled("{d}", d={"b": 1, "a": [2]}) == '{"a":[2],"b":1}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("42", '"42"'),
        ("-1.5", '"-1.5"'),
        ("1e+16", '"1e+16"'),
        ("null", '"null"'),
        ("true", '"true"'),
        ("NaN", '"NaN"'),
        (Decimal("1.50"), '"1.50"'),
        ('"quoted"', r'"\"quoted\""'),
        ("[1]", '"[1]"'),
        ("{}", '"{}"'),
        ("007", "007"),
        ("123e45", "123e45"),
        ("2024-02-29", "2024-02-29"),
        ("a:b c/d", "a:b c/d"),
        ("nullify", "nullify"),
        ("", ""),
    ],
)
def test_a_text_that_looks_like_another_value_is_quoted(value: Any, text: str) -> None:
    """42 and "42" are two customers; readable texts stay as they are."""
    assert filled("a:{a}", a=value) == f"a:{text}"


def test_a_text_is_quoted_where_its_end_could_be_mistaken() -> None:
    """Tenant ``acme:eu`` once received the saved result of tenant ``acme``."""
    key = "invoice:{tenant}:{number}"
    assert filled(key, tenant="acme", number="eu:7") == "invoice:acme:eu:7"
    assert filled(key, tenant="acme:eu", number="7") == 'invoice:"acme:eu":"7"'
    assert filled("{a}-{b}", a=-5, b=3) == "(-5)-3"
    assert filled("{a}{b}", a=1, b="x") == "(1)x"
    assert filled('a"{a}"{b}', a="x", b="y") == 'a""x""y'
    assert filled("{a:>4}:{b}", a="x:y", b=1) == '" x:y":1'


SEPARATORS = ["", ":", "-", "0", '"', "[", "(", "n", "::", "a:", ")", "]"]
LETTERS = [":", "-", "0", '"', "[", "(", ")", "n", "a", "{", "}", ",", "\\"]
SMALL_TEXTS = ["", *LETTERS, *(a + b for a in LETTERS for b in LETTERS)]
SMALL_VALUES = [*SMALL_TEXTS, 0, 1, -1, 10, None, True, 1.0, [], [0], {}, {"a": 0}]


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("separator", SEPARATORS)
def test_no_two_small_calls_have_one_name(separator: str) -> None:
    """Every pair of values with each separator, so that no corner is left to chance."""
    template = "k" + "{a}" + separator.replace("{", "{{") + "{b}"
    seen: dict[str, str] = {}
    for a in SMALL_VALUES:
        for b in SMALL_VALUES:
            call = canonical([a, b])
            assert seen.setdefault(filled(template, a=a, b=b), call) == call


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.sampled_from('":-[](){}0123.e+ anulltrueéN…#\\'), max_size=6)
    | st.text()
)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(), scalars, max_size=2)
literals = st.text(alphabet=st.sampled_from('":-[]()0n, {}é'), max_size=3)


@given(st.lists(literals, min_size=2, max_size=4), st.data())
def test_different_arguments_have_different_names(texts: list[str], data: st.DataObject) -> None:
    """The promise itself, for templates and values of any spelling."""
    quoted = [text.replace("{", "{{").replace("}", "}}") for text in texts]
    places = [f"{{p{number}}}" for number in range(len(texts) - 1)]
    template = "".join(itertools.chain(*zip(quoted, [*places, ""], strict=True)))
    calls = [[data.draw(values) for _ in places] for _ in range(2)]
    try:
        one, two = (filled(template, **{f"p{i}": v for i, v in enumerate(call)}) for call in calls)
    except LockUsageError:
        assume(False)
    assert (one == two) == (canonical(calls[0]) == canonical(calls[1]))


@pytest.mark.parametrize("ending", [" (queued)", " (claim)"])
def test_no_name_ends_as_one_of_ours(ending: str) -> None:
    """A value that ends in " (queued)" once captured another user's message."""
    for name in (
        filled("report:{user}", user="bob" + ending),
        filled("report:{user}d)", user="bob" + ending.removesuffix("d)")),
        name_from_arguments.from_callable(lambda user: user + ending, ("bob",), {}),
    ):
        assert not name.endswith(ending)
        assert name.startswith("report:bob" if name.startswith("r") else "bob")


def test_no_text_poses_as_a_shortened_name() -> None:
    """Else a short text could meet the lock of a long one."""
    long = filled("doc:{x}", x="y" * 300)
    assert filled("doc:{x}", x=long.removeprefix("doc:")) != long
    assert name_from_arguments.from_callable(lambda: long, (), {}) != long


@pytest.mark.parametrize(
    "template",
    [
        "{a:>400000000}",
        "{a:>４００００００００}",
        "{a:{b}}",
        "{a!z}",
        "{a.__class__}",
        "{a:.513f}",
        "{a[}",
        "{a.}",
    ],
)
def test_a_format_is_bounded(template: str) -> None:
    """``{x:>400000000}`` once made 1.2 GB."""
    with pytest.raises(LockUsageError, match="the lock key"):
        filled(template, a=1, b=2)


def test_a_format_that_does_not_fit_says_so() -> None:
    with pytest.raises(LockUsageError, match=r"'n:{n:05d}' cannot format {n}: Unknown format code"):
        filled("n:{n:05d}", n="x")


@pytest.mark.parametrize("template", ["{invoice}", "{invoice}:{dry}", " {invoice} ", "{note!r}"])
def test_a_template_of_values_only_is_refused(template: str) -> None:
    """Two tasks with ``key="{a}"`` shared the lock ``7``, and one of them was skipped."""
    sentence = "has no text besides its values: .*; write for example '{task}:"
    with pytest.raises(LockUsageError, match=sentence):
        name_from_arguments.Parameters(pay, task="shop.pay").check(template, "task pay")
    with pytest.raises(LockUsageError, match="write for example 'invoice:"):
        name_from_arguments.Parameters(pay).check(template, "@idempotent of pay")


def test_task_stands_for_the_name_of_the_task() -> None:
    parameters = name_from_arguments.Parameters(pay, task="shop.pay")
    parameters.check("{task}:{invoice}", "task shop.pay")
    assert parameters.name("{task}:{invoice}", (7,), {}) == "shop.pay:7"
    assert parameters.name("{invoice}@{task}", (7,), {"dry": True}) == "7@shop.pay"


def test_a_parameter_named_task_wins_over_the_name_of_the_task() -> None:
    """What a template means must not depend on the call: an undeclared keyword does not count."""

    def move(task: int) -> None: ...

    assert (
        name_from_arguments.Parameters(move, task="shop.move").name("m:{task}", (7,), {}) == "m:7"
    )
    with_any = name_from_arguments.Parameters(anything, task="shop.any")
    assert with_any.name("{task}:{n}", (), {"n": 1, "task": 7}) == "shop.any:1"


def test_task_is_a_parameter_like_any_other_where_there_is_no_task() -> None:
    with pytest.raises(LockUsageError, match="names 'task', but the parameters are"):
        name_from_arguments.Parameters(pay).check("{task}:{invoice}", "@idempotent of pay")


@pytest.mark.parametrize("name", ["u:\ud800", "u" * 300 + "\ud800"])
def test_a_lone_surrogate_is_refused_before_anything_is_sent(name: str) -> None:
    """JSON carries it, Redis cannot."""
    for make in (
        lambda: filled("u:{x}", x=name),
        lambda: name_of(pay, name),
        lambda: name_from_arguments.Parameters(pay_by_position).name("u:{invoice}", (name,), {}),
        lambda: name_from_arguments.from_callable(lambda: name, (), {}),
    ):
        with pytest.raises(LockUsageError, match="has no UTF-8 form: surrogates not allowed"):
            make()


def test_a_template_reaches_into_its_arguments() -> None:
    @dataclass
    class Order:
        id: int
        lines: list[dict[str, str]]

    order = Order(7, [{"sku": "A1"}])
    assert filled("o:{order.id}:{order.lines[0][sku]}", order=order) == "o:7:A1"
    assert filled("n:{n:05d}:{x:.2f}:{s!r}", n=42, x=1.5, s="a") == "n:00042:1.50:'a'"
    assert filled("{{literal}}:{n}", n=1) == "{literal}:1"


@pytest.mark.parametrize("template", ["{order.id}", "{order[1]}", "{order[x]}", "{missing}"])
def test_a_template_without_a_value_says_which(template: str) -> None:
    with pytest.raises(LockUsageError, match=r"has no value for \{"):
        filled(template, order=[])


def test_an_unknown_parameter_is_refused_where_it_is_written() -> None:
    parameters = name_from_arguments.Parameters(pay)
    with pytest.raises(
        LockUsageError,
        match=r"task pay: the lock key 'i:{invoic}' names 'invoic', "
        r"but the parameters are invoice, dry, note",
    ):
        parameters.check("i:{invoic}", "task pay")
    parameters.check("i:{invoice.customer[id]:>5}", "task pay")
    parameters.check("no parameter at all", "task pay")
    name_from_arguments.Parameters(anything).check("any:{whatever}", "task anything")


@pytest.mark.parametrize("template", ["{", "}", "{a"])
def test_a_broken_template_is_refused(template: str) -> None:
    with pytest.raises(LockUsageError, match="is no template"):
        name_from_arguments.Parameters(pay).check(template, "task pay")


@pytest.mark.parametrize("template", ["{}", "{0}"])
def test_a_template_by_position_is_refused(template: str) -> None:
    """Positions change with the signature; names are what the user sees."""
    for function in (pay, anything):
        with pytest.raises(LockUsageError, match="write a parameter's name in it"):
            name_from_arguments.Parameters(function).check(template, "task pay")


def test_a_template_names_a_keyword_that_kwargs_took_up() -> None:
    """It passes the check, so it has to have a value too."""
    known = name_from_arguments.Parameters(anything).named((1,), {"customer": 7})
    assert filled("{customer}:{kwargs[customer]}:{args[0]}", **known) == "7:7:1"


@pytest.mark.parametrize(
    "template", ["i:{invoice}", "{invoice}{dry}", "100%:{invoice}%s", "{dry!r}", "{note:>5}", "no"]
)
@pytest.mark.parametrize("value", [7, True, "x", 'a "quoted" one', "%s", 1.5, None, A_UUID, [1]])
def test_the_short_way_to_a_name_leads_to_the_same(template: str, value: Any) -> None:
    """Most calls are positional and plain; what they are called must not depend on that."""

    def task(invoice: Any, dry: Any, note: Any) -> None: ...

    parameters = name_from_arguments.Parameters(task)
    long_way = name_from_arguments.from_template(
        template, {"invoice": value, "dry": 1, "note": "n"}
    )
    for _ in range(2):
        assert parameters.name(template, (value, 1, "n"), {}) == long_way
        assert parameters.name(template, (value, 1), {"note": "n"}) == long_way


def test_keys_of_single_calls_are_not_kept_for_ever() -> None:
    """``apply_async(lock={"key": …})`` may bring another text each time."""
    parameters = name_from_arguments.Parameters(pay_by_position)
    for number in range(1000):
        assert parameters.name(f"{number}:{{invoice}}", (7,), {}) == f"{number}:7"
    assert len(parameters._plans) < 100


def test_a_function_may_make_the_name() -> None:
    assert name_from_arguments.from_callable(lambda n, **_: f"n:{n}", (1,), {"other": 2}) == "n:1"
    assert name_from_arguments.from_callable(lambda n: None, (1,), {}) is None
    for answer in ("", 3):
        with pytest.raises(LockUsageError, match="it must return a text"):
            name_from_arguments.from_callable(lambda n, answer=answer: answer, (1,), {})


def test_a_function_may_make_the_limit() -> None:
    limit_of = name_from_arguments.limit_from_callable
    assert limit_of(lambda n, **_: n + 1, (1,), {"other": 2}) == 2
    for answer in (0, -1, 1.5, "3", None, True, 10**9):
        with pytest.raises(LockUsageError, match=r"limit function .* must return a whole number"):
            limit_of(lambda n, answer=answer: answer, (1,), {})
    with pytest.raises(LockUsageError, match=r"limit function .* does not take the arguments"):
        limit_of(lambda: 1, (1,), {})
    with pytest.raises(TypeError, match="of the function itself"):
        limit_of(_raise_type_error, (1,), {})


def _raise_type_error(n: int) -> int:
    raise TypeError("of the function itself")


@pytest.mark.parametrize("letter", ["a", "ü", "東", "🔒"])
def test_a_long_name_keeps_its_head_and_stays_apart(letter: str) -> None:
    """A digest at the end, whole letters before it, never more than 200 bytes."""
    one, two = filled("head:{x}", x=letter * 300), filled("head:{x}", x=letter * 301)
    assert one != two
    assert one.startswith("head:" + letter * 30)
    assert len(one.encode()) <= name_from_arguments.NAME_LENGTH
    assert one == filled("head:{x}", x=letter * 300)


def test_a_name_of_just_the_longest_length_is_left_alone() -> None:
    assert name_from_arguments.shortened("x" * 200) == "x" * 200
    assert name_from_arguments.shortened("x" * 201) != "x" * 201


def test_arguments_by_name_become_the_same_call_again() -> None:
    """A merge function gets them by name, and the message needs the call."""

    def pay(order: int, /, *more: int, note: str = "-", **rest: str) -> None: ...

    parameters = name_from_arguments.Parameters(pay)
    arguments = parameters.arguments((1, 2, 3), {"x": "y"})
    assert arguments == {"order": 1, "more": (2, 3), "note": "-", "rest": {"x": "y"}}
    assert parameters.call(arguments) == ((1, 2, 3), {"note": "-", "x": "y"})
    assert parameters.call({"order": 1}) == ((1,), {"note": "-"})
    with pytest.raises(TypeError):
        parameters.arguments((), {})
    for wrong in (None, {}, {"order": 1, "nobody": 2}):
        with pytest.raises(LockUsageError, match="by name: order, more, note, rest"):
            parameters.call(wrong)
