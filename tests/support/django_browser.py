"""Release a lock in the admin with Chromium: ``python -m tests.support.django_browser URL NAME``.

A program of its own, because the event loops of Playwright and pytest cannot share a process. It
prints in JSON what the page showed and what the browser reported, such as a breach of the policy.
"""

import json
import sys
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.support import chromium


def log_in(page: Page, base: str) -> None:
    page.goto(f"{base}/admin/")
    page.fill("#id_username", "rolf")
    page.fill("#id_password", "pw")
    page.click("input[type=submit]")
    page.click("#content a:text-is('Locks')")


def release(page: Page, glob: str) -> dict[str, Any]:
    page.fill("#searchbar", glob)
    page.press("#searchbar", "Enter")
    page.click("#result_list tbody a")
    heading = page.inner_text("#content h1")
    page.click("text=Release…")
    page.fill("#id_reason", "seen in a browser")
    page.click("text=Release the lock")
    return {
        "heading": heading,
        "message": page.inner_text(".messagelist"),
        "overflow_wrap": page.evaluate(
            "getComputedStyle(document.querySelector('#content h1')).overflowWrap"
        ),
    }


def main(base: str, glob: str) -> None:
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = chromium.launched(playwright)
        page = browser.new_page()
        page.on("console", lambda entry: complaints.append(f"{entry.text} {entry.location['url']}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        log_in(page, base)
        seen = release(page, glob)
        browser.close()
    seen["complaints"] = [text for text in complaints if "favicon.ico" not in text]
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
