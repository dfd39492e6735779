"""The smaller views: stale locks, the sweep, and the configuration check."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from playwright.sync_api import Browser, expect

from celery_locks import Locks
from tests.browser.harness import PATIENCE, Harness, open_harness, with_keys
from tests.servers.embedded import EmbeddedServer
from tests.support.waiting import wait_until


def test_reports_without_an_app_explain_what_needs_one(harness: Harness) -> None:
    """The page must not offer what it cannot do."""
    harness.holders.hold_without_renewal("left", ttl=600)
    page = harness.open("#view=stale")
    expect(page.locator("#stale .empty")).to_have_text("No stale locks.")
    page.fill("#stale input", "0")
    page.keyboard.press("Tab")
    expect(page.locator("#stale .cards li")).to_contain_text("held for")
    expect(page.locator("#stale .sweep")).to_contain_text("started without a Celery app")
    expect(page.locator("#stale .sweep button")).to_have_count(0)
    page.click("nav >> text=Check")
    expect(page.locator("#check .body")).not_to_contain_text("Reading")


# When a renewal is overdue, half of it is left for the test.
TTL = 16.0


@pytest.fixture
def celery_harness(browser: Browser, valkey: EmbeddedServer) -> Iterator[Harness]:
    """Serve a web app with a Celery app, without any worker."""

    def app_over(locks: Locks) -> Any:
        app = Celery("shop", broker=valkey.url, set_as_current=False)
        app.conf.update(locks_url=valkey.url, locks_prefix=locks.commands.prefix)
        return with_keys(app)

    with open_harness(browser, valkey.url, app_over) as harness:
        yield harness


def test_sweep_previews_and_then_releases(celery_harness: Harness) -> None:
    """A worker is dead: the page shows what a sweep would release, and releases it."""
    harness = celery_harness
    harness.holders.hold_without_renewal("young", ttl=600, worker="dead@web-5")
    page = harness.open("#view=stale")
    preview = page.locator("text=Preview a sweep")
    found = page.locator("#stale .sweep")

    def would_release_one() -> bool:
        if not harness.locks.is_locked("left"):
            harness.holders.hold_without_renewal("left", ttl=TTL, worker="dead@web-5")
        wait_until(lambda: _age(harness.locks, "left") > TTL / 2, PATIENCE, what="it to be overdue")
        preview.click()
        expect(preview).to_be_enabled()
        expect(found).to_contain_text("a renewal is not overdue yet")
        return page.locator("text=Release 1 lock").count() > 0

    wait_until(would_release_one, 3 * PATIENCE, what="the lock to look stale")
    expect(found.locator("li")).to_contain_text(["it is dead or cut off", "not overdue yet"])
    page.click("text=Release 1 lock")
    expect(page.locator("#outcomes")).to_contain_text(
        re.compile("Released left|nothing left to release")
    )
    assert not harness.locks.is_locked("left")
    assert harness.locks.is_locked("young")


def _age(locks: Locks, name: str) -> float:
    """Return the age of the hold; infinite once the lock has lapsed."""
    lock = locks.info(name)
    return lock.as_of - lock.holders[0].acquired_at if lock else math.inf
