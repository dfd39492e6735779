"""The list: live, filtered, sorted, in pages, on a phone, in dark mode."""

from __future__ import annotations

import re
import time
from urllib.parse import quote

from playwright.sync_api import Page, expect

from celery_locks.types import Holder
from tests.browser.harness import PATIENCE, WORKER, Harness, new_holder, no_sideways_scroll, row
from tests.support.waiting import wait_until

LONG = "catalogue:" + "x" * 400  # nowhere to break it
PHONE = {"viewport": {"width": 375, "height": 812}, "has_touch": True}


def test_list_shows_who_holds_what(harness: Harness) -> None:
    """Operators need to know this first."""
    holder = new_holder("shop.billing.tasks.charge")
    harness.hold("invoice:42", holder=holder)
    harness.holders.wait_for("invoice:42")
    harness.holders.wait_for("invoice:42")
    page = harness.open()
    found = row(page, "invoice:42")
    expect(found.locator(".holder")).to_have_text(f"shop.billing.tasks.charge{holder.task_id[:8]}")
    expect(found.locator(".where")).to_have_text(f"{WORKER}{holder.pid}")
    expect(found.locator(".waiting")).to_have_text(re.compile(r"^2 · \d+ s$"))
    expect(found.locator(".held")).to_have_text(re.compile(r"^\d+ s$"))
    expect(page.locator("#range")).to_have_text("1–1 of 1 lock")
    expect(page.locator("[data-state=waiting]")).to_have_text("waited for 1")
    before = found.locator(".held").inner_text()
    expect(found.locator(".held")).not_to_have_text(before)
    harness.hold("invoice:43")
    expect(row(page, "invoice:43")).to_be_visible()


def test_bar_drains_and_refills_with_a_renewal(harness: Harness) -> None:
    """A renewal must be visible at a glance."""
    lease = harness.hold("invoice:42", ttl=6)
    page = harness.open()
    fill = row(page, "invoice:42").locator(".track i")
    expect(fill).to_be_visible()
    samples: list[float] = []

    def drained_and_refilled() -> bool:
        samples.append(fill.evaluate(_SHARE))
        return any(
            max(samples[: at + 1]) - low > 0.1 and max(samples[at:]) - low > 0.1
            for at, low in enumerate(samples)
        )

    wait_until(drained_and_refilled, PATIENCE, every=0.1, what="the bar to fall and rise")
    assert lease.renewals > 0
    # With jumps of a second, the bar would not move between most samples.
    assert len(set(samples)) >= min(8, len(samples) / 2), samples


_SHARE = """
    fill => fill.getBoundingClientRect().width / fill.parentNode.getBoundingClientRect().width
"""


def test_filter_narrows_the_list_and_makes_a_link(harness: Harness) -> None:
    """A colleague must see the same list from the link alone."""
    for name in ("invoice:41", "invoice:42", "old-invoice:7", "report:day"):
        harness.hold(name)
    harness.hold("mail", "shop.mail.send", holder=new_holder("shop.mail.send", worker="mail@web-9"))
    harness.holders.wait_for("invoice:42")
    page = harness.open()
    expect(page.locator("#rows tr")).to_have_count(5)
    page.fill("#q", "invoice")
    expect(page.locator("#rows tr")).to_have_count(3)
    page.fill("#q", "invoice:*")
    expect(page.locator("#rows tr")).to_have_count(2)
    page.click("[data-state=waiting]")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#range")).to_have_text("1–1 of 1 lock (filtered)")
    friend = harness.open(page.url.removeprefix(harness.server.url))
    expect(friend.locator("#q")).to_have_value("invoice:*")
    expect(friend.locator("[data-state=waiting]")).to_have_attribute("aria-pressed", "true")
    expect(friend.locator("#rows .name")).to_have_text(["invoice:42"])
    page.fill("#q", "no such lock")
    expect(page.locator("#empty")).to_contain_text("No lock matches the filter.")
    page.click("text=Show all locks")
    expect(page.locator("#rows tr")).to_have_count(5)
    page.fill("#task", "mail")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.fill("#task", "")
    page.fill("#worker", "mail@web-9")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#rows .name")).to_have_text(["mail"])


