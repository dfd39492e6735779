"""The runner of the snippets finds what is wrong: a test that cannot fail proves nothing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.docs import page_process
from tests.docs.expected_output import difference, matches
from tests.docs.page_process import run_page
from tests.docs.snippets import SnippetError, commands_of, parse
from tests.support.processes import is_alive
from tests.support.waiting import wait_until


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.md"


def run(page: Path, text: str) -> str:
    page.write_text(textwrap.dedent(text))
    return run_page(page)


def test_page_that_is_right_passes(page: Path) -> None:
    """The control for the cases below: file, namespace, error, commands, data."""
    assert not run(
        page,
        """
        <!-- snippet: file shop.py -->
        ```python
        from celery_locks import Locks

        locks = Locks.from_url("redis://localhost:6379/0")
        ```

        ```python
        from shop import locks

        lease = locks.acquire("invoice:42")
        ```

        <!-- snippet: raises LockConflict -->
        ```python
        with locks.hold("invoice:42"):
            pass
        ```

        ```console
        $ celery-locks --url redis://localhost:6379/0 info invoice:42
        ...invoice:42...
        ...
        $ echo one; echo \\
            two
        one
        t...o
        $ ls; exit 3
        ...
        shop.py
        ```

        <!-- snippet: new -->
        ```python
        assert "lease" not in globals()
        ```

        <!-- snippet: skip, there is no such module -->
        ```python
        import no_such_module
        ```

        ````{tab-set}
        ```{code-block} yaml
        :caption: an example
        a: [1, 2]
        ```
        ````
        """,
    )


WRONG = {
    "output": (
        "```console\n$ printf 'one\\ntwo\\n'\none\nthree\n```",
        ["page.md:2: `printf 'one\\ntwo\\n'` printed something else", " one\n-three\n+two"],
    ),
    "missing line": ("```console\n$ echo one\none\ntwo\n```", ["-two"]),
    "further line": ("```console\n$ echo one; echo two\none\n```", ["+two"]),
    "error": (
        "text\n\n```python\na = 1\nb = a / 0\n```",
        ["page.md:5: unexpected ZeroDivisionError: division by zero", "b = a / 0"],
    ),
    "error of a file": (
        "<!-- snippet: file m.py -->\n```python\nx = 1 / 0\n```\n\n```python\nimport m\n```",
        ["page.md:7: unexpected ZeroDivisionError", "m.py"],
    ),
    "syntax": ("```python\na = = 1\n```", ["page.md:2: unexpected SyntaxError"]),
    "exit": ("```python\nraise SystemExit(0)\n```", ["page.md:2: unexpected SystemExit"]),
    "nothing raised": (
        "<!-- snippet: raises LockConflict -->\n```python\npass\n```",
        ["page.md:3: expected LockConflict, but nothing was raised"],
    ),
    "another error raised": (
        "<!-- snippet: raises LockConflict -->\n```python\n1 / 0\n```",
        ["page.md:3: expected LockConflict, got ZeroDivisionError"],
    ),
    "exit code": (
        "```console\n$ echo broken; exit 3\n```",
        ["page.md:2: `echo broken; exit 3` failed with exit code 3", "broken"],
    ),
    "exit code behind dots": ("```console\n$ exit 3\n...\n```", ["failed with exit code 3"]),
    "crash behind dots": (
        "```console\n$ python -c 'print(1); 1 / 0'\n1\n...\n```",
        ["failed with exit code 1", "ZeroDivisionError"],
    ),
    "name of another page": ("```python\nlocks\n```", ["unexpected NameError"]),
    "yaml": ("```yaml\na: [1\n```", ["page.md:2: this is not valid yaml"]),
    "toml": ("```toml\na =\n```", ["page.md:2: this is not valid toml"]),
    "json": ("```json\n{'a': 1}\n```", ["page.md:2: this is not valid json"]),
    "background command that ends": (
        "```console\n$ celery -A no_such_module worker &\n```",
        ["page.md:2: `celery -A no_such_module worker &` did not start", "no_such_module"],
    ),
    "background output": (
        "```console\n$ echo one &\ntwo\n```",
        ["page.md:2: `echo one &` did not start as the page says", "-two\n", "+one"],
    ),
    "death": (
        "```python\nimport os\n\nos.kill(os.getpid(), 9)\n```",
        ["its process ended with exit code -9"],
    ),
}


@pytest.mark.parametrize(("text", "reports"), WRONG.values(), ids=WRONG)
def test_page_that_is_wrong_fails(page: Path, text: str, reports: list[str]) -> None:
    """The report has file, line, command, and what came instead."""
    report = run(page, text)
    assert report
    for part in reports:
        assert part in report


def test_page_that_never_ends_fails(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop the whole run otherwise."""
    monkeypatch.setattr(page_process, "DEADLINE", 0.5)
    assert "the end of" in run(page, "```python\nimport time\n\ntime.sleep(600)\n```")


