"""Acting: signing in, a lock in full, taking it with a reason, and what must not be possible."""

from __future__ import annotations

import time

from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from celery_locks import Locks, admin
from celery_locks.web import create_app
from tests.browser.desk import PATIENCE, READ, WORKER, WRITE, Context, desk_over, row, somebody
from tests.servers.embedded import EmbeddedServer
from tests.support.waiting import wait_until

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "\"><script>alert('2')</script>",
    "line one\nline two",
    "invoice:\u202e24\u202c",
    "a b/../c?d=e&f#g%00+ü☃\x00\x1b[31m",
]


def spelled(text: str) -> str:
    """As the page should show it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def release(page: Page, reason: str, grace: int = 0) -> None:
    """Fill in the dialog that is open and send it."""
    page.fill("#act [name=reason]", reason)
    page.fill("#act [name=grace]", str(grace))
    page.fill("#act [name=by]", "mira")
    page.check("#act [name=sure]")
    page.click("#act button.danger")


def test_key_is_asked_for_and_judged(desk: Context) -> None:
    """Nobody sees a lock without a key, and a wrong one is refused in a sentence."""
    desk.expect_complaints("status of 401")
    desk.hold("invoice:42")
    page = desk.open(key=None)
    expect(page.locator("#key")).to_be_focused()
    assert "invoice:42" not in page.content()
    page.fill("#key", "a wrong one €")
    page.keyboard.press("Enter")
    expect(page.locator("#refusal")).to_contain_text("credential")
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


def test_detail_tells_everything_about_a_lock(desk: Context) -> None:
    """Who, where, since when, whether it lives, who is next, and what was before."""
    with desk.locks.hold("invoice:42", holder=somebody("shop.billing.tasks.charge")):
        time.sleep(1.1)  # shorter holds are not recorded
    holder = somebody("shop.billing.tasks.charge", retries=2)
    lease = desk.hold("invoice:42", holder=holder, ttl=30)
    for task in ("shop.first", "shop.second"):
        desk.crowd.wait_for("invoice:42", task)
    admin.stop(desk.locks, "invoice:42", by="jonas", reason="deploy waits")
    page = desk.open()
    row(page, "invoice:42").click()
    panel = page.locator("#panel")
    card = panel.locator(".holder-card")
    for text in (holder.task_id, WORKER, f"pid {holder.pid}", str(lease.fence), lease.token):
        expect(card).to_contain_text(str(text))
    expect(card.locator(".verdict")).to_contain_text("Its renewal is not overdue")
    expect(panel.locator("#summary")).to_contain_text("Held, 2 wait for it.")
    expect(panel.locator("#summary")).to_contain_text("usually takes 1 s (1 past hold)")
    expect(panel.locator(".chart .hold")).to_have_count(1)
    expect(panel.locator(".chart .present")).to_have_count(1)
    expect(panel.locator(".chart .usual-text")).to_have_text("usual 1 s")
    expect(panel.locator(".timeline .held")).to_contain_text("gave it back after 1 s")
    expect(panel.locator(".line li")).to_contain_text(["first", "second"])
    expect(panel.locator("#why")).to_contain_text("Lock 'invoice:42' is held by task")
    expect(panel.locator(".timeline .stop")).to_contain_text("jonas asked task shop.billing")
    expect(panel.locator(".timeline .reason")).to_have_text("deploy waits")
    lease.release()
    expect(card.locator("h3")).to_have_text("shop.first")
    expect(panel.locator("#summary")).to_contain_text("Held, 1 waits for it.")


def test_release_takes_the_lock_and_records_why(desk: Context) -> None:
    """The one thing the page is opened for; nothing goes without a reason."""
    desk.expect_complaints("status of 404")
    lease = desk.hold("invoice:42", ttl=3)
    page = desk.open()
    row(page, "invoice:42").click()
    page.click("text=Release …")
    expect(page.locator("#act .whom")).to_contain_text(f"on {WORKER}, pid")
    # A ttl of 3 s: a second until the holder learns of it, and five to end.
    expect(page.locator("#act [name=grace]")).to_have_value("6")
    page.check("#act [name=sure]")
    page.fill("#act [name=grace]", "0")
    page.click("#act button.danger")
    assert page.locator("#act").is_visible(), "released without a reason"
    assert desk.locks.is_locked("invoice:42")
    release(page, "the <b>disk</b> is full")
    expect(page.locator("#outcomes")).to_contain_text("Took lock invoice:42 from task shop.tasks")
    expect(row(page, "invoice:42")).to_have_count(0)
    expect(page.locator("#summary")).to_contain_text("Free")
    expect(page.locator(".timeline .force_release .reason")).to_have_text("the <b>disk</b> is full")
    assert not desk.locks.is_locked("invoice:42")
    [act] = admin.history(desk.locks, "invoice:42", limit=1)
    assert (act.act, act.why) == ("force_release", "the <b>disk</b> is full")
    assert "mira" in act.by
    assert [holder.token for holder in act.holders] == [lease.token]
    wait_until(lambda: lease.state == "lost", PATIENCE, what="the holder to learn of it")
    page.click("nav >> text=History")
    expect(page.locator("#history .timeline")).to_contain_text("took it from task shop.tasks")


def test_release_after_a_grace_lets_the_holder_end_by_itself(desk: Context) -> None:
    """A holder that listens gives it back in good order, and the page says so."""
    desk.expect_complaints("status of 404")
    lease = desk.hold("invoice:42", ttl=1.5, on_stop=lambda lease, _: lease.release())
    page = desk.open("#lock=invoice:42")
    page.click("text=Release …")
    release(page, "deploy", grace=30)
    expect(page.locator("#outcomes")).to_contain_text("The holder of invoice:42 gave it back")
    assert lease.stop_requested


def test_stop_asks_the_holder(desk: Context) -> None:
    """Asking is not taking: the lock stays where it is."""
    lease = desk.hold("invoice:42", ttl=3)
    page = desk.open("#lock=invoice:42")
    page.click("text=Ask to stop")
    page.click("#act button.primary")
    expect(page.locator("#outcomes")).to_contain_text("Asked task shop.tasks.charge")
    wait_until(lambda: lease.stop_requested, PATIENCE, what="the holder to hear of it")
    assert desk.locks.is_locked("invoice:42")


def test_release_never_takes_it_from_somebody_else(desk: Context) -> None:
    """While the reason was written the lock changed hands: the new holder keeps it."""
    desk.expect_complaints("status of 404")
    first = desk.hold("invoice:42")
    page = desk.open("#lock=invoice:42")
    page.click("text=Release …")
    expect(page.locator("#act")).to_be_visible()
    first.release()
    second = desk.hold("invoice:42")
    release(page, "stuck")
    expect(page.locator("#act .refusal")).to_contain_text("Nobody holds lock 'invoice:42' with")
    assert [one.token for one in desk.locks.holders("invoice:42")] == [second.token]


def test_one_of_several_holders_is_chosen(desk: Context) -> None:
    """A lock with slots loses the holder that is meant, and no other."""
    leases = [desk.hold("pool", limit=3) for _ in range(3)]
    page = desk.open("#lock=pool")
    expect(page.locator(".holder-card")).to_have_count(3)
    page.keyboard.press("r")
    page.check(f"#act [value='{leases[1].token}']")
    release(page, "this one hangs")
    expect(page.locator(".holder-card")).to_have_count(2)
    left = {one.token for one in desk.locks.holders("pool")}
    assert left == {leases[0].token, leases[2].token}


def test_read_key_can_look_and_not_touch(desk: Context) -> None:
    """It is not only hidden: the server refuses, too."""
    desk.expect_complaints("status of 403")
    desk.hold("invoice:42")
    page = desk.open("#lock=invoice:42", key=READ)
    expect(page.locator("#role")).to_have_text("read only")
    expect(page.locator(".holder-card button")).to_have_count(2)
    for button in page.locator(".holder-card button").all():
        expect(button).to_be_disabled()
    expect(page.locator(".holder-card")).to_contain_text("Your key may look, not act")
    page.keyboard.press("r")
    expect(page.locator("#outcomes")).to_contain_text("Your key may look, not act")
    expect(page.locator("#act")).to_be_hidden()
    assert page.evaluate(_FORGED, READ) == 403
    assert desk.locks.is_locked("invoice:42")


_FORGED = """async (key) => {
  const headers = {"X-API-Key": key, "X-Celery-Locks": "1", "Content-Type": "application/json"};
  const body = JSON.stringify({name: "invoice:42", reason: "forged"});
  return (await fetch("api/v1/locks/release", {method: "POST", headers, body})).status;
}"""


def test_hostile_names_are_text_and_can_be_released(desk: Context) -> None:
    """Whatever a task's argument brings into a name, it is only ever shown."""
    desk.expect_complaints("status of 404")
    for name in HOSTILE:
        evil = somebody(name, worker=name, task_id=name)
        desk.hold(name, holder=evil)
    page = desk.open()
    expect(page.locator("#rows tr")).to_have_count(len(HOSTILE))
    assert sorted(page.locator("#rows .name").all_inner_texts()) == sorted(map(spelled, HOSTILE))
    for name in HOSTILE:
        row(page, spelled(name)).locator("a").click()
        expect(page.locator("#panel h2")).to_have_text(spelled(name))
        expect(page.locator("#panel #why p").first).to_be_visible()
        page.click("text=Release …")
        expect(page.locator("#act .lock-name")).to_have_text(spelled(name))
        release(page, f"because {name}"[:400].replace("\x00", ""))
        expect(page.locator("#outcomes p").last).to_contain_text(f"Took lock {spelled(name)} from")
        wait_until(lambda name=name: not desk.locks.is_locked(name), PATIENCE)
        # The rows below move up when it goes: whoever clicks before that clicks beside it.
        expect(row(page, spelled(name))).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#empty")).to_be_visible()
    page.click("nav >> text=History")
    expect(page.locator("#history .timeline li")).to_have_count(len(HOSTILE))
    assert page.locator("main img, main script, dialog script").count() == 0


