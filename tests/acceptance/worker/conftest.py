"""A failing test shows what the workers of that moment wrote."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.worker import Worker


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        for worker in list(Worker.running):
            lines = worker.log().partition(" ready.")[2].splitlines()[-40:]
            report.sections.append((f"log of worker {worker.pid}", "\n".join(lines)))