WORKER = """
<!-- snippet: file shop.py -->
```python
from celery import Celery

app = Celery("shop", broker="redis://localhost:6379/0", backend="redis://localhost:6379/0")


@app.task
def pid():
    import os

    return os.getpid()
```

```console
$ celery -A shop worker --concurrency 1 &
...
- ** ---------- .> transport: ...localhost:6379/0
...
```

```python
from shop import pid

open({file!r}, "w").write(str(pid.delay().get(timeout=30)))
{more}
```
"""


@pytest.mark.parametrize("more", ["", "1 / 0"], ids=["success", "failure"])
def test_worker_runs_until_the_page_ends(page: Path, tmp_path: Path, more: str) -> None:
    """It runs the tasks of the page, and is gone afterwards, also if a snippet fails."""
    file = tmp_path / "pid"
    report = run(page, WORKER.format(file=str(file), more=more))
    assert ("ZeroDivisionError" in report) is bool(more), report
    child = int(file.read_text())
    wait_until(lambda: not is_alive(child), what="the worker's child to end")


@pytest.mark.parametrize(
    ("expected", "actual", "is_match"),
    [
        ("a b", "a b", True),
        ("a ... c", "a b c", True),
        ("a ... c", "a b d", False),
        ("a...", "a", True),
        ("a.b", "axb", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("...\nd", "a\nd\nd", True),
        ("...\nd\n...", "a\nb", False),
        ("a\n...", "b\na", False),
        ("a", "a\nb", False),
        ("", "", True),
    ],
)
def test_matches_knows_the_dots(expected: str, actual: str, is_match: bool) -> None:
    assert matches(expected.splitlines(), actual.splitlines()) is is_match


def test_difference_leaves_out_what_matches() -> None:
    """Otherwise a line such as `held for ... s` distracts from the line that is wrong."""
    report = difference(["held for ... s", "by ann"], ["held for 3 s", "by bob"])
    assert report.splitlines()[3:] == [" held for ... s", "-by ann", "+by bob"]


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("```pyhton\n```", "unknown language 'pyhton'"),
        ("```\nx\n```", "unknown language ''"),
        ("```bash\nls\n```", "unknown language 'bash'"),
        ("<!-- snippet: skip -->\n```python\n```", "page.md:1: cannot use `snippet: skip`"),
        ("<!-- snippet: skip, -->\n```python\n```", "cannot use"),
        ("<!-- snippet: file -->\n```python\n```", "cannot use"),
        ("<!-- snippet: fresh -->\n```python\n```", "cannot use"),
        ("<!-- snippet: raises X -->\n```console\n```", "cannot use"),
        ("<!-- snippet: new -->\n\n```python\n```", "page.md:2: there is no code block below"),
        ("<!-- snippet new -->\n```python\n```", "page.md:1: not a snippet comment"),
    ],
)
def test_parse_refuses_what_would_not_run(text: str, report: str) -> None:
    """A mistyped word must not mean that a snippet is silently left out."""
    with pytest.raises(SnippetError, match=r"page\.md") as error:
        parse(Path("page.md"), text)
    assert report in str(error.value)


def test_console_block_begins_with_a_command() -> None:
    [snippet] = parse(Path("page.md"), "```console\nls\n```")
    with pytest.raises(SnippetError, match=r"page\.md:2: a console block begins with a command"):
        list(commands_of(snippet))


def test_parse_finds_blocks_in_lists_and_directives() -> None:
    """What a page shows in a tab or a step is not exempt."""
    text = """
- a step:

  <!-- snippet: new -->
  ```python
  a = 1
  ```

:::{note}
```python
b = 2
```
:::

`````{tab-set}
````{tab-item} one
```python
c = 3
```
````
`````

````text
```python
not_run
```
````

```python
d = 4
```
"""
    found = [(it.line, it.language, it.text, it.action) for it in parse(Path("page.md"), text)]
    assert found == [
        (6, "python", "a = 1\n", "new"),
        (11, "python", "b = 2\n", ""),
        (18, "python", "c = 3\n", ""),
        (24, "text", "```python\nnot_run\n```\n", ""),
        (30, "python", "d = 4\n", ""),
    ]