def test_page_works_where_it_is_mounted(browser: Browser, valkey: EmbeddedServer) -> None:
    """Below a path of another app, open to all: no key, and a change is still known as ours."""

    def mounted(locks: Locks) -> Starlette:
        return Starlette(routes=[Mount("/ops/locks", create_app(locks, open_to_all=True))])

    with desk_over(browser, valkey.url, mounted) as desk:
        desk.expect_complaints("status of 404")
        desk.hold("invoice:42")
        page = desk.open("ops/locks#lock=invoice:42", key=None)
        assert page.url.endswith("/ops/locks/#lock=invoice:42")
        expect(page.locator("#sign-out")).to_be_hidden()
        page.click("text=Release …")
        release(page, "stuck")
        expect(page.locator("#outcomes")).to_contain_text("Took lock invoice:42")
        expect(page.locator("#empty")).to_be_visible()


def test_keyboard_alone_releases_a_lock(desk: Context) -> None:
    """From the filter to the outcome without a mouse."""
    desk.hold("invoice:41")
    desk.hold("invoice:42")
    page = desk.open()
    expect(page.locator("#rows tr")).to_have_count(2)
    press = page.keyboard.press
    press("/")
    page.keyboard.type("42")
    expect(page.locator("#rows tr")).to_have_count(1)
    press("Enter")
    expect(row(page, "42").locator("a")).to_be_focused()
    press("r")
    expect(page.locator("#act [name=reason]")).to_be_focused()
    page.keyboard.type("stuck since midnight")
    press("Tab")
    page.keyboard.type("0")
    press("Tab")
    press("Tab")
    press("Space")
    press("Enter")
    expect(page.locator("#outcomes")).to_contain_text("Took lock invoice:42")
    assert desk.locks.is_locked("invoice:41")
    assert not desk.locks.is_locked("invoice:42")
