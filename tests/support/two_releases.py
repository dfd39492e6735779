"""Several releases of the package side by side: copies with the changes that a release may bring.

Nothing has been released before, so a copy of the package is changed into the release before and
after this one. A process uses a release if its folder comes first in PYTHONPATH; the journal of
``celery_app`` has the name of the release that each process has really imported.

==========  =====================================================================================
release     how it differs
==========  =====================================================================================
current     the package as it is
next        writes one more field and one more lock option into the header of a message, and one
            more field into every record in Redis; its Lua scripts have other texts
raised      the same, and the header has a higher version: others must not ignore what is new
previous    the header before version 1: no number, the reservation with its token, fewer fields
moved       its redis keys have other names: it shares no lock with the others (negative control)
==========  =====================================================================================
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_locks.integration.headers import VERSION
from tests.support.celery_app import CONF_VARIABLE
from tests.support.worker import ROOT, Worker

PACKAGE = ROOT / "celery_locks"
NEW_FIELD, NEW_OPTION, NEW_RECORD_FIELD = "trace", "fairness", "region"

_NEXT_HEADER = f"""

_write_before, _parse_before = LockHeader.write, LockHeader._parse.__func__


def _write_more(self, headers):
    written = _write_before(self, headers)
    if HEADER in written:
        options = {{**written[HEADER].get("options", {{}}), {NEW_OPTION!r}: "strict"}}
        written[HEADER] |= {{"options": options, {NEW_FIELD!r}: "t-1"}}
    return written


def _parse_more(cls, raw):
    known = {{name: value for name, value in raw.items() if name != {NEW_FIELD!r}}}
    if "options" in known:
        known["options"] = {{k: v for k, v in known["options"].items() if k != {NEW_OPTION!r}}}
    return _parse_before(cls, known)


LockHeader.write, LockHeader._parse = _write_more, classmethod(_parse_more)
"""

_RAISED_HEADER = f"""
VERSION = {VERSION + 1}
"""

_NEXT_TYPES = f"""

import json as _json

_about_before = Holder.about


def _say_more(self):
    return _json.dumps({{**_json.loads(_about_before(self)), {NEW_RECORD_FIELD!r}: "eu"}})


Holder.about = _say_more
"""

_PREVIOUS_HEADER = """

VERSION = 0
for _name in ("unseen", "refused", "published_by"):
    _READERS.pop(_name)
_write_before = LockHeader.write


def _write_unversioned(self, headers):
    written = _write_before(self, headers)
    fields = written.get(HEADER, {})
    for unknown in ("version", "unseen", "refused", "published_by"):
        fields.pop(unknown, None)
    again = fields.pop("of_retry", False)
    if "queued" in fields:
        fields["queued"] = [fields["queued"], "q+token" if again else "qtoken"]
    if "replaced" in fields:
        fields["replaced"] = ["task-id", 60.0]
    return written


LockHeader.write = _write_unversioned
"""


def _append(package: Path, file: str, text: str) -> None:
    with (package / file).open("a") as source:
        source.write(text)


def _make_next(package: Path) -> None:
    _append(package, "integration/headers.py", _NEXT_HEADER)
    _append(package, "types.py", _NEXT_TYPES)
    for script in (package / "store/scripts").glob("*.lua"):
        script.write_text(f"{script.read_text()}\n-- of the next release\n")


def _make_raised(package: Path) -> None:
    _make_next(package)
    _append(package, "integration/headers.py", _RAISED_HEADER)


def _make_previous(package: Path) -> None:
    _append(package, "integration/headers.py", _PREVIOUS_HEADER)


def _make_moved(package: Path) -> None:
    _append(package, "types.py", '\nDEFAULT_PREFIX = "moved"\n')


_CHANGES: dict[str, Callable[[Path], None]] = {
    "current": lambda package: None,
    "next": _make_next,
    "raised": _make_raised,
    "previous": _make_previous,
    "moved": _make_moved,
}


class Releases:
    """The releases of one test file, each made when it is first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, release: str) -> str:
        """The PYTHONPATH under which a process imports this release, and the tests."""
        folder = self._folder / release
        if not folder.exists():
            package = folder / "celery_locks"
            shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
            _append(package, "__init__.py", f"\nRELEASE = {release!r}\n")
            _CHANGES[release](package)
        return f"{folder}:{ROOT}"

    def worker(self, release: str, conf: dict[str, Any], queues: str) -> Worker:
        """A prefork worker of this release; its node name is ``release@test``."""
        env = {"PYTHONPATH": self.path(release), CONF_VARIABLE: json.dumps(conf)}
        arguments = ("-Q", queues, "-n", f"{release}@test")
        return Worker("tests.support.two_releases_app", arguments=arguments, env=env)


class Publisher:
    """A process of one release that publishes; it answers each request before the next."""

    def __init__(self, path: str, conf: dict[str, Any]) -> None:
        env = {"PYTHONPATH": path, CONF_VARIABLE: json.dumps(conf)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.two_releases"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate(timeout=30)  # closes its input, which ends it

    def send(self, task: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Publish; return the ``id`` of the result, whether it is another's, and the release."""
        return self._ask({"do": "send", "task": task, "args": args, "options": options})

    def pending(self, task: str, *args: Any) -> str | None:
        """Ask ``task.pending(…)`` in that process."""
        state: str | None = self._ask({"do": "pending", "task": task, "args": args})["pending"]
        return state

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the publisher has ended"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer
        return answer


def answer_requests() -> None:
    """Run in the publisher's process: one request a line, one answer a line."""
    import celery_locks
    from tests.support.two_releases_app import app

    app.finalize()
    for line in sys.stdin:
        request = json.loads(line)
        task = app.tasks[request["task"]]
        answer: dict[str, Any] = {"release": celery_locks.RELEASE}  # type: ignore[attr-defined]
        try:
            if request["do"] == "send":
                result = task.apply_async(request["args"], **request["options"])
                answer |= {"id": result.id, "deduplicated": result.deduplicated}
            else:
                answer["pending"] = task.pending(*request["args"])
        except Exception as error:
            answer["error"] = repr(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    answer_requests()
