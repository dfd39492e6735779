"""On call: where am I, what is wrong, who is it, and what goes into the ticket."""

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
from tests.browser.desk import (
    PATIENCE,
    READ,
    Context,
    desk_over,
    no_sideways_scroll,
    row,
    somebody,
    with_keys,
)
from tests.browser.test_page_acts import HOSTILE, spelled
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
def celery_desk(browser: Browser, valkey: EmbeddedServer) -> Iterator[Context]:
    """A site that knows the Celery app, of which no worker runs."""
    with desk_over(browser, valkey.url, app_on(valkey.url)) as desk:
        yield desk


def held_before(desk: Context, name: str, task: str) -> None:
    """A past hold, long enough to be recorded."""
    with desk.locks.hold(name, holder=somebody(task)):
        time.sleep(1.1)


def test_head_says_which_locks_these_are(celery_desk: Context, valkey: EmbeddedServer) -> None:
    """Whoever releases a lock in production believed it was staging."""
    page = celery_desk.open()
    site = page.locator("#site")
    address = valkey.url.removeprefix("redis://")
    expect(site).to_contain_text("shop")
    assert address.endswith("/0")
    expect(site).to_contain_text(address)
    expect(site).to_contain_text(f"prefix {celery_desk.locks.commands.prefix}")
    expect(page).to_have_title("shop · celery-locks")
    page.click("text=Sign out")
    expect(site).to_be_hidden()
    assert page.title() == "celery-locks"


def test_waited_for_locks_come_first_and_longest_wait_leads(desk: Context) -> None:
    """A lock that somebody waits for is what pages people; it must not be looked for."""
    for name in ("old", "waited", "longer"):
        desk.hold(name)
    desk.crowd.wait_for("longer")
    time.sleep(0.02)  # the store counts in milliseconds
    for _ in range(2):
        desk.crowd.wait_for("waited")
    page = desk.open()
    expect(page.locator("#rows .name")).to_have_text(["longer", "waited", "old"])
    expect(row(page, "waited").locator(".waiting")).to_have_text(re.compile(r"2 · \d+ s"))
    expect(page.locator("[data-state=waiting] b")).to_have_text("2")
    page.click("[data-state=waiting]")
    expect(page.locator("#rows tr")).to_have_count(2)


def test_list_says_what_is_usual_and_marks_what_is_not(desk: Context) -> None:
    """ "Held for 12 s" is alarming or nothing at all; the usual tells."""
    held_before(desk, "invoice:1", "shop.charge")
    desk.hold("invoice:2", holder=somebody("shop.charge"))
    page = desk.open()
    found = row(page, "invoice:2")
    expect(found.locator(".usually")).to_have_text("usually 1 s")
    expect(found.locator(".held")).to_have_class(re.compile("unusual"))
    expect(page.locator("thead")).to_contain_text("Lease")
    expect(page.locator("thead")).not_to_contain_text("Remaining")


def test_dead_workers_locks_stand_out(celery_desk: Context) -> None:
    """They looked like all the others until their bar passed its half."""
    celery_desk.crowd.leave("left", ttl=600, worker="dead@web-5")
    celery_desk.hold("plain", holder=somebody(worker=None))
    page = celery_desk.open()
    expect(row(page, "left")).to_have_class(re.compile("silent|gone"))
    expect(row(page, "left").locator(".badge")).to_have_text(re.compile("no answer|dead"))
    expect(row(page, "left").locator(".life")).to_have_attribute("title", re.compile("dead@web-5"))
    expect(page.locator("#asked")).to_have_text(re.compile(r"0 of 1 worker answered, \d+ s ago"))
    page.click("[data-state=suspect]")
    expect(page.locator("#rows .name")).to_have_text(["left"])
    expect(page.locator("[data-state=suspect] b")).to_have_text("1")


