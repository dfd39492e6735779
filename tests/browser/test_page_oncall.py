"""On call: which server this is, what is wrong, who causes it, and what goes into the ticket."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from playwright.sync_api import Browser, Page, expect

from celery_locks import Locks, admin
from celery_locks.recipes import idempotent
from tests.browser.harness import (
    PATIENCE,
    READ,
    Harness,
    new_holder,
    no_sideways_scroll,
    open_harness,
    row,
    with_keys,
)
from tests.browser.test_page_actions import HOSTILE, escaped
from tests.servers.embedded import EmbeddedServer
from tests.support.celery_worker import fresh_rig
from tests.support.waiting import wait_until

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


def app_on(url: str, **conf: Any) -> Any:
    def app_over(locks: Locks) -> Any:
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(locks_url=url, locks_prefix=locks.commands.prefix, **conf)
        return with_keys(app)

    return app_over


@pytest.fixture
def celery_harness(browser: Browser, valkey: EmbeddedServer) -> Iterator[Harness]:
    """Serve a web app with a Celery app, without any worker."""
    with open_harness(browser, valkey.url, app_on(valkey.url)) as harness:
        yield harness


def held_before(harness: Harness, name: str, task: str) -> None:
    """Hold and release the lock, long enough to be recorded."""
    with harness.locks.hold(name, holder=new_holder(task)):
        time.sleep(1.1)


def test_header_shows_which_locks_these_are(
    celery_harness: Harness, valkey: EmbeddedServer
) -> None:
    """An operator must not take production for staging."""
    page = celery_harness.open()
    server = page.locator("#server")
    address = valkey.url.removeprefix("redis://")
    expect(server).to_contain_text("shop")
    assert address.endswith("/0")
    expect(server).to_contain_text(address)
    expect(server).to_contain_text(f"prefix {celery_harness.locks.commands.prefix}")
    expect(page).to_have_title("shop · celery-locks")
    page.click("text=Sign out")
    expect(server).to_be_hidden()
    assert page.title() == "celery-locks"


def test_waited_for_locks_come_first_and_longest_wait_leads(harness: Harness) -> None:
    """A lock with waiters is the most urgent: it must be at the top."""
    for name in ("old", "waited", "longer"):
        harness.hold(name)
    harness.holders.wait_for("longer")
    time.sleep(0.02)  # the store counts in milliseconds
    for _ in range(2):
        harness.holders.wait_for("waited")
    page = harness.open()
    expect(page.locator("#rows .name")).to_have_text(["longer", "waited", "old"])
    expect(row(page, "waited").locator(".waiting")).to_have_text(re.compile(r"2 · \d+ s"))
    expect(page.locator("[data-state=waiting] b")).to_have_text("2")
    page.click("[data-state=waiting]")
    expect(page.locator("#rows tr")).to_have_count(2)


def test_list_shows_the_usual_duration_and_marks_longer_holds(harness: Harness) -> None:
    """Only the usual duration tells whether 12 s are long."""
    held_before(harness, "invoice:1", "shop.charge")
    harness.hold("invoice:2", holder=new_holder("shop.charge"))
    page = harness.open()
    found = row(page, "invoice:2")
    expect(found.locator(".usually")).to_have_text("usually 1 s")
    expect(found.locator(".held")).to_have_class(re.compile("unusual"))
    expect(page.locator("thead")).to_contain_text("Lease")
    expect(page.locator("thead")).not_to_contain_text("Remaining")


def test_locks_of_dead_workers_are_marked(celery_harness: Harness) -> None:
    """They must be visible before their lease is half over."""
    celery_harness.holders.hold_without_renewal("left", ttl=600, worker="dead@web-5")
    celery_harness.hold("plain", holder=new_holder(worker=None))
    page = celery_harness.open()
    expect(row(page, "left")).to_have_class(re.compile("silent|gone"))
    expect(row(page, "left").locator(".badge")).to_have_text(re.compile("no answer|dead"))
    expect(row(page, "left").locator(".liveness")).to_have_attribute(
        "title", re.compile("dead@web-5")
    )
    expect(page.locator("#workers-status")).to_have_text(
        re.compile(r"0 of 1 worker answered, \d+ s ago")
    )
    page.click("[data-state=suspect]")
    expect(page.locator("#rows .name")).to_have_text(["left"])
    expect(page.locator("[data-state=suspect] b")).to_have_text("1")


def test_search_finds_a_task_id(harness: Harness) -> None:
    """Log lines have task ids: of a holder, of a waiter, or of a task without a lock."""
    holder = new_holder()
    harness.hold("invoice:1", holder=holder)
    harness.hold("invoice:2")
    page = harness.open()
    expect(page.locator("#rows tr")).to_have_count(2)
    page.fill("#q", str(holder.task_id))
    expect(page.locator("#rows .name")).to_have_text(["invoice:1"])
    page.fill("#q", "0000-nobody-has-this")
    page.click("text=find out what happened to the task")
    expect(page.locator("#empty .answer")).to_contain_text("0000-nobody-has-this")


def test_several_are_released_from_the_holders_shown(harness: Harness) -> None:
    """A holder that acquires a lock while the dialog is open keeps it."""
    leases = {name: harness.hold(name) for name in ("job:1", "job:2", "job:3", "other")}
    page = harness.open("#q=job:*&sort=name&order=asc")
    expect(page.locator("#rows tr")).to_have_count(3)
    page.check("#select-all")
    expect(page.locator("#bulk-text")).to_have_text("3 locks selected")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#bulk-text")).to_have_text("2 locks selected")
    page.click("#bulk-release")
    expect(page.locator("#action .targets li")).to_have_count(2)
    expect(page.locator("#action .targets")).to_contain_text("job:2")
    page.fill("#action [name=grace]", "0")
    page.check("#action [name=confirmed]")
    page.click("#action button.danger")
    assert page.locator("#action").is_visible(), "released without a reason"
    leases["job:3"].release()
    newcomer = harness.hold("job:3")
    page.fill("#action [name=reason]", "deploy")
    page.click("#action button.danger")
    expect(page.locator("#outcomes")).to_contain_text("Took 1 lock: job:2.")
    expect(page.locator("#outcomes")).to_contain_text("1 holder had already released the lock")
    expect(page.locator("#bulk")).to_be_hidden()
    assert not harness.locks.is_locked("job:2")
    assert [holder.token for holder in harness.locks.holders("job:3")] == [newcomer.token]
    assert harness.locks.is_locked("job:1")
    assert harness.locks.is_locked("other")
    [entry] = admin.history(harness.locks, "job:2", limit=1, only_actions=True)
    assert entry.why == "deploy"


def test_several_need_a_write_key(harness: Harness) -> None:
    harness.hold("job:1")
    page = harness.open(key=READ)
    page.check("#rows input")
    page.click("#bulk-release")
    expect(page.locator("#outcomes")).to_contain_text("Your key is read-only")
    expect(page.locator("#action")).to_be_hidden()


def test_completed_work_is_listed_and_reset_with_a_reason(harness: Harness) -> None:
    """A payment must run again: the mark is found and reset, and the history has the reason."""
    for key in ("paid:7", HOSTILE[0]):
        idempotent(harness.locks, key=lambda key=key: key, ttl=600)(lambda: "done")()
    page = harness.open("#view=done")
    expect(page.locator("#done .work")).to_have_count(2)
    expect(page.locator("#done .work .name")).to_contain_text([escaped(HOSTILE[0]), "paid:7"])
    page.fill("#done input", "paid")
    page.keyboard.press("Enter")
    expect(page.locator("#done .work")).to_have_count(1)
    page.click("text=Reset …")
    page.click("#action button.danger")
    assert page.locator("#action").is_visible(), "reset without a reason"
    page.fill("#action [name=reason]", "the bank lost it")
    page.click("#action button.danger")
    expect(page.locator("#outcomes")).to_contain_text("The work for paid:7 can run again.")
    expect(page.locator("#done .empty")).to_have_text("No key matches the filter.")
    page.click("nav >> text=History")
    expect(page.locator("#history .reset")).to_contain_text("allowed the work to run again")
    expect(page.locator("#history .reset .reason")).to_have_text("the bank lost it")


def test_time_axis_shows_holds_waits_and_actions(harness: Harness) -> None:
    """Who held the lock when, and who waits since when, at a glance."""
    held_before(harness, "invoice:42", "shop.charge")
    harness.hold("invoice:42")
    harness.holders.wait_for("invoice:42")
    admin.stop(harness.locks, "invoice:42", by="jonas", reason="deploy waits")
    page = harness.open("#lock=invoice:42", timezone_id="Asia/Kolkata")
    axis = page.locator(".time-axis")
    expect(axis.locator(".hold")).to_have_count(1)
    expect(axis.locator(".present")).to_have_count(1)
    expect(axis.locator(".wait")).to_have_count(1)
    expect(axis.locator(".flag.stop")).to_have_count(1)
    expect(axis).to_have_attribute(
        "aria-label", re.compile("1 past hold, 1 present holder, 1 wait")
    )
    expect(page.locator("#times h3")).to_contain_text("UTC+5:30")
    expect(page.locator("#past h3")).to_contain_text("UTC+5:30")
    expect(page.locator(".ranges [aria-pressed=true]")).to_have_text("recent")
    page.click(".ranges >> text=1 day")
    expect(page.locator(".ranges [aria-pressed=true]")).to_have_text("1 day")
    expect(axis.locator(".hold")).to_have_count(1)


def test_copy_as_text_is_for_the_ticket(harness: Harness) -> None:
    """The lock, its holder, waiters and history, in UTC; also if the browser forbids copying."""
    holder = new_holder("shop.charge")
    harness.hold("invoice:42", holder=holder)
    harness.holders.wait_for("invoice:42")
    page = harness.open("#lock=invoice:42", **CLIPBOARD)
    expect(page.locator("#why p").first).to_be_visible()
    page.click("#panel >> text=Copy as text")
    expect(page.locator("#outcomes")).to_contain_text("Copied.")
    text = page.evaluate("navigator.clipboard.readText()")
    for part in ("Lock invoice:42", str(holder.task_id), "1 waiter:", "UTC", "prefix page-"):
        assert part in text
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    wait_until(lambda: "HELD FOR" in page.evaluate("navigator.clipboard.readText()"), PATIENCE)
    forbidden = harness.open()
    forbidden.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    expect(forbidden.locator("#rows tr")).to_have_count(1)
    forbidden.click("#copy-list")
    expect(forbidden.locator("#copy textarea")).to_have_value(re.compile("invoice:42"))


def test_stale_view_shows_its_progress(celery_harness: Harness) -> None:
    """Without progress, the page looks as if it hangs."""
    page = celery_harness.open()
    delayed: list[Any] = []
    page.route("**/locks/stale*", lambda route: delayed.append(route))
    page.click("nav >> text=Stale")
    progress = page.locator("#stale .progress")
    expect(progress).to_contain_text("asking their workers over the broker")
    expect(progress).to_contain_text(re.compile(r"… [1-9]\d* s$"))
    delayed[0].continue_()
    expect(page.locator("#stale .empty")).to_have_text("No stale locks.")


def test_phone_labels_its_times(harness: Harness) -> None:
    """Two times on a card need labels."""
    harness.hold("invoice:42")
    harness.holders.wait_for("invoice:42")
    page = harness.open(**PHONE)
    card = row(page, "invoice:42")
    expect(card.locator(".lease-label")).to_have_text("Lease")
    expect(card.locator(".lease-label")).to_be_visible()
    assert _before(page, "td.held") == '"Held for "'
    assert _before(page, "td.waiting") == '"Waiting "'
    expect(page.locator("[data-state=suspect]")).to_be_in_viewport(ratio=1)
    assert no_sideways_scroll(page)
    page.check("#rows input")
    assert no_sideways_scroll(page)
    page.tap("#bulk-release")
    expect(page.locator("#action")).to_be_visible()
    assert no_sideways_scroll(page)


def _before(page: Page, selector: str) -> str:
    script = "node => getComputedStyle(node, '::before').content"
    found: str = page.locator(f"#rows {selector}").first.evaluate(script)
    return found


def test_arguments_are_shown_if_the_app_allows_it(browser: Browser) -> None:
    """A real task on a real worker; the dot shows that it is alive."""
    with fresh_rig(locks_ttl=30) as rig, rig.worker("-n", "one@%h"):
        rig.wait_started(rig.task("work").delay("invoice-42", "gate"))
        site = app_on(rig.server.url, locks_show_arguments=True)
        with open_harness(
            browser, rig.server.url, site, prefix=rig.locks.commands.prefix
        ) as harness:
            page = harness.open("#lock=invoice-42")
            expect(page.locator(".arguments")).to_contain_text("('invoice-42', 'gate')")
            expect(page.locator(".verdict.running")).to_contain_text(re.compile(r"Asked \d+ s ago"))
            expect(row(page, "invoice-42").locator(".liveness.running")).to_be_attached()
            expect(page.locator("#workers-status")).to_contain_text("1 of 1 worker answered")
        rig.open("gate")