def test_columns_sort(harness: Harness) -> None:
    """Each column sorts, and a second click reverses the order."""
    for name, ttl in (("b", 30), ("a", 300), ("c", 100)):
        harness.hold(name, ttl=ttl)
        time.sleep(0.02)  # the store counts in milliseconds
    harness.holders.wait_for("c")
    page = harness.open()
    expect(page.locator("th[data-sort=waiting]")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#rows tr")).to_have_count(3)
    expect(page.locator("#rows .name")).to_have_text(["c", "b", "a"])
    page.click("thead >> text=Held for")
    expect(page.locator("#rows .name")).to_have_text(["b", "a", "c"])
    for column, first, last in (("Lock", "a", "c"), ("Lease", "b", "a"), ("Waiting", "c", "")):
        page.click(f"thead >> text={column}")
        expect(page.locator("#rows .name").first).to_have_text(first)
        if last:
            page.click(f"thead >> text={column}")
            expect(page.locator("#rows .name").first).to_have_text(last)
            expect(page.locator("th[aria-sort]")).to_have_text(column)
            expect(page.locator("th[aria-sort=descending]")).to_have_count(1)


def test_thousands_of_locks_stay_usable(harness: Harness) -> None:
    """One page is drawn at a time, and a filter searches all locks."""
    for number in range(5_200):
        harness.holders.hold_without_renewal(f"bulk:{number:05}")
    page = harness.open("#sort=name&order=asc")
    expect(page.locator("#range")).to_have_text("1–100 of 5,200 locks")
    expect(page.locator("#rows tr")).to_have_count(100)
    expect(page.locator("#previous")).to_be_disabled()
    page.click("#next")
    expect(page.locator("#rows .name").first).to_have_text("bulk:00100")
    page.keyboard.press("]")
    expect(page.locator("#range")).to_have_text("201–300 of 5,200 locks")
    page.fill("#q", "bulk:04711")
    expect(page.locator("#rows tr")).to_have_count(1)
    expect(page.locator("#range")).to_have_text("1–1 of 1 lock (filtered)")
    page.goto(harness.server.url + "#sort=name&order=asc&page=52")
    expect(page.locator("#rows .name").last).to_have_text("bulk:05199")
    expect(page.locator("#next")).to_be_disabled()


def test_phone_shows_cards_and_never_scrolls_sideways(harness: Harness) -> None:
    """People on call often have only a phone."""
    harness.hold("invoice:42")
    harness.hold(LONG)
    harness.holders.wait_for(LONG)
    page = harness.open(**PHONE)
    expect(page.locator("#rows tr")).to_have_count(2)
    assert row(page, "invoice:42").evaluate("node => getComputedStyle(node).display") == "grid"
    assert no_sideways_scroll(page)
    row(page, LONG).tap()
    expect(page.locator("#panel h2")).to_have_text(LONG)
    expect(page.locator("#panel .holder-card")).to_be_visible()
    expect(page.locator("#rows")).not_to_be_visible()
    assert no_sideways_scroll(page)
    page.tap("text=Release …")
    expect(page.locator("#action")).to_be_visible()
    assert no_sideways_scroll(page)
    page.tap("text=Cancel")
    page.tap("[aria-label=Close]")
    expect(page.locator("#rows")).to_be_visible()
    for view in ("stale", "done", "history", "check"):
        page.goto(f"{harness.server.url}#view={view}")
        expect(page.locator(f"#{view} h1")).to_be_visible()
        assert no_sideways_scroll(page), view


def test_dark_and_light_are_both_legible(harness: Harness) -> None:
    """WCAG AA: every text has a contrast of at least 4.5, in both themes."""
    harness.hold("invoice:42\n", limit=2)
    harness.holders.hold_without_renewal("left", worker="gone@web-5")
    for scheme in ("light", "dark"):
        page = harness.open(f"#lock={quote('invoice:42')}%0A", color_scheme=scheme)
        expect(page.locator("#panel .holder-card")).to_be_visible()
        expect(page.locator("#why p").first).to_be_visible()
        backgrounds = [_background(page)]
        assert _low_contrast(page) == []
        page.keyboard.press("r")
        expect(page.locator("#action")).to_be_visible()
        assert _low_contrast(page) == []
        page.keyboard.press("Escape")
        page.click("#theme")
        backgrounds.append(_background(page))
        assert _low_contrast(page) == []
        page.reload()
        expect(page.locator("#rows tr")).to_have_count(2)
        assert _background(page) == backgrounds[1], "the choice was not stored"
        is_dark = [sum(color) < 200 for color in backgrounds]
        assert is_dark == ([False, True] if scheme == "light" else [True, False])


def _background(page: Page) -> list[int]:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in re.findall(r"\d+", color)]


def _low_contrast(page: Page) -> list[str]:
    found: list[str] = page.evaluate(_LOW_CONTRAST)
    return found


_LOW_CONTRAST = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3)
    .map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = numbers(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const pale = [];
  const open = document.querySelector("dialog[open]") ?? document.body;
  for (const node of open.querySelectorAll("*")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || node.disabled || !node.checkVisibility()) continue;
    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) pale.push(`${node.className || node.tagName}: ${node.textContent} ${ratio}`);
  }
  return pale;
}"""


def test_server_goes_away_and_comes_back(harness: Harness) -> None:
    """Old data must look old, and the page must reconnect on its own."""
    harness.expect_errors("ERR_CONNECTION|ERR_EMPTY_RESPONSE|Failed to load resource")
    harness.hold("invoice:42", ttl=30)
    page = harness.open()
    expect(row(page, "invoice:42")).to_be_visible()
    harness.server.stop()
    expect(page.locator("#trouble")).to_contain_text(re.compile(r"No answer since \d\d:\d\d:\d\d"))
    assert float(page.locator("#table").evaluate("node => getComputedStyle(node).opacity")) < 1
    held = row(page, "invoice:42").locator(".held")
    assert held.inner_text() == _after(page, 1.2, held), (
        "the clock runs although the server does not answer"
    )
    harness.server.start()
    expect(page.locator("#trouble")).to_be_hidden()
    expect(page.locator("#status-text")).to_have_text("live")
    harness.hold("invoice:43")
    expect(row(page, "invoice:43")).to_be_visible()


def _after(page: Page, seconds: float, node: object) -> str:
    page.wait_for_timeout(seconds * 1000)
    text: str = node.inner_text()  # type: ignore[attr-defined]
    return text


def test_keyboard_reaches_everything(harness: Harness) -> None:
    """Everything works without a mouse."""
    for name in ("a", "b", "c"):
        harness.hold(name, holder=Holder(host="batch-1", pid=7))
    page = harness.open("#sort=name&order=asc")
    expect(page.locator("#rows tr")).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(row(page, "b").locator("a")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator("#panel h2")).to_be_focused()
    expect(page.locator("#panel h2")).to_have_text("b")
    assert "lock=b" in page.url
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(row(page, "b").locator("a")).to_be_focused()
    page.go_back()
    expect(page.locator("#panel h2")).to_have_text("b")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("c")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(row(page, "c").locator("a")).to_be_focused()
    page.keyboard.press("6")
    expect(page.locator("#check h1")).to_have_text("Check")
    page.keyboard.press("1")
    expect(page.locator("#rows tr")).to_have_count(1)