def test_task_id_is_searched_for(desk: Context) -> None:
    """The log line has a task's id; of a holder, of a waiter, or of a task that has no lock."""
    holder = somebody()
    desk.hold("invoice:1", holder=holder)
    desk.hold("invoice:2")
    page = desk.open()
    expect(page.locator("#rows tr")).to_have_count(2)
    page.fill("#q", str(holder.task_id))
    expect(page.locator("#rows .name")).to_have_text(["invoice:1"])
    page.fill("#q", "0000-nobody-has-this")
    page.click("text=Ask what became of the task")
    expect(page.locator("#empty .answer")).to_contain_text("0000-nobody-has-this")


def test_several_are_released_from_the_holders_shown(desk: Context) -> None:
    """By selection, with a reason; one that gets the lock meanwhile keeps it."""
    leases = {name: desk.hold(name) for name in ("job:1", "job:2", "job:3", "other")}
    page = desk.open("#q=job:*&sort=name&order=asc")
    expect(page.locator("#rows tr")).to_have_count(3)
    page.check("#pick-all")
    expect(page.locator("#bulk-text")).to_have_text("3 locks selected")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#bulk-text")).to_have_text("2 locks selected")
    page.click("#bulk-release")
    expect(page.locator("#act .targets li")).to_have_count(2)
    expect(page.locator("#act .targets")).to_contain_text("job:2")
    page.fill("#act [name=grace]", "0")
    page.check("#act [name=sure]")
    page.click("#act button.danger")
    assert page.locator("#act").is_visible(), "released without a reason"
    leases["job:3"].release()
    newcomer = desk.hold("job:3")
    page.fill("#act [name=reason]", "deploy")
    page.click("#act button.danger")
    expect(page.locator("#outcomes")).to_contain_text("Took 1 lock: job:2.")
    expect(page.locator("#outcomes")).to_contain_text("1 holder had released it already")
    expect(page.locator("#bulk")).to_be_hidden()
    assert not desk.locks.is_locked("job:2")
    assert [one.token for one in desk.locks.holders("job:3")] == [newcomer.token]
    assert desk.locks.is_locked("job:1")
    assert desk.locks.is_locked("other")
    [act] = admin.history(desk.locks, "job:2", limit=1, only_actions=True)
    assert act.why == "deploy"


def test_several_need_a_write_key(desk: Context) -> None:
    desk.hold("job:1")
    page = desk.open(key=READ)
    page.check("#rows input")
    page.click("#bulk-release")
    expect(page.locator("#outcomes")).to_contain_text("Your key may look, not act")
    expect(page.locator("#act")).to_be_hidden()


def test_completed_work_is_listed_and_reset_with_a_reason(desk: Context) -> None:
    """A payment that must be made again: the mark is found, reset, and the history says why."""
    for key in ("paid:7", HOSTILE[0]):
        idempotent(desk.locks, key=lambda key=key: key, ttl=600)(lambda: "done")()
    page = desk.open("#view=done")
    expect(page.locator("#done .work")).to_have_count(2)
    expect(page.locator("#done .work .name")).to_contain_text([spelled(HOSTILE[0]), "paid:7"])
    page.fill("#done input", "paid")
    page.keyboard.press("Enter")
    expect(page.locator("#done .work")).to_have_count(1)
    page.click("text=Reset …")
    page.click("#act button.danger")
    assert page.locator("#act").is_visible(), "reset without a reason"
    page.fill("#act [name=reason]", "the bank lost it")
    page.click("#act button.danger")
    expect(page.locator("#outcomes")).to_contain_text("The work for paid:7 may be done again.")
    expect(page.locator("#done .empty")).to_have_text("No key matches the filter.")
    page.click("nav >> text=History")
    expect(page.locator("#history .reset")).to_contain_text("let the work be done again")
    expect(page.locator("#history .reset .reason")).to_have_text("the bank lost it")


