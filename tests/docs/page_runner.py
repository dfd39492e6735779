"""Runs the snippets of one page; `page_process.py` starts it, for `test_snippets.py`.

    python -m tests.docs.page_runner docs/how-to/names.md redis://127.0.0.1:7001 /tmp/work

The process is the page's own, and so is the working directory, which is on `sys.path`. In every
snippet, and in the output of every command, `redis://localhost:6379` stands for the server in the
second argument. The first snippet that fails ends the page with a report: file, line, what was
expected and what came.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.docs.expected_output import difference, matches
from tests.docs.snippets import (
    PARSERS,
    Command,
    Snippet,
    SnippetError,
    commands_of,
    parse,
    stripped,
)
from tests.servers.fork_server import Process, start_command

SERVER = "redis://localhost:6379"
# For what takes a second or two on a machine that has nothing else to do.
PATIENCE = 60.0


class Page:
    """A page while its snippets run: its namespace, its server and its background commands."""

    def __init__(self, server: str) -> None:
        self._server = server.removesuffix("/0")
        self._namespace = _new_namespace()
        self._background: list[Process] = []

    def run(self, snippets: Iterable[Snippet]) -> None:
        """Run them in order; the commands in the background end here, whatever happens."""
        try:
            for snippet in snippets:
                self._run(snippet)
        finally:
            for process in self._background:
                process.kill()
                process.wait()

    def _run(self, snippet: Snippet) -> None:
        if snippet.language != "console":  # of which only the commands, and not the output
            snippet = snippet._replace(text=self._with_server(snippet.text))
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
                real = command._replace(text=self._with_server(command.text))
                self._run_command(snippet, real)
        elif snippet.language in PARSERS:
            _parse_data(snippet)

    def _run_python(self, snippet: Snippet) -> None:
        expected = snippet.argument if snippet.action == "raises" else ""
        try:
            # As many empty lines before it as in the page: a traceback then names the right line.
            padded = "\n" * (snippet.line - 1) + snippet.text
            code = compile(padded, str(snippet.page), "exec", dont_inherit=True)
            exec(code, self._namespace)
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
        output = Path(".output")
        output.unlink(missing_ok=True)
        process = start_command(command.text, output)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            text = "\n".join(self._lines(output.read_bytes()))
            sentence = f"`{command.text}` did not end within {PATIENCE:g} s"
            raise snippet.error(sentence, text, command.line) from None
        actual = self._lines(output.read_bytes())
        self._compare(snippet, command, actual)
        if code and not _shows_failure(command, actual):
            sentence = f"`{command.text}` failed with exit code {code}"
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
        process = start_command(text, log)
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

    def _with_server(self, text: str) -> str:
        return text.replace(SERVER, self._server)

    def _lines(self, output: bytes) -> list[str]:
        """Return the lines as the page would show them: with its own name of the server."""
        text = output.decode(errors="replace").replace(self._server, SERVER)
        address = self._server.partition("://")[2]
        return stripped(text.replace(address, SERVER.partition("://")[2]).splitlines())


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


def main(page: str, server: str, directory: str) -> int:
    os.chdir(directory)
    sys.path[0] = directory
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    try:
        Page(server).run(parse(Path(page)))
    except SnippetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
