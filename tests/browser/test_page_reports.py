"""The smaller views: what looks left behind, sweeping it, and what is set up wrongly."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from playwright.sync_api import Browser, expect

from celery_locks import Locks
from tests.browser.desk import PATIENCE, Context, desk_over, with_keys
from tests.servers.embedded import EmbeddedServer
from tests.support.waiting import wait_until


def test_reports_without_an_app_explain_what_needs_one(desk: Context) -> None:
    """Nothing is offered that cannot be done."""
    desk.crowd.leave("left", ttl=600)
    page = desk.open("#view=stale")
    expect(page.locator("#stale .empty")).to_have_text("Nothing looks stale.")
    page.fill("#stale input", "0")
    page.keyboard.press("Tab")
    expect(page.locator("#stale .cards li")).to_contain_text("held for")
    expect(page.locator("#stale .sweep")).to_contain_text("started without a Celery app")
    expect(page.locator("#stale .sweep button")).to_have_count(0)
    page.click("nav >> text=Check")
    expect(page.locator("#check .body")).not_to_contain_text("Reading")


# Half of it is left for the page, once a renewal is overdue.
TTL = 16.0


@pytest.fixture
def celery_desk(browser: Browser, valkey: EmbeddedServer) -> Iterator[Context]:
    """A site that knows the Celery app, of which no worker runs."""

    def app_over(locks: Locks) -> Any:
        app = Celery("shop", broker=valkey.url, set_as_current=False)
        app.conf.update(locks_url=valkey.url, locks_prefix=locks.commands.prefix)
        return with_keys(app)

    with desk_over(browser, valkey.url, app_over) as desk:
        yield desk


def test_sweep_shows_first_and_then_frees(celery_desk: Context) -> None:
    """A worker is dead: the page says so, shows what a sweep would free, and frees it."""
    desk = celery_desk
    desk.crowd.leave("young", ttl=600, worker="dead@web-5")
    page = desk.open("#view=stale")
    look = page.locator("text=See what a sweep would free")
    found = page.locator("#stale .sweep")

    def would_free_one() -> bool:
        if not desk.locks.is_locked("left"):
            desk.crowd.leave("left", ttl=TTL, worker="dead@web-5")
        wait_until(lambda: _age(desk.locks, "left") > TTL / 2, PATIENCE, what="it to be overdue")
        look.click()
        expect(look).to_be_enabled()
        expect(found).to_contain_text("a renewal may yet come")
        return page.locator("text=Free 1 lock").count() > 0

    wait_until(would_free_one, 3 * PATIENCE, what="the lock to look left behind")
    expect(found.locator("li")).to_contain_text(["it is dead or cut off", "not overdue yet"])
    page.click("text=Free 1 lock")
    expect(page.locator("#outcomes")).to_contain_text(re.compile("Swept: left|Nothing was left"))
    assert not desk.locks.is_locked("left")
    assert desk.locks.is_locked("young")


def _age(locks: Locks, name: str) -> float:
    """Infinite once it has lapsed."""
    lock = locks.info(name)
    return lock.as_of - lock.holders[0].acquired_at if lock else math.inf
