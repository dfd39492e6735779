"""Starts Python programs by fork, so that a test does not wait for their imports.

A worker or a command of Celery needs up to a second of processor time before it does anything: it
imports Celery, kombu, redis-py and click. The suite starts thousands of them. The fork server is a
process without threads that has imported these modules; it forks once for each program:

    with fork_server():
        run_program(["-m", "celery", "-A", "shop", "locks", "list"])

The program is a process of its own, with its environment, working directory, process group, files
and end; only the modules are loaded already. What depends on the order of imports or on options of
the interpreter is started by exec as usual (`_can_fork`): workers of gevent and eventlet patch the
standard library first, ``LD_PRELOAD`` acts at the start of a process, and another release of
celery-locks must be imported itself.

Without a fork server, which is so outside the test suite, every program is started by exec.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

SOCKET_VARIABLE = "CELERY_LOCKS_FORK_SERVER"
"""The name of the fork server of this test run, in Linux' abstract namespace of sockets."""

_PRELOADED = (
    *("celery.bin.celery", "celery.app.builtins", "celery.app.control"),
    *("celery.apps.worker", "celery.worker.consumer", "celery.worker.components"),
    *("celery.worker.control", "celery.worker.strategy", "celery.concurrency.prefork"),
    *("celery.concurrency.solo", "celery.concurrency.thread", "celery.backends.redis"),
    *("celery.fixups.django", "celery.beat", "celery.apps.beat", "celery.events.state"),
    *("kombu.transport.redis", "kombu.transport.pyamqp", "kombu.transport.memory"),
    *("rich.table", "rich.live", "starlette.applications", "starlette.routing", "uvicorn"),
    *("celery_locks.cli.commands", "celery_locks.integration.task", "celery_locks.recipes"),
    *("celery_locks.admin", "celery_locks.functions"),
)
# What else begins with PYTHON tells the interpreter what a forked one has decided already.
_KNOWN_VARIABLES = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS"}
_ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0
_SERVER_ENDED = 1  # PR_SET_PDEATHSIG


class Program(NamedTuple):
    """``python -m MODULE …`` or ``python -c CODE …`` in an environment and a working directory."""

    arguments: list[str]
    env: dict[str, str]
    directory: str


def program_of(command: Sequence[str], directory: Path) -> Program | None:
    """Return what the command runs if that can be forked; it may begin with ``/usr/bin/env``."""
    words, env, where = list(command), dict(os.environ), str(directory)
    if words[0] == "/usr/bin/env":
        del words[0]
        if words[0] == "-C":
            where = words[1]
            del words[:2]
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
    if words[0] != sys.executable:
        return None
    program = Program(words[1:], env, where)
    return program if _has_server() and _can_fork(program) else None


def _has_server() -> bool:
    """Return whether this process runs a fork server.

    Its children, such as the demo, have none: what they start shall end if they are killed.
    """
    return os.environ.get(SOCKET_VARIABLE, "").startswith(f"{os.getpid()}-")


def _can_fork(program: Program) -> bool:
    variables = {name for name in program.env if name.startswith("PYTHON")}
    return (
        SOCKET_VARIABLE in program.env
        and program.arguments[0] in ("-m", "-c")
        and variables <= _KNOWN_VARIABLES
        and "LD_PRELOAD" not in program.env
        and not _has_another_release(program.env.get("PYTHONPATH", ""))
        and not any(pool in " ".join(program.arguments) for pool in ("gevent", "eventlet"))
    )


def _has_another_release(path: str) -> bool:
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
    return any((it / "celery_locks").exists() and not it.samefile(_ROOT) for it in folders)


class ForkedProcess:
    """A program that the fork server has started, with what ``subprocess.Popen`` has."""

    def __init__(self, program: Program, stdin: str, stdout: str, stderr: str) -> None:
        files = [os.path.abspath(file) for file in (stdin, stdout, stderr)]
        self.returncode: int | None = None
        self._server = program.env[SOCKET_VARIABLE]
        self.pid: int = _ask(self._server, {**program._asdict(), "files": files})

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = _ask(self._server, {"poll": self.pid})
            except ConnectionError:  # the server ended, and so it was killed
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        ends = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            with closing(_Descriptor(os.pidfd_open(self.pid))) as ended:
                waiting = select.poll()
                waiting.register(ended, select.POLLIN)
                left = None if ends is None else 1000 * max(0.0, ends - time.monotonic())
                if not waiting.poll(left):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _address(server: str) -> str:
    return f"\0celery-locks-{server}"


def _ask(server: str, request: dict[str, Any]) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_address(server))
        connection.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(connection.makefile().readline())


Process = ForkedProcess | subprocess.Popen[Any]


class _Descriptor(int):
    """A file descriptor that ``closing`` closes."""

    def close(self) -> None:
        os.close(self)


