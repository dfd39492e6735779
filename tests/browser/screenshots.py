"""The pictures of the page in docs/: ``python -m tests.browser.screenshots [folder]``.

A real worker's locks are imitated: the server, the page and Chromium are real, the holders are
made up, so that the pictures show the same every time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from playwright.sync_api import Browser, Page, expect, sync_playwright

from celery_locks import Locks
from celery_locks.model import Holder
from celery_locks.testing.servers import EmbeddedServer
from celery_locks.web import create_app
from tests.browser.desk import Desk, desk_over, row, somebody
from tests.support import chromium

DOCS = Path(__file__).parents[2] / "docs"
WIDE = {"viewport": {"width": 1400, "height": 860}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "device_scale_factor": 2}
_HOLDS = (
    ("report:daily:2026-11-15", "shop.reports.tasks.build_daily", 60),
    ("search:reindex", "shop.search.tasks.reindex", 60),
    ("stock:warehouse:hamburg", "shop.stock.tasks.recount", 30),
    ("catalogue:import:atelier-blau", "shop.catalogue.tasks.import_catalogue", 60),
    ("thumbnail:sku:55120", "shop.media.tasks.thumbnail", 15),
    ("payout:2026-11-15", "shop.billing.tasks.pay_out", 30),
    ("customer:8812:merge", "shop.crm.tasks.merge_customers", 15),
    ("newsletter:2026-11", "shop.mail.tasks.send_batch", 30),
    ("invoice:20418", "shop.billing.tasks.charge", 30),
    ("invoice:20431", "shop.billing.tasks.charge", 30),
    ("webhook:stripe:evt_3Q1", "shop.billing.tasks.handle_event", 15),
)
_PAST = (1.1, 1.4, 1.0, 1.9, 1.2, 1.5)


def prepare(desk: Desk) -> None:
    """Some work of a shop, one lock that others wait for, and one whose worker is dead."""
    for seconds in _PAST:
        with desk.locks.hold("invoice:20417", holder=_at_work("shop.billing.tasks.charge")):
            time.sleep(seconds)
    desk.crowd.leave(
        "stock:warehouse:lyon", ttl=40, **_who("shop.stock.tasks.recount", "stock@web-5")
    )
    for name, task, ttl in _HOLDS:
        desk.hold(name, holder=_at_work(task), ttl=ttl)
    for _ in range(3):
        desk.hold("exports:pool", limit=4, holder=_at_work("shop.exports.tasks.export"))
    desk.hold("invoice:20417", holder=_at_work("shop.billing.tasks.charge"))
    for name, waiters in (("invoice:20417", 4), ("report:daily:2026-11-15", 2)):
        for _ in range(waiters):
            desk.crowd.wait_for(name, "shop.billing.tasks.charge")
    time.sleep(21)  # the dead worker's renewal is overdue, and the charge takes unusually long


def _at_work(task: str) -> Holder:
    return somebody(**_who(task, f"{task.split('.')[1]}@web-3"))


def _who(task: str, worker: str) -> dict[str, Any]:
    return {"task": task, "worker": worker, "host": worker.partition("@")[2]}


@contextmanager
def shop(browser: Browser, with_app: bool = False) -> Iterator[Desk]:
    with EmbeddedServer() as server:

        def app_of(locks: Locks) -> Any:
            if not with_app:
                return create_app(locks, open_to_all=True, requests_per_minute=1_000_000)
            app = Celery("shop", broker=server.url, set_as_current=False)
            app.conf.update(locks_url=server.url, locks_prefix=locks.verbs.prefix)
            return create_app(app, open_to_all=True, requests_per_minute=1_000_000)

        with desk_over(browser, server.url, app_of) as desk:
            yield desk


def take(desk: Desk, folder: Path) -> None:
    for scheme in ("light", "dark"):
        page = desk.open("#lock=invoice:20417", key=None, color_scheme=scheme, **WIDE)
        _ready(page)
        page.screenshot(path=folder / f"page-{scheme}.png")
    page = desk.open(key=None, color_scheme="light", **PHONE)
    expect(row(page, "invoice:20417")).to_be_visible()
    page.screenshot(path=folder / "page-phone.png")


def _ready(page: Page) -> None:
    expect(row(page, "invoice:20417")).to_be_visible()
    expect(page.locator("#why p").first).to_be_visible()
    expect(page.locator(".time-axis .present")).to_be_visible()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = chromium.launched(playwright)
        with shop(browser) as desk:
            prepare(desk)
            take(desk, folder)
        browser.close()


if __name__ == "__main__":
    main()
