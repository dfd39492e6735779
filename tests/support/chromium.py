"""Debian's Chromium, driven by Playwright: started as root, and never to talk to anybody but us."""

import shutil

from playwright.sync_api import Browser, Playwright

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def binary() -> str | None:
    return shutil.which("chromium")


def launched(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=binary(), args=ARGUMENTS)
