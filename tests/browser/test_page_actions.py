"""Actions: signing in, the details of a lock, releasing it, and what must be impossible."""

from __future__ import annotations

import time

from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from celery_locks import Locks, admin
from celery_locks.web import create_app
from tests.browser.harness import (
    PATIENCE,
    READ,
    WORKER,
    WRITE,
    Harness,
    new_holder,
    no_sideways_scroll,
    open_harness,
    row,
)
from tests.servers.embedded import EmbeddedServer
from tests.support.parked import park
from tests.support.waiting import wait_until

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "\"><script>alert('2')</script>",
    "line one\nline two",
    "invoice:\u202e24\u202c",
    "a b/../c?d=e&f#g%00+ü☃\x00\x1b[31m",
]


def escaped(text: str) -> str:
    """Return the text as the page should show it."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def release(page: Page, reason: str, grace: int = 0) -> None:
    """Fill in the dialog that is open and send it."""
    page.fill("#action [name=reason]", reason)
    page.fill("#action [name=grace]", str(grace))
    page.fill("#action [name=by]", "mira")
    page.check("#action [name=confirmed]")
    page.click("#action button.danger")


def test_sign_in_needs_a_valid_key(harness: Harness) -> None:
    """Nobody sees a lock without a key; a wrong key is refused with a sentence."""
    harness.expect_errors("status of 401")
    harness.hold("invoice:42")
    page = harness.open(key=None)
    expect(page.locator("#key")).to_be_focused()
    assert "invoice:42" not in page.content()
    page.fill("#key", "a wrong one €")
    page.keyboard.press("Enter")
    expect(page.locator("#sign-in-error")).to_contain_text("credential")
    page.fill("#key", WRITE)
    page.keyboard.press("Enter")
    expect(row(page, "invoice:42")).to_be_visible()
    assert WRITE not in page.content()
    assert WRITE not in page.evaluate("JSON.stringify(localStorage) + location + document.cookie")
    page.reload()
    expect(row(page, "invoice:42")).to_be_visible()
    page.click("text=Sign out")
    expect(page.locator("#key")).to_be_focused()
    assert "invoice:42" not in page.content()
    page.reload()
    expect(page.locator("#key")).to_be_visible()


def test_detail_shows_everything_about_a_lock(harness: Harness) -> None:
    """The holder, whether it is alive, the waiters and the history, in one panel."""
    with harness.locks.hold("invoice:42", holder=new_holder("shop.billing.tasks.charge")):
        time.sleep(1.1)  # shorter holds are not recorded
    holder = new_holder("shop.billing.tasks.charge", retries=2)
    lease = harness.hold("invoice:42", holder=holder, ttl=30)
    for task in ("shop.first", "shop.second"):
        harness.holders.wait_for("invoice:42", task)
    admin.stop(harness.locks, "invoice:42", by="jonas", reason="deploy waits")
    page = harness.open()
    row(page, "invoice:42").click()
    panel = page.locator("#panel")
    card = panel.locator(".holder-card")
    for text in (holder.task_id, WORKER, f"pid {holder.pid}", str(lease.fence), lease.token):
        expect(card).to_contain_text(str(text))
    expect(card.locator(".verdict")).to_contain_text("Its renewal is not overdue")
    expect(panel.locator("#summary")).to_contain_text("Held, 2 waiters.")
    expect(panel.locator("#summary")).to_contain_text("Usually held for 1 s (from 1 past hold)")
    expect(panel.locator(".chart .hold")).to_have_count(1)
    expect(panel.locator(".chart .present")).to_have_count(1)
    expect(panel.locator(".chart .usual-text")).to_have_text("usual 1 s")
    expect(panel.locator(".timeline .held")).to_contain_text("released it after 1 s")
    expect(panel.locator(".line li")).to_contain_text(["first", "second"])
    expect(panel.locator("#why")).to_contain_text("Lock 'invoice:42' is held by task")
    expect(panel.locator(".timeline .stop")).to_contain_text("jonas asked task shop.billing")
    expect(panel.locator(".timeline .reason")).to_have_text("deploy waits")
    lease.release()
    expect(card.locator("h3")).to_have_text("shop.first")
    expect(panel.locator("#summary")).to_contain_text("Held, 1 waiter.")


def test_release_takes_the_lock_and_records_why(harness: Harness) -> None:
    """Operators open the page for this; a reason is required."""
    harness.expect_errors("status of 404")
    lease = harness.hold("invoice:42", ttl=3)
    page = harness.open()
    row(page, "invoice:42").click()
    page.click("text=Release …")
    expect(page.locator("#action .holder-choice")).to_contain_text(f"on {WORKER}, pid")
    # A ttl of 3 s: one second until the holder is asked, and five to stop.
    expect(page.locator("#action [name=grace]")).to_have_value("6")
    page.check("#action [name=confirmed]")
    page.fill("#action [name=grace]", "0")
    page.click("#action button.danger")
    assert page.locator("#action").is_visible(), "released without a reason"
    assert harness.locks.is_locked("invoice:42")
    release(page, "the <b>disk</b> is full")
    expect(page.locator("#outcomes")).to_contain_text("Took lock invoice:42 from task shop.tasks")
    expect(row(page, "invoice:42")).to_have_count(0)
    expect(page.locator("#summary")).to_contain_text("Free")
    expect(page.locator(".timeline .force_release .reason")).to_have_text("the <b>disk</b> is full")
    assert not harness.locks.is_locked("invoice:42")
    [entry] = admin.history(harness.locks, "invoice:42", limit=1)
    assert (entry.act, entry.why) == ("force_release", "the <b>disk</b> is full")
    assert "mira" in entry.by
    assert [holder.token for holder in entry.holders] == [lease.token]
    wait_until(lambda: lease.state == "lost", PATIENCE, what="the holder to learn of it")
    page.click("nav >> text=History")
    expect(page.locator("#history .timeline")).to_contain_text("took it from task shop.tasks")


def test_release_with_grace_lets_the_holder_stop_on_its_own(harness: Harness) -> None:
    """A holder that handles the stop request releases the lock itself; the page says so."""
    harness.expect_errors("status of 404")
    lease = harness.hold("invoice:42", ttl=1.5, on_stop=lambda lease, _: lease.release())
    page = harness.open("#lock=invoice:42")
    page.click("text=Release …")
    release(page, "deploy", grace=30)
    expect(page.locator("#outcomes")).to_contain_text("The holder released invoice:42 on its own")
    assert lease.stop_requested


def test_stop_asks_the_holder(harness: Harness) -> None:
    """A stop request does not take the lock."""
    lease = harness.hold("invoice:42", ttl=3)
    page = harness.open("#lock=invoice:42")
    page.click("text=Ask to stop")
    page.click("#action button.primary")
    expect(page.locator("#outcomes")).to_contain_text("Asked task shop.tasks.charge")
    wait_until(lambda: lease.stop_requested, PATIENCE, what="the stop request to arrive")
    assert harness.locks.is_locked("invoice:42")


def test_release_never_takes_the_lock_from_a_later_holder(harness: Harness) -> None:
    """The holder changed while the user typed the reason: the new holder keeps the lock."""
    harness.expect_errors("status of 404")
    first = harness.hold("invoice:42")
    page = harness.open("#lock=invoice:42")
    page.click("text=Release …")
    expect(page.locator("#action")).to_be_visible()
    first.release()
    second = harness.hold("invoice:42")
    release(page, "stuck")
    expect(page.locator("#action .error-text")).to_contain_text(
        "Nobody holds lock 'invoice:42' with"
    )
    assert [holder.token for holder in harness.locks.holders("invoice:42")] == [second.token]


def test_one_of_several_holders_is_chosen(harness: Harness) -> None:
    """A lock with several slots loses only the chosen holder."""
    leases = [harness.hold("pool", limit=3) for _ in range(3)]
    page = harness.open("#lock=pool")
    expect(page.locator(".holder-card")).to_have_count(3)
    page.keyboard.press("r")
    page.check(f"#action [value='{leases[1].token}']")
    release(page, "this one hangs")
    expect(page.locator(".holder-card")).to_have_count(2)
    left = {holder.token for holder in harness.locks.holders("pool")}
    assert left == {leases[0].token, leases[2].token}


def test_read_key_cannot_change_anything(harness: Harness) -> None:
    """The buttons are disabled, and the server refuses too."""
    harness.expect_errors("status of 403")
    harness.hold("invoice:42")
    page = harness.open("#lock=invoice:42", key=READ)
    expect(page.locator("#role")).to_have_text("read only")
    expect(page.locator(".holder-card button")).to_have_count(2)
    for button in page.locator(".holder-card button").all():
        expect(button).to_be_disabled()
    expect(page.locator(".holder-card")).to_contain_text("Your key is read-only")
    page.keyboard.press("r")
    expect(page.locator("#outcomes")).to_contain_text("Your key is read-only")
    expect(page.locator("#action")).to_be_hidden()
    assert page.evaluate(_FORGED, READ) == 403
    assert harness.locks.is_locked("invoice:42")


_FORGED = """async (key) => {
  const headers = {"X-API-Key": key, "X-Celery-Locks": "1", "Content-Type": "application/json"};
  const body = JSON.stringify({name: "invoice:42", reason: "forged"});
  return (await fetch("api/v1/locks/release", {method: "POST", headers, body})).status;
}"""


def test_hostile_names_are_shown_as_text_and_can_be_released(harness: Harness) -> None:
    """Lock names come from task arguments: they are text, never markup."""
    harness.expect_errors("status of 404")
    for name in HOSTILE:
        evil = new_holder(name, worker=name, task_id=name)
        harness.hold(name, holder=evil)
    page = harness.open()
    expect(page.locator("#rows tr")).to_have_count(len(HOSTILE))
    assert sorted(page.locator("#rows .name").all_inner_texts()) == sorted(map(escaped, HOSTILE))
    for name in HOSTILE:
        row(page, escaped(name)).locator("a").click()
        expect(page.locator("#panel h2")).to_have_text(escaped(name))
        expect(page.locator("#panel #why p").first).to_be_visible()
        page.click("text=Release …")
        expect(page.locator("#action .lock-name")).to_have_text(escaped(name))
        release(page, f"because {name}"[:400].replace("\x00", ""))
        expect(page.locator("#outcomes p").last).to_contain_text(f"Took lock {escaped(name)} from")
        wait_until(lambda name=name: not harness.locks.is_locked(name), PATIENCE)
        # The rows below move up when this one goes: a click before that would miss its row.
        expect(row(page, escaped(name))).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#empty")).to_be_visible()
    page.click("nav >> text=History")
    expect(page.locator("#history .timeline li")).to_have_count(len(HOSTILE))
    assert page.locator("main img, main script, dialog script").count() == 0


def test_page_works_where_it_is_mounted(browser: Browser, valkey: EmbeddedServer) -> None:
    """Mounted below a path, without keys: a change must still prove that it comes from our page."""

    def mounted(locks: Locks) -> Starlette:
        return Starlette(routes=[Mount("/ops/locks", create_app(locks, open_to_all=True))])

    with open_harness(browser, valkey.url, mounted) as harness:
        harness.expect_errors("status of 404")
        harness.hold("invoice:42")
        page = harness.open("ops/locks#lock=invoice:42", key=None)
        assert page.url.endswith("/ops/locks/#lock=invoice:42")
        expect(page.locator("#sign-out")).to_be_hidden()
        page.click("text=Release …")
        release(page, "stuck")
        expect(page.locator("#outcomes")).to_contain_text("Took lock invoice:42")
        expect(page.locator("#empty")).to_be_visible()


def test_keyboard_alone_releases_a_lock(harness: Harness) -> None:
    """From the filter to the outcome, no mouse is needed."""
    harness.hold("invoice:41")
    harness.hold("invoice:42")
    page = harness.open()
    expect(page.locator("#rows tr")).to_have_count(2)
    press = page.keyboard.press
    press("/")
    page.keyboard.type("42")
    expect(page.locator("#rows tr")).to_have_count(1)
    press("Enter")
    expect(row(page, "42").locator("a")).to_be_focused()
    press("r")
    expect(page.locator("#action [name=reason]")).to_be_focused()
    page.keyboard.type("stuck since midnight")
    press("Tab")
    page.keyboard.type("0")
    press("Tab")
    press("Tab")
    press("Space")
    press("Enter")
    expect(page.locator("#outcomes")).to_contain_text("Took lock invoice:42")
    assert harness.locks.is_locked("invoice:41")
    assert not harness.locks.is_locked("invoice:42")


def test_pause_and_resume_in_the_panel(harness: Harness) -> None:
    """A paused lock says so in the list and in the panel, which resumes it."""
    harness.hold("invoice:42")
    page = harness.open()
    row(page, "invoice:42").click()
    page.click("#overrides button:has-text('Pause')")
    page.fill("#action [name=reason]", "bad <data>")
    page.fill("#action [name=by]", "mira")
    page.click("#action button.primary")
    expect(page.locator("#overrides")).to_contain_text("bad <data>")
    expect(row(page, "invoice:42").locator(".badge.warning")).to_have_text("paused")
    info = harness.locks.info("invoice:42")
    assert info
    assert info.pause
    page.click("#overrides button:has-text('Set limit')")
    page.fill("#action [name=reason]", "more")
    page.fill("#action [name=limit]", "4")
    page.click("#action button.primary")
    expect(page.locator("#overrides")).to_contain_text("Limited to 4")
    page.click("#overrides button:has-text('Resume')")
    page.click("#action button.primary")
    expect(page.locator("#overrides")).not_to_contain_text("Paused")
    page.click("#overrides button:has-text('Reset limit')")
    page.click("#action button.primary")
    expect(page.locator("#overrides")).not_to_contain_text("Limited")
    actions = [e.act for e in admin.history(harness.locks, "invoice:42", only_actions=True)]
    assert actions == ["limit_reset", "resume", "limit", "pause"]


def test_parked_messages_are_shown_and_dropped(harness: Harness) -> None:
    """The queue with position, task and id; one is dropped with a reason, then all."""
    harness.hold("invoice:42")
    ids = ["<b>one</b>", "two", "three"]
    for task_id in ids:
        park(harness.locks, "invoice:42", task_id, task="shop.tasks.charge")
    page = harness.open()
    expect(row(page, "invoice:42").locator(".badge", has_text="parked")).to_be_visible()
    page.click("[data-state=parked]")
    row(page, "invoice:42").click()
    expect(page.locator("#summary")).to_contain_text("3 waiters (3 parked)")
    items = page.locator("#waiters ol li")
    expect(items).to_have_count(3)
    expect(items.nth(0)).to_contain_text("<b>one</b>")
    expect(items.nth(1)).to_contain_text("parked for")
    items.nth(0).locator("button.drop").click()
    page.fill("#action [name=by]", "mira")
    page.fill("#action [name=reason]", "wrong <day>")
    page.click("#action button.danger")
    expect(page.locator("#outcomes")).to_contain_text("Dropped 1 parked message of invoice:42")
    expect(items).to_have_count(2)
    expect(page.locator("#past")).to_contain_text("removed 1 parked message: ")
    expect(page.locator("#past")).to_contain_text("wrong <day>")
    page.click("#waiters button:has-text('Drop all')")
    page.fill("#action [name=reason]", "all")
    page.click("#action button.danger")
    expect(page.locator("#waiters button")).to_have_count(0)
    entries = admin.history(harness.locks, "invoice:42", only_actions=True)
    assert [(entry.act, entry.count) for entry in entries] == [("purge", 2), ("purge", 1)]
    assert "mira" in entries[-1].by


def test_parked_messages_cannot_be_dropped_with_a_read_key(harness: Harness) -> None:
    harness.hold("invoice:42")
    park(harness.locks, "invoice:42", "one")
    page = harness.open(key=READ)
    row(page, "invoice:42").click()
    expect(page.locator("#waiters button.drop").first).to_be_disabled()


def test_rates_are_listed_paused_and_set(harness: Harness) -> None:
    """A rate says who paused it; one that delays nobody is found by its name."""
    harness.locks.throttle("api:acme", "2/h")
    harness.locks.push_back("api:busy", 600)
    harness.expect_errors("status of 400")
    page = harness.open("#view=rates")
    expect(page.locator("#rates .rate .name")).to_have_text(["api:busy"])
    expect(page.locator("#rates .rate")).to_contain_text("pushed back for ")
    page.fill("#rates input", "api:acme")
    page.keyboard.press("Enter")
    expect(page.locator("#rates .rate")).to_contain_text("2/h")
    page.click("#rates button:has-text('Pause')")
    page.click("#action button.primary")
    assert page.locator("#action").is_visible(), "paused without a reason"
    page.fill("#action [name=reason]", "bad <data>")
    page.fill("#action [name=by]", "mira")
    page.fill("#action [name=minutes]", "60")
    page.click("#action button.primary")
    expect(page.locator("#outcomes")).to_contain_text("Paused the rate api:acme: 0 delayed.")
    expect(page.locator("#rates .rate .warn")).to_contain_text(": bad <data>")
    expect(page.locator("#rates .rate .badge")).to_have_text(["paused"])
    info = admin.rate_info(harness.locks, "api:acme")
    assert info
    assert info.pause
    assert info.pause.until
    page.click("#rates button:has-text('Set rate')")
    assert page.input_value("#action [name=rate]") == "2/h"
    page.fill("#action [name=rate]", "fast")
    page.fill("#action [name=reason]", "slower")
    page.click("#action button.primary")
    expect(page.locator("#action .error-text")).to_contain_text("must be a number")
    page.fill("#action [name=rate]", "1/h 5/d")
    page.click("#action button.primary")
    expect(page.locator("#rates .rate")).to_contain_text("Limited to 1/h and 5/d")
    page.click("#rates button:has-text('Resume')")
    page.click("#action button.primary")
    expect(page.locator("#rates .rate")).not_to_contain_text("Paused")
    page.click("#rates button:has-text('Reset rate')")
    page.click("#action button.primary")
    expect(page.locator("#rates .rate")).not_to_contain_text("Limited")
    page.click("nav >> text=History")
    expect(page.locator("#history .rate_pause")).to_contain_text("paused the rate until")
    expect(page.locator("#history .rate")).to_contain_text("set the rate to 1/h and 5/d")
    expect(page.locator("#history .rate_resume")).to_contain_text("resumed the rate")
    expect(page.locator("#history .rate_reset")).to_contain_text("reset the rate")


def test_rates_need_a_write_key_to_be_changed(harness: Harness) -> None:
    """Also on the narrowest phone, where all tabs are in view."""
    harness.locks.push_back("api", 600)
    page = harness.open("#view=rates", key=READ, viewport={"width": 320, "height": 640})
    expect(page.locator("#rates .rate button").first).to_be_disabled()
    assert no_sideways_scroll(page)
