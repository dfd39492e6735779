"""The Django project in a process of its own, used over HTTP and through ``manage.py``.

Django allows one set of settings per process, and the project's app would become Celery's current
app: so nothing of the project is imported here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any

import httpx

from tests.servers.subprocesses import Child, new_directory
from tests.support.celery_worker import PATIENCE, ROOT
from tests.support.waiting import wait_until

PACKAGE = "tests.support.django_project"
LOCKS = "/admin/celery_locks/lock/"


@dataclass(frozen=True)
class Seen:
    """A response: its status, its HTML, and the text that a person reads."""

    status: int
    html: str
    url: str

    @property
    def text(self) -> str:
        """What a person reads, without the tags."""
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", self.html)))

    @property
    def names(self) -> list[str]:
        """The locks of a list, in their order."""
        rows = re.findall(r'<th class="locks-name"><a [^>]*>([^<]*)</a>', self.html)
        return [unescape(name) for name in rows]

    def links(self, text: str) -> list[str]:
        found = re.findall(r'<a [^>]*href="([^"]*)"[^>]*>([^<]*)</a>', self.html)
        return [unescape(url) for url, label in found if text in unescape(label)]


class User:
    """A user who is logged in."""

    def __init__(self, base: str, user: str) -> None:
        self.client = httpx.Client(base_url=base, follow_redirects=True, timeout=PATIENCE)
        self.get("/admin/login/")
        self.post("/admin/login/", username=user, password="pw", next="/admin/")

    def get(self, url: str, **query: Any) -> Seen:
        return self._seen(self.client.get(url, params=query or None))

    def post(self, url: str, **fields: Any) -> Seen:
        """Send the form with Django's CSRF token."""
        return self.post_bare(url, csrfmiddlewaretoken=self.client.cookies["csrftoken"], **fields)

    def post_bare(self, url: str, **fields: Any) -> Seen:
        return self._seen(self.client.post(url, data=fields))

    @staticmethod
    def _seen(answer: httpx.Response) -> Seen:
        assert answer.status_code < 500, answer.text
        return Seen(answer.status_code, answer.text, str(answer.url))


def environment(redis_url: str, **more: str) -> dict[str, str]:
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    return {"PYTHONPATH": path, "SHOP_REDIS_URL": redis_url, "COVERAGE_PROCESS_START": "", **more}


@contextmanager
def serving(redis_url: str, **more: str) -> Iterator[str]:
    """Serve the admin and yield its address. A response of 500 contains the traceback."""
    directory = new_directory()
    variables = environment(redis_url, SHOP_DEBUG="1", SHOP_DATABASE=str(directory / "db"), **more)
    settings = [f"{name}={value}" for name, value in variables.items()]
    command = ["/usr/bin/env", *settings, sys.executable, "-W", "error", "-m", f"{PACKAGE}.serve"]
    child = Child(command, directory)

    def port() -> Any:
        assert child.is_running, child.log()
        return re.search(r"serving on port (\d+)\.", child.log())

    try:
        yield f"http://127.0.0.1:{wait_until(port, PATIENCE, what='the site').group(1)}"
    finally:
        child.stop()


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def manage(redis_url: str, *arguments: str, **more: str) -> Answer:
    """Run ``manage.py`` with these arguments."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"{PACKAGE}.manage", *arguments],
        env={**os.environ, **environment(redis_url, **more)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)
