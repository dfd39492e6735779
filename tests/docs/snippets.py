"""Runs the snippets of one page of the documentation; `test_snippets.py` does so for every page.

    python tests/docs/snippets.py docs/how-to/names.md redis://127.0.0.1:7001

The process is the page's own, and so is the working directory, which is on `sys.path`. In every
snippet `redis://localhost:6379` stands for the server in the second argument. The first snippet
that fails ends the page with a report: file, line, what was expected and what came.

A block `python` is executed in the namespace of the page. A block `console` has commands (`$ …`)
and their output, in which `...` stands for any text in a line and a line `...` for any lines; a
command that ends in ` &` runs until the page ends. `yaml`, `toml` and `json` are parsed, the other
languages of `NOT_RUN` are only shown. A comment on the line before the block changes that:

    <!-- snippet: file shop.py -->        write the block to this file
    <!-- snippet: new -->                 begin with an empty namespace
    <!-- snippet: raises LockConflict --> expect this error
    <!-- snippet: skip, reason -->        do not run it
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

SERVER = "redis://localhost:6379"
NOT_RUN = {
    *("text", "sql", "lua", "html", "html+django", "nginx", "ini", "css", "http", "diff"),
    *("promql", "dockerfile"),
}
PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
LANGUAGES = {"python", "console", *PARSERS, *NOT_RUN}
# For what takes a second or two on a machine that has nothing else to do.
PATIENCE = 60.0

_COMMENT = re.compile(r"\s*<!--\s*snippet:\s*(?P<text>.*?)\s*-->\s*")
_FENCE = re.compile(r"(?P<indent>\s*)(?P<marks>`{3,})(?P<info>[^`]*)")
_OPTION = re.compile(r"\s*:[\w-]+:.*")
_CODE_DIRECTIVES = ("{code-block}", "{code}")


class SnippetError(Exception):
    """A snippet does not do what the page says; the text is the whole report."""


class Snippet(NamedTuple):
    """One block of code; `line` is that of its first line in the page, counted from 1."""

    page: Path
    line: int
    language: str
    text: str
    action: str = ""
    argument: str = ""

    def error(self, sentence: str, detail: str = "", line: int | None = None) -> SnippetError:
        return _error(self.page, line or self.line, sentence, detail)


class Command(NamedTuple):
    """A command of a console block, and the output that the page shows."""

    line: int
    text: str
    expected: list[str]

    @property
    def is_background(self) -> bool:
        return self.text.endswith(" &")


def _error(page: Path, line: int, sentence: str, detail: str = "") -> SnippetError:
    return SnippetError(f"{page}:{line}: {sentence}" + (f"\n\n{detail}" if detail else ""))


# Reading a page


def parse(page: Path, text: str | None = None) -> list[Snippet]:
    """Return the snippets of a page, also those inside directives such as tabs."""
    lines = (page.read_text() if text is None else text).splitlines()
    return list(_snippets(page, lines))


def _snippets(page: Path, lines: list[str]) -> Iterator[Snippet]:
    directives: list[int] = []  # the lengths of the open fences of directives
    comment = ""
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if comment:
                raise _error(page, number, "there is no code block below the snippet comment")
            comment = _comment(page, number, line)
            continue
        marks, info = len(fence["marks"]), fence["info"].strip()
        if not info and directives and marks >= directives[-1]:
            directives.pop()
        elif info.startswith("{") and not info.startswith(_CODE_DIRECTIVES):
            directives.append(marks)
        else:
            block = list(_block(numbered, marks))
            yield _snippet(page, number + 1, info, block, comment)
        comment = ""


def _comment(page: Path, number: int, line: str) -> str:
    match = _COMMENT.fullmatch(line)
    if match is None and "<!-- snippet" in line:
        raise _error(page, number, f"not a snippet comment: {line.strip()}")
    return match["text"] if match else ""


def _block(numbered: Iterator[tuple[int, str]], marks: int) -> Iterator[str]:
    for _, line in numbered:
        fence = _FENCE.fullmatch(line)
        if fence and len(fence["marks"]) >= marks and not fence["info"].strip():
            return
        yield line


def _snippet(page: Path, line: int, info: str, block: list[str], comment: str) -> Snippet:
    for directive in _CODE_DIRECTIVES:
        if info.startswith(directive):
            info = info.removeprefix(directive).strip()
            while block and _OPTION.fullmatch(block[0]):
                block, line = block[1:], line + 1
    language = info.split(" ")[0]
    if language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise _error(page, line - 1, f"unknown language {language!r} of a code block", known)
    text = textwrap.dedent("\n".join(block)) + "\n"
    return Snippet(page, line, language, text, *_action(page, line - 2, comment, language))


def _action(page: Path, line: int, comment: str, language: str) -> tuple[str, str]:
    action, _, argument = comment.partition(" ")
    argument = argument.strip()
    good = {
        "": True,
        "file": bool(argument),
        "new": language == "python" and not argument,
        "raises": language == "python" and argument.isidentifier(),
        "skip,": bool(argument),
    }
    if not good.get(action, False):
        raise _error(
            page,
            line,
            f"cannot use `snippet: {comment}` on a {language} block",
            "write file NAME, new, raises ERROR (the last two for python), or skip, REASON",
        )
    return action.rstrip(","), argument


def commands_of(snippet: Snippet) -> Iterator[Command]:
    """Yield the commands of a console block; a backslash at the end continues a command."""
    lines = snippet.text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    if not starts or any(line.strip() for line in lines[: starts[0]]):
        raise snippet.error("a console block begins with a command: a line `$ …`")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        first = start
        while lines[start].endswith("\\") and start + 1 < end:
            start += 1
        command = "\n".join(lines[first : start + 1]).removeprefix("$ ").rstrip()
        yield Command(snippet.line + first, command, _stripped(lines[start + 1 : end]))


def _stripped(lines: list[str]) -> list[str]:
    """Return the lines without trailing spaces, and without the empty ones at the end."""
    lines = [line.rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


# Comparing output


def matches(expected: list[str], actual: list[str]) -> bool:
    """Compare line by line; `...` is any text within a line, a line `...` any lines."""
    reachable = {0}  # how many of the actual lines the expected ones so far may stand for
    for line in expected:
        if line.strip() == "...":
            reachable = set(range(min(reachable), len(actual) + 1)) if reachable else set()
        else:
            pattern = _pattern(line)
            reachable = {
                index + 1
                for index in reachable
                if index < len(actual) and pattern.fullmatch(actual[index])
            }
    return len(actual) in reachable


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*?".join(re.escape(part) for part in line.split("...")))


def difference(expected: list[str], actual: list[str]) -> str:
    """Return a diff in which lines that match, although not literally, count as equal."""
    shown = [_matching(line, expected) for line in actual]
    names = {"fromfile": "expected", "tofile": "actual", "lineterm": ""}
    return "\n".join(difflib.unified_diff(expected, shown, **names, n=100))


def _matching(line: str, expected: Iterable[str]) -> str:
    wanted = (text for text in expected if text.strip() != "...")
    return next((text for text in wanted if _pattern(text).fullmatch(line)), line)


# Running a page


class Page:
    """A page while its snippets run: its namespace, its server and its background commands."""

    def __init__(self, server: str) -> None:
        self._server = server.removesuffix("/0")
        self._namespace = _new_namespace()
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self, snippets: Iterable[Snippet]) -> None:
        """Run them in order; the commands in the background end here, whatever happens."""
        try:
            for snippet in snippets:
                self._run(snippet._replace(text=snippet.text.replace(SERVER, self._server)))
        finally:
            for process in self._background:
                process.kill()
                process.wait()

    def _run(self, snippet: Snippet) -> None:
        match snippet.action:
            case "skip":
                return
            case "file":
                path = Path(snippet.argument)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(snippet.text)
                return
            case "new":
                self._namespace = _new_namespace()
        if snippet.language == "python":
            self._run_python(snippet)
        elif snippet.language == "console":
            for command in commands_of(snippet):
                self._run_command(snippet, command)
        elif snippet.language in PARSERS:
            _parse_data(snippet)

    def _run_python(self, snippet: Snippet) -> None:
        expected = snippet.argument if snippet.action == "raises" else ""
        try:
            # As many empty lines before it as in the page: a traceback then names the right line.
            padded = "\n" * (snippet.line - 1) + snippet.text
            exec(compile(padded, str(snippet.page), "exec"), self._namespace)
        except (Exception, SystemExit) as error:
            names = [cls.__name__ for cls in type(error).__mro__]
            if expected not in names:
                what = f"expected {expected}, got" if expected else "unexpected"
                sentence = f"{what} {type(error).__name__}: {error}"
                line = _line_in(snippet, error)
                raise snippet.error(sentence, traceback.format_exc(), line) from None
        else:
            if expected:
                raise snippet.error(f"expected {expected}, but nothing was raised", snippet.text)

    def _run_command(self, snippet: Snippet, command: Command) -> None:
        if command.is_background:
            self._start(snippet, command)
            return
        try:
            done = subprocess.run(
                ["bash", "-c", command.text],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            output = "\n".join(self._lines(error.stdout or b""))
            sentence = f"`{command.text}` did not end within {PATIENCE:g} s"
            raise snippet.error(sentence, output, command.line) from None
        actual = self._lines(done.stdout)
        self._compare(snippet, command, actual)
        if done.returncode and not _shows_failure(command, actual):
            sentence = f"`{command.text}` failed with exit code {done.returncode}"
            raise snippet.error(sentence, "\n".join(actual), command.line)

    def _compare(self, snippet: Snippet, command: Command, actual: list[str]) -> None:
        if command.expected and not matches(command.expected, actual):
            detail = difference(command.expected, actual)
            sentence = f"`{command.text}` printed something else"
            raise snippet.error(sentence, detail, command.line)

    def _start(self, snippet: Snippet, command: Command) -> None:
        """Run in the background; wait until a worker is ready, and for the output that is shown.

        A worker says that it is ready if its log has level INFO, so that is added.
        """
        text, is_worker = command.text.removesuffix("&"), " worker" in command.text
        if is_worker and not re.search(r" (-l|--loglevel)\b", text):
            text += "-l INFO"
        log = Path(f".background-{len(self._background)}.log")
        with log.open("wb") as output:
            # exec: the process is the command itself, so that kill() ends it and not its shell.
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._background.append(process)
        expected = [*command.expected, "..."]
        ends = time.monotonic() + PATIENCE
        while True:
            actual = self._lines(log.read_bytes())
            is_ready = not is_worker or any(line.endswith(" ready.") for line in actual)
            if is_ready and matches(expected, actual):
                return
            if process.poll() is not None or time.monotonic() > ends:
                detail = difference(expected, actual) if is_ready else "\n".join(actual)
                sentence = f"`{command.text}` did not start as the page says"
                raise snippet.error(sentence, detail, command.line)
            time.sleep(0.02)

    def _lines(self, output: bytes) -> list[str]:
        """Return the lines as the page would show them: with its own name of the server."""
        text = output.decode(errors="replace").replace(self._server, SERVER)
        address = self._server.partition("://")[2]
        return _stripped(text.replace(address, SERVER.partition("://")[2]).splitlines())


def _new_namespace() -> dict[str, Any]:
    """Return the namespace of a script: so Celery names a task after its app, as in a file."""
    return {"__name__": "__main__"}


def _line_in(snippet: Snippet, error: BaseException) -> int:
    if isinstance(error, SyntaxError) and error.filename == str(snippet.page):
        return error.lineno or snippet.line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(snippet.page)]
    return next((line for line in reversed(lines) if line), snippet.line)


def _shows_failure(command: Command, actual: list[str]) -> bool:
    """Whether the page itself shows that the command fails, and how."""
    has_text = any(line.strip() != "..." for line in command.expected)
    crash = "Traceback (most recent call last):"
    return has_text and (crash not in actual or crash in command.expected)


def _parse_data(snippet: Snippet) -> None:
    try:
        PARSERS[snippet.language](snippet.text)
    except (ValueError, yaml.YAMLError) as error:
        sentence = f"this is not valid {snippet.language}: {error}"
        raise snippet.error(sentence, snippet.text) from None


def main(page: str, server: str) -> int:
    sys.path[0] = os.getcwd()
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    try:
        Page(server).run(parse(Path(page)))
    except SnippetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
