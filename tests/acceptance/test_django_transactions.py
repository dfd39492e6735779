"""``celery_locks.django.hold`` and publishing, in real transactions of a Django project.

The tests are Django's own, in ``tests/support/django_project/transaction_tests.py``; one run of
``manage.py test`` runs them all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.servers.subprocesses import new_directory
from tests.support.celery_worker import ROOT
from tests.support.django_site import PACKAGE, environment

MODULE = f"{PACKAGE}.transaction_tests"
TESTS = re.findall(
    r"    def (test_\w+)",
    (Path(ROOT) / "tests/support/django_project/transaction_tests.py").read_text(),
)


@pytest.fixture(scope="module")
def output() -> Iterator[str]:
    with EmbeddedServer() as server:
        more = {"SHOP_TEST_DATABASE": str(new_directory() / "test.sqlite3")}
        run = subprocess.run(
            [sys.executable, "-W", "error", "-m", f"{PACKAGE}.manage", "test", MODULE, "-v", "2"],
            env={**os.environ, **environment(server.url, **more)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        yield run.stdout + run.stderr


@pytest.mark.parametrize("name", TESTS)
def test_in_django(output: str, name: str) -> None:
    assert re.search(rf"^{name} .*(\n.*)?\.\.\. (.*\n)?ok$", output, re.MULTILINE), output
