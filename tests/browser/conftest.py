"""One Chromium for the folder; each test has its own locks, web server and windows."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.harness import Harness, open_harness, with_keys
from tests.servers.embedded import EmbeddedServer
from tests.support import chromium


# Not for the session: while Playwright's event loop runs, no asynchronous test can run.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. If it is missing, the tests fail unless the variable is set."""
    if chromium.binary() is None:
        _miss("No chromium on the PATH (Debian: apt-get install chromium).")
    with sync_playwright() as playwright:
        browser = chromium.launched(playwright)
        yield browser
        browser.close()


def _miss(sentence: str) -> None:
    if os.environ.get("CELERY_LOCKS_WITHOUT_BROWSER") == "1":
        pytest.skip(sentence)
    pytest.fail(f"{sentence} CELERY_LOCKS_WITHOUT_BROWSER=1 skips these tests.")


@pytest.fixture
def harness(browser: Browser, valkey: EmbeddedServer) -> Iterator[Harness]:
    """Serve the page without a Celery app; fail if the browser reports an unexpected error."""
    with open_harness(browser, valkey.url, with_keys) as harness:
        yield harness
