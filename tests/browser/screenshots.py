"""The pictures of the page in docs/_static/: ``python -m tests.browser.screenshots [folder]``.

Everything in them is real: a lock server, two Celery workers of which one is killed, the page and
Chromium. It takes about a minute and a half.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from celery_locks import Locks, admin
from tests.browser.shop import STOCK_QUEUE, URL_VARIABLE, app
from tests.servers.embedded import EmbeddedServer
from tests.support import chromium
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "_static"
WIDE = {"viewport": {"width": 1400, "height": 860}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "device_scale_factor": 2}
PATIENCE = 60.0
_CHARGE = "shop.billing.tasks.charge"
_NAMES = {
    "shop.billing.tasks.pay_out": "payout:2026-11-15",
    "shop.billing.tasks.handle_event": "webhook:stripe:evt_3Q1",
    "shop.reports.tasks.build_daily": "report:daily:2026-11-15",
    "shop.search.tasks.reindex": "search:reindex",
    "shop.catalogue.tasks.import_catalogue": "catalogue:import:atelier-blau",
    "shop.media.tasks.thumbnail": "thumbnail:sku:55120",
    "shop.crm.tasks.merge_customers": "customer:8812:merge",
    "shop.stock.tasks.recount": "stock:warehouse:lyon",
}
_PAST = (1.1, 1.6, 1.2, 2.4, 1.3)


@contextmanager
def worker(url: str, name: str, *queues: str) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ["-A", "tests.browser.shop", "worker", "-n", name, "-P", "threads", "-c", "30"]
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", *arguments, "-Q", ",".join(queues), "-l", "ERROR"],
        cwd=ROOT,
        env={**os.environ, URL_VARIABLE: url},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def served(url: str) -> Iterator[str]:
    command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.browser.shop"]
    process = subprocess.Popen(
        [*command, "locks", "web", "--open", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, URL_VARIABLE: url},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        yield next(word for word in process.stdout.readline().split() if word.startswith("http"))
    finally:
        process.kill()
        process.communicate()


def prepare(locks: Locks, stock: subprocess.Popen[bytes]) -> None:
    """Past holds, work of a shop, a lock that others wait for, and one whose worker is dead."""
    for seconds in _PAST:
        app.tasks[_CHARGE].delay("invoice:20417", seconds)
    wait_until(lambda: _past_holds(locks) == len(_PAST), PATIENCE, what="the past holds")
    for task, name in _NAMES.items():
        app.tasks[task].delay(name)
    for number in (20418, 20431):
        app.tasks[_CHARGE].delay(f"invoice:{number}")
    for _ in range(3):
        app.tasks["shop.exports.tasks.export"].delay("exports:pool")
    app.tasks[_CHARGE].delay("invoice:20417", retry_of=20416)
    wait_until(lambda: locks.is_locked("invoice:20417"), PATIENCE, what="the charge")
    for _ in range(4):
        app.tasks[_CHARGE].delay("invoice:20417")
    app.tasks[_CHARGE].delay("report:daily:2026-11-15")
    wait_until(lambda: locks.is_locked(_NAMES["shop.stock.tasks.recount"]), PATIENCE)
    stock.kill()


def _past_holds(locks: Locks) -> int:
    return sum(entry.act == "held" for entry in admin.history(locks, "invoice:20417"))


def take(browser: Browser, address: str, folder: Path) -> None:
    pages = {
        f"page-{scheme}.png": _opened(browser, f"{address}#lock=invoice:20417", scheme, **WIDE)
        for scheme in ("light", "dark")
    }
    pages["page-phone.png"] = _opened(browser, address, "light", **PHONE)
    for page in pages.values():
        expect(page.locator("#rows tr.gone")).to_be_visible(timeout=PATIENCE * 1000)
    for name, page in pages.items():
        page.screenshot(path=folder / name)


def _opened(browser: Browser, address: str, scheme: Any, **options: Any) -> Page:
    page = browser.new_context(color_scheme=scheme, **options).new_page()
    page.goto(address)
    expect(page.locator("#rows .liveness.running").first).to_be_attached(timeout=PATIENCE * 1000)
    if "lock=" in address:
        expect(page.locator(".time-axis .present")).to_be_visible()
        expect(page.locator("#why p").first).to_be_visible()
    return page


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    folder.mkdir(parents=True, exist_ok=True)
    with EmbeddedServer() as server, sync_playwright() as playwright:
        app.conf.broker_url = server.url
        with (
            worker(server.url, "billing@web-3", "celery"),
            worker(server.url, "stock@web-5", STOCK_QUEUE) as stock,
            served(server.url) as address,
        ):
            prepare(Locks.from_app(app), stock)
            take(chromium.launched(playwright), address, folder)


if __name__ == "__main__":
    main()