def run_program(
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    input: str = "",
    timeout: float = _PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these arguments to its end; the result has the text that it printed."""
    command = [sys.executable, *arguments]
    program = Program(list(arguments), dict(env or os.environ), str(cwd or os.getcwd()))
    with tempfile.TemporaryDirectory() as directory:
        stdin, stdout, stderr = (Path(directory) / name for name in ("in", "out", "err"))
        stdin.write_text(input)
        with stdin.open() as read, stdout.open("w") as out, stderr.open("w") as err:
            process = _start(program, read, out, err, forks=_has_server())
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, code, stdout.read_text(), stderr.read_text())


def start_command(command: str, output: Path) -> Process:
    """Start a command of a shell; what it prints goes to the end of a file.

    Also in a child of the process that runs the fork server: the caller has to end the command.
    """
    program = _program_of_shell(command)
    with Path(os.devnull).open() as null, output.open("a") as file:
        if program and _can_fork(program):
            return _start(program, null, file, file, forks=True)
        return subprocess.Popen(["bash", "-c", command], stdin=null, stdout=file, stderr=file)


def _start(
    program: Program, stdin: IO[str], stdout: IO[str], stderr: IO[str], forks: bool
) -> Process:
    if forks and _can_fork(program):
        return ForkedProcess(program, stdin.name, stdout.name, stderr.name)
    return subprocess.Popen(
        [sys.executable, *program.arguments],
        env=program.env,
        cwd=program.directory,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )


def _program_of_shell(command: str) -> Program | None:
    """Return a command without any signs of the shell if it is one of Celery or of ours."""
    if any(sign in command for sign in "|&;<>$`*?()\\\n~{"):
        return None
    name, *words = shlex.split(command)
    if name == "celery":
        arguments = ["-m", "celery", *words]
    elif name == "celery-locks":
        arguments = [
            "-c",
            "from celery_locks.cli import main; main(prog_name='celery-locks')",
            *words,
        ]
    else:
        return None
    return Program(arguments, dict(os.environ), os.getcwd())


@contextmanager
def fork_server() -> Iterator[None]:
    """Run a fork server for this process and its children while the block runs."""
    from tests.servers.subprocesses import Child, new_directory

    name = f"{os.getpid()}-{os.urandom(8).hex()}"
    command = ["/usr/bin/env", f"PYTHONPATH={_ROOT}", "PYTHONUNBUFFERED=1", sys.executable]
    child = Child([*command, "-m", "tests.servers.fork_server", name], new_directory())
    ends = time.monotonic() + _PATIENCE
    while not _is_ready(name):
        assert child.is_running, child.log()
        assert time.monotonic() < ends, child.log()
        time.sleep(0.01)
    before = os.environ.get(SOCKET_VARIABLE)
    os.environ[SOCKET_VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[SOCKET_VARIABLE]
        if before:
            os.environ[SOCKET_VARIABLE] = before
        child.kill()


def _is_ready(name: str) -> bool:
    try:
        return bool(_ask(name, {}))
    except ConnectionError:
        return False


def _serve(name: str) -> dict[str, Any]:
    """Start programs and report their ends; return the request in each process that is forked."""
    ended: dict[int, int] = {}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(_address(name))
        listening.listen(128)
        while True:
            connection, _ = listening.accept()
            with connection:
                line = connection.makefile().readline()
                if not line:
                    continue  # who asked was killed
                request = json.loads(line)
                if not request:
                    reply: int | None = os.getpid()
                elif "poll" in request:
                    reply = _exit_code(request["poll"], ended)
                else:
                    reply = os.fork()
                    if not reply:
                        return dict(request)
                    with suppress(PermissionError, ProcessLookupError):  # it did so itself
                        os.setpgid(reply, reply)
                with suppress(ConnectionError):  # who asked was killed meanwhile
                    connection.sendall(json.dumps(reply).encode() + b"\n")


def _exit_code(pid: int, ended: dict[int, int]) -> int | None:
    if pid not in ended:
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done:
            return None
        ended[pid] = os.waitstatus_to_exitcode(status)
    return ended[pid]


def _prepare(request: dict[str, Any], server: int) -> None:
    """Make this process what a new one would be."""
    with suppress(PermissionError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SERVER_ENDED, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)
    flags = [os.O_RDONLY, *2 * [os.O_WRONLY | os.O_CREAT | os.O_APPEND]]
    for number, (name, flag) in enumerate(zip(request["files"], flags, strict=True)):
        descriptor = os.open(name, flag, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["directory"])
    added = [it for it in os.environ.get("PYTHONPATH", "").split(os.pathsep) if it]
    sys.path[:] = [request["directory"], *added, *(it for it in sys.path if it not in added)]
    for action in os.environ.get("PYTHONWARNINGS", "").split(","):
        if action:
            warnings.simplefilter(action)  # type: ignore[arg-type]


def _run(kind: str, what: str, *arguments: str) -> None:
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), vars(main))


if __name__ == "__main__":
    for _name in _PRELOADED:
        with suppress(ImportError):  # `make test-oldest` installs less
            importlib.import_module(_name)
    _server = os.getpid()
    _request = _serve(sys.argv[1])
    _prepare(_request, _server)
    _run(*_request["arguments"])
