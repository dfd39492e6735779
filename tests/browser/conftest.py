"""One Chromium for the folder, and for each test its own locks, site and windows."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.desk import Context, desk_over, with_keys
from tests.servers.embedded import EmbeddedServer
from tests.support import chromium


# For the folder and not the session: while Playwright's loop runs, no asynchronous test can.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Missing is a failure, unless the variable says it could not be helped."""
    if chromium.binary() is None:
        _miss("No chromium on the PATH (Debian: apt-get install chromium).")
    with sync_playwright() as playwright:
        browser = chromium.launched(playwright)
        yield browser
        browser.close()


def _miss(sentence: str) -> None:
    if os.environ.get("CELERY_LOCKS_WITHOUT_BROWSER") == "1":
        pytest.skip(sentence)
    pytest.fail(f"{sentence} CELERY_LOCKS_WITHOUT_BROWSER=1 leaves these tests out.")


@pytest.fixture
def desk(browser: Browser, valkey: EmbeddedServer) -> Iterator[Context]:
    """A site without a Celery app; fails when the browser complained of anything unexpected."""
    with desk_over(browser, valkey.url, with_keys) as desk:
        yield desk