def test_time_axis_shows_holds_waits_and_acts(desk: Context) -> None:
    """Who had it when, and who waits since when, at one glance."""
    held_before(desk, "invoice:42", "shop.charge")
    desk.hold("invoice:42")
    desk.crowd.wait_for("invoice:42")
    admin.stop(desk.locks, "invoice:42", by="jonas", reason="deploy waits")
    page = desk.open("#lock=invoice:42", timezone_id="Asia/Kolkata")
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


def test_copy_as_text_is_for_the_ticket(desk: Context) -> None:
    """The lock, its holder, who waits and what was done, in UTC; also where copying is barred."""
    holder = somebody("shop.charge")
    desk.hold("invoice:42", holder=holder)
    desk.crowd.wait_for("invoice:42")
    page = desk.open("#lock=invoice:42", **CLIPBOARD)
    expect(page.locator("#why p").first).to_be_visible()
    page.click("#panel >> text=Copy as text")
    expect(page.locator("#outcomes")).to_contain_text("Copied.")
    text = page.evaluate("navigator.clipboard.readText()")
    for part in ("Lock invoice:42", str(holder.task_id), "1 waiter:", "UTC", "prefix page-"):
        assert part in text
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    wait_until(lambda: "HELD FOR" in page.evaluate("navigator.clipboard.readText()"), PATIENCE)
    barred = desk.open()
    barred.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    expect(barred.locator("#rows tr")).to_have_count(1)
    barred.click("#copy-list")
    expect(barred.locator("#copy textarea")).to_have_value(re.compile("invoice:42"))


def test_stale_says_what_is_being_asked(celery_desk: Context) -> None:
    """Seconds of "Reading …" look like a page that hangs."""
    page = celery_desk.open()
    held_up: list[Any] = []
    page.route("**/locks/stale*", lambda route: held_up.append(route))
    page.click("nav >> text=Stale")
    progress = page.locator("#stale .progress")
    expect(progress).to_contain_text("asking their workers over the broker")
    expect(progress).to_contain_text(re.compile(r"… [1-9]\d* s$"))
    held_up[0].continue_()
    expect(page.locator("#stale .empty")).to_have_text("Nothing looks stale.")


def test_phone_labels_its_times(desk: Context) -> None:
    """Two bare times on a card, and nobody knows which is which."""
    desk.hold("invoice:42")
    desk.crowd.wait_for("invoice:42")
    page = desk.open(**PHONE)
    card = row(page, "invoice:42")
    expect(card.locator(".left-label")).to_have_text("Lease")
    expect(card.locator(".left-label")).to_be_visible()
    assert _before(page, "td.held") == '"Held for "'
    assert _before(page, "td.waiting") == '"Waiting "'
    expect(page.locator("[data-state=suspect]")).to_be_in_viewport(ratio=1)
    assert no_sideways_scroll(page)
    page.check("#rows input")
    assert no_sideways_scroll(page)
    page.tap("#bulk-release")
    expect(page.locator("#act")).to_be_visible()
    assert no_sideways_scroll(page)


def _before(page: Page, selector: str) -> str:
    script = "node => getComputedStyle(node, '::before').content"
    found: str = page.locator(f"#rows {selector}").first.evaluate(script)
    return found


def test_arguments_are_shown_where_the_app_says_so(browser: Browser) -> None:
    """Of a real task on a real worker; the dot says that it is alive."""
    with fresh_rig(locks_ttl=30) as rig, rig.worker("-n", "one@%h"):
        rig.wait_started(rig.task("work").delay("invoice-42", "gate"))
        site = app_on(rig.server.url, locks_show_arguments=True)
        with desk_over(browser, rig.server.url, site, prefix=rig.locks.commands.prefix) as desk:
            page = desk.open("#lock=invoice-42")
            expect(page.locator(".called")).to_contain_text("('invoice-42', 'gate')")
            expect(page.locator(".verdict.running")).to_contain_text(re.compile(r"Asked \d+ s ago"))
            expect(row(page, "invoice-42").locator(".life.running")).to_be_attached()
            expect(page.locator("#asked")).to_contain_text("1 of 1 worker answered")
        rig.open("gate")
