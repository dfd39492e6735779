"""The parts of the reference that are made from the code."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery_locks_site import api, errors, generated, glossary, llms
from celery_locks_site.event_details import details_by_kind, find_details
from celery_locks_site.markdown import code, described, from_docstring, table, text
from celery_locks_site.options import default_of, meanings, values_of

from celery_locks import LockConflict, LockEvent, Locks, options, subscribe
from tests.servers.embedded import EmbeddedServer


def test_table_keeps_its_columns() -> None:
    """A pipe or a line break in a cell would move all that follows."""
    assert table(["a", "b"], [["x | y", "line\nline"]]) == (
        "| a | b |\n| --- | --- |\n| x \\| y | line line |\n"
    )


def test_code_and_text_are_literal() -> None:
    assert code("a`b") == "`` a`b ``"
    assert text("*a* <b> c_d [e]") == r"\*a\* \<b\> c\_d \[e\]"


def test_described_finds_each_option() -> None:
    doc = """Do it.

    ``ttl``: seconds it
    lives. ``wait``: "forever", or ``seconds``. See ``other``: no option.

    ``limit``: how many.

    Another paragraph.
    """
    assert described(doc, ["ttl", "wait", "limit"]) == {
        "ttl": "Seconds it lives.",
        "wait": '`"forever"`, or `seconds`. See `other`: no option.',
        "limit": "How many.",
    }


def test_every_option_has_a_meaning() -> None:
    assert meanings().keys() == set(options.WORDS)
    assert all(meaning.endswith(".") for meaning in meanings().values())


@pytest.mark.parametrize(
    ("option", "default", "values"),
    [
        ("ttl", "`30`", "seconds, from 1"),
        ("once", "`0`", "seconds, from 0"),
        ("wait", '`"forever"`', 'seconds, from 0, or `"forever"`'),
        ("limit", "`1`", "a whole number from 1 to 1,000,000, or a function"),
        ("enabled", "`True`", "`True`, `False`"),
        ("on_lost", '`"raise"`', '`"raise"`, `"warn"`'),
    ],
)
def test_options_show_what_the_code_accepts(option: str, default: str, values: str) -> None:
    assert (default_of(option), values_of(option)) == (default, values)


def test_tree_of_errors_has_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not drawn in the docstring would be missing here too."""
    assert errors.names()[:2] == ["LockError", "LockConflict"]
    tree = (errors.errors.__doc__ or "").replace("AlreadyDone ", "")
    monkeypatch.setattr(errors.errors, "__doc__", tree)
    with pytest.raises(ValueError, match="AlreadyDone"):
        errors.names()


def test_details_are_found_in_the_calls_of_emit() -> None:
    source = """
    def fields(request):
        return {"task": 1, "waited": 2}

    class Lease:
        def emit(self, kind, **detail):
            events.emit(kind, self.name, task_id=1, **detail)

        def end(self):
            about = {"why": 1, **({"late": 2} if self.late else {})}
            self.emit("lost" if self.lost else "released", **about)

        def other(self):
            about = {"pid": 1}
            events.emit("freed", self.name, **about)

    def acquire():
        events.emit("acquired", name, token, **fields(request))
    """
    assert find_details([ast.parse(textwrap.dedent(source))]) == {
        "lost": {"task_id", "why", "late"},
        "released": {"task_id", "why", "late"},
        "freed": {"pid"},
        "acquired": {"task", "waited"},
    }


def test_details_are_those_of_real_events(
    valkey: EmbeddedServer, fresh: Callable[[Any], Any]
) -> None:
    """What the source seems to say must be what a subscriber gets."""
    locks = Locks.from_url(fresh(valkey).url)
    seen: list[LockEvent] = []
    unsubscribe = subscribe(seen.append)
    try:
        with locks.hold("a") as lease, pytest.raises(LockConflict), locks.hold("a"):
            pass
        lease.lose("for this test")
    finally:
        unsubscribe()
        locks.close()
    details = details_by_kind()
    assert {"acquired", "conflict", "released"} <= {event.kind for event in seen}
    assert [event.detail.keys() - details[event.kind] for event in seen if event.name == "a"] == [
        set() for event in seen if event.name == "a"
    ]


def test_signature_shows_options_and_context_managers() -> None:
    assert api.signature_of(Locks.hold, is_method=True).startswith(
        "(name: str, *more: str, required: bool"
    )
    assert api.signature_of(Locks.hold).endswith("-> AbstractContextManager[Lease]")
    assert api.signature_of(Locks) == (
        "(client: Any, *, prefix: str = ..., shards: int = ..., ttl: float = ..., "
        "guard_after_loss: bool = ...)"
    )
    assert api.signature_of(LockConflict) == ""


def test_targets_refuse_what_is_no_name() -> None:
    assert [it.path for it in api.targets("celery_locks: Locks[hold,info] State")] == [
        "celery_locks.Locks",
        "celery_locks.State",
    ]
    with pytest.raises(ValueError, match="write NAME or"):
        list(api.targets("celery_locks: Locks,State"))


def test_tidy_makes_lists_and_code() -> None:
    doc = "Hold it.\n\n    with hold():\n        pass\n\n    more()\n\n``a``: one. ``b``:\ntwo.\n"
    assert api.tidy(doc) == (
        "Hold it.\n\n.. code-block:: python\n\n    with hold():\n        pass\n\n    more()\n\n"
        "- ``a``: one.\n- ``b``: two.\n"
    )


def test_docstring_becomes_markdown() -> None:
    assert from_docstring("Like ``a``::\n\n    x\n") == "Like `a`:\n\n    x"


def test_glossary_is_the_table_of_contributing() -> None:
    lines = glossary.page().splitlines()
    assert lines[0] == "| we say | and mean | we do not say |"
    assert any(line.startswith("| lease |") for line in lines)
    assert all(line.startswith("|") for line in lines)


def test_expand_replaces_the_markers() -> None:
    source = "# A\n\n<!-- generated: glossary -->\n<!-- generated: api a: b -->\n"
    found = generated.expand(source, lambda argument: f"API of {argument}")
    assert found.endswith("API of a: b\n")
    assert "| lease |" in found
    with pytest.raises(KeyError):
        generated.expand("<!-- generated: nothing -->", str)


def test_plain_page_has_no_directives(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("included")
    source = """
# Title

What it
answers. And more.

<!-- Prepares the next one.
```python
hidden = 1
```
-->

<!-- snippet: file a.py -->
```python
# :a: kept


x = 1
```

````{code-block} yaml
:caption: c
a: 1
````

:::{note}
Mind this.
:::

::::{grid} 1 2
:gutter: 3

:::{grid-item-card} Card
:link: a

Text
:::
::::

```{toctree}
a
```

(target)=
```{include} other.md
```
"""
    assert llms.plain(source, tmp_path) == textwrap.dedent(
        """\
        # Title

        What it
        answers. And more.

        ```python
        # :a: kept


        x = 1
        ```

        ````yaml
        a: 1
        ````

        **Note**

        Mind this.

        **Card**

        Text

        included
        """
    )


def test_index_has_a_sentence_for_each_page() -> None:
    pages = [
        llms.Page("index", "Home", "# Home\n\nAll of it. More."),
        llms.Page("how-to/index", "How-to", "# How-to\n"),
        llms.Page("how-to/names", "Names", "# Names\n\n```python\nx\n```\n\nHow to\nname. B."),
    ]
    assert llms.index("x", "About.", pages) == (
        "# x\n\n> About.\n\n- [Home](index.html): All of it.\n\n## How-to\n\n"
        "- [How-to](how-to/index.html)\n- [Names](how-to/names.html): How to name.\n"
    )
