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
        $ echo runs in pid $$
        runs in pid 4711
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
    "word beside a sample": (
        "```console\n$ echo it runs in pid $$\nit ran in pid 4711\n```",
        ["page.md:2:", "-it ran in pid 4711", "+it runs in pid "],
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


SAMPLE = (
    "Lock 'invoice:42' is held by task shop.bill[6f1d2c1e-8a34-4f0b-9d4e-2b7a5c90e1f3] on w1@shop, "
    "pid 4711, since 2026-11-17 03:04:05 UTC (54 s), with fence 1794967806011279."
)
REAL = (
    "Lock 'invoice:42' is held by task shop.bill[0b0c8a90-1111-4f0b-9d4e-000000000000] on w1@shop, "
    "pid 7, since 2027-01-01 00:00:00 UTC (1 min 2 s), with fence 1794967806011280."
)
TABLE = (
    "LOCK        HOLDER           WORKER   PID   HELD FOR  LAPSES IN  WAITING\n"
    "invoice:42  shop.bill first  w1@shop  4711  3 s       28 s       -"
)
REAL_TABLE = (
    "LOCK        HOLDER           WORKER   PID      HELD FOR  LAPSES IN    WAITING\n"
    "invoice:42  shop.bill first  w1@shop  1234567  21 s      59 min 48 s  -"
)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (SAMPLE, REAL),
        (TABLE, REAL_TABLE),
        ("report:1  a b  web1  4711  3 s  -", "report:1  a b  vm    12     1 s   -"),
        ("ann@web1 took lock 'a'.", "root@vm took lock 'a'."),
        ("Ran 2 tests in 0.215s", "Ran 2 tests in 1.786s"),
        ("{'pid': 4711, 'host': 'web1'}", "{'pid': 1, 'host': 'vm'}"),
        ("(ttl 30 s, about 6 renewals)", "(ttl 30 s, about 1 renewal)"),
    ],
)
def test_sample_stands_for_values_of_its_form(expected: str, actual: str) -> None:
    """A page shows what a reader sees, and not dots."""
    assert matches(expected.splitlines(), actual.splitlines())


@pytest.mark.parametrize(
    ("word", "wrong"),
    [
        ("Lock", "lock"),
        ("invoice:42", "invoice:43"),
        ("is held", "was held"),
        ("w1@shop", "w2@shop"),
        ("shop.bill", "shop.pay"),
        ("pid 7", "pid"),
        ("pid 7", "pid seven"),
        ("fence 1794967806011280", "fence 7"),
        ("2027-01-01 00:00:00 UTC", "2027-01-01 UTC"),
        ("(1 min 2 s)", "(1 minute)"),
        ("0b0c8a90-1111", "0b0c8a90"),
        ("011280.", "011280"),
    ],
)
def test_wrong_word_beside_samples_fails(word: str, wrong: str) -> None:
    assert word in REAL
    assert not matches([SAMPLE], [REAL.replace(word, wrong)])


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (TABLE, REAL_TABLE.replace("LAPSES IN", "LAPSES")),
        (TABLE, REAL_TABLE.replace("w1@shop", "w2@shop")),
        (TABLE, REAL_TABLE[:-1] + "1"),
        (TABLE, " " + REAL_TABLE),
        ("it learns of it within 2 s", "it learns of it within 3 s"),
        ("a ttl of 30 s", "a ttl of 6 s"),
        ("ttl 1.5 s", "ttl 1.6 s"),
        ("w1@shop is alive", "w2@shop is alive"),
        ("payout:2026-11-17", "payout:2026-11-18"),
        ("2 past holds", "3 past holds"),
        ("  1. task", "1. task"),
        ("1 passed in 0.12s", "2 passed in 0.12s"),
    ],
)
def test_what_does_not_vary_is_compared(expected: str, actual: str) -> None:
    """Settings, names, counts and columns are the same in every run."""
    assert not matches(expected.splitlines(), actual.splitlines())


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
