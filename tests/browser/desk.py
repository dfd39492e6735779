"""Everything one test needs: locks that are held and waited for, the site over them, the page."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from celery_locks import Locks
from celery_locks.core.lease import Lease
from celery_locks.types import Holder, LockSpec
from celery_locks.web import create_app
from tests.support.waiting import wait_until

PATIENCE = 30.0
READ, WRITE = "look-key", "act-key"
WORKER = "billing@web-3"
_numbers = itertools.count(1)

expect.set_options(timeout=PATIENCE * 1000)


def with_keys(source: Any) -> Any:
    return create_app(source, read_keys=[READ], write_keys=[WRITE], requests_per_minute=1_000_000)


class Site:
    """The web surface on a port of its own, which it keeps when it goes away and comes back."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._socket = _listening(0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._start()

    def _start(self) -> None:
        config = uvicorn.Config(
            self._app, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        wait_until(lambda: self._server.started, PATIENCE, what="the site to start")

    def go_away(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._socket.close()

    def come_back(self) -> None:
        self._socket = _listening(self.port)
        self._start()


def _listening(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


class Crowd:
    """Holds locks, and waits for them in threads, until the test is over."""

    def __init__(self, locks: Locks) -> None:
        self.locks = locks
        self._leases: list[Lease] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def hold(self, name: str, task: str = "shop.tasks.charge", **asked: Any) -> Lease:
        lease = self.locks.acquire(name, **{"holder": somebody(task), **asked})
        assert lease, f"{name!r} is held already"
        self._leases.append(lease)
        return lease

    def leave(self, name: str, ttl: float = 600.0, **said: Any) -> None:
        """Held by somebody who will never renew it."""
        holder = somebody(**said)
        self.locks.perform(self.locks.commands.acquire(LockSpec(name, ttl), holder.task_id, holder))

    def wait_for(self, name: str, task: str = "shop.tasks.charge") -> None:
        before = len(_waiters(self.locks, name))
        thread = threading.Thread(target=self._wait, args=(name, task))
        thread.start()
        self._threads.append(thread)
        wait_until(
            lambda: len(_waiters(self.locks, name)) > before, PATIENCE, what="the waiter in line"
        )

    def _wait(self, name: str, task: str) -> None:
        lease = self.locks.acquire(name, wait=10 * PATIENCE, holder=somebody(task))
        self._over.wait(10 * PATIENCE)
        if lease:
            lease.release()

    def disperse(self) -> None:
        self._over.set()
        for lease in self._leases:
            lease.release()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.locks.close()


def somebody(task: str = "shop.tasks.charge", **said: Any) -> Holder:
    number = next(_numbers)
    usual = {
        "task_id": f"{number:08d}-0000-4000-8000-00000000beef",
        "worker": WORKER,
        "host": "web-3",
        "pid": 4000 + number,
    }
    return Holder(task=task, **usual | said)


def _waiters(locks: Locks, name: str) -> tuple[Holder, ...]:
    info = locks.info(name)
    return info.waiters if info else ()


class Context:
    """The page as somebody on call has it open; whatever the browser complains of is kept."""

    def __init__(self, browser: Browser, crowd: Crowd, site: Site) -> None:
        self.crowd = crowd
        self.site = site
        self.locks = crowd.locks
        self.hold = crowd.hold
        self.complaints: list[str] = []
        self._browser = browser
        self._contexts: list[Any] = []
        self._expected = re.compile(r"\Z.")

    def open(self, hash: str = "", key: str | None = WRITE, **options: Any) -> Page:
        """A new window, signed in with this key."""
        context = self._browser.new_context(**{"reduced_motion": "no-preference", **options})
        context.set_default_timeout(PATIENCE * 1000)
        self._contexts.append(context)
        if key:
            context.add_init_script(
                f"sessionStorage.getItem('seen') || (sessionStorage.setItem('seen', 1), "
                f"sessionStorage.setItem('celery-locks.key ' + location.pathname, '{key}'))"
            )
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)
        page.goto(self.site.url + hash)
        return page

    def expect_complaints(self, pattern: str) -> None:
        """Chromium itself reports every answer that is an error."""
        self._expected = re.compile(pattern)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog was opened: {dialog.message}")
        dialog.dismiss()

    def close_windows(self) -> None:
        for context in self._contexts:
            context.close()

    def check_complaints(self) -> None:
        unexpected = [one for one in self.complaints if not self._expected.search(one)]
        assert not unexpected, unexpected


@contextmanager
def desk_over(
    browser: Browser, url: str, app_of: Callable[[Locks], Any], prefix: str = ""
) -> Iterator[Context]:
    """``app_of`` makes the ASGI app for some locks."""
    crowd = Crowd(Locks.from_url(url, prefix=prefix or f"page-{next(_numbers)}"))
    app = app_of(crowd.locks)
    desk = Context(browser, crowd, Site(app))
    try:
        yield desk
    finally:
        # In this order: a page that is still open would see the locks go.
        desk.close_windows()
        crowd.disperse()
        desk.site.go_away()
        _close(app)
    desk.check_complaints()


def _close(app: Any) -> None:
    """A site that knows a Celery app has locks of its own, and the app its connections."""
    site = getattr(app.state, "site", None)
    if site and site.app is not None:
        site.locks.close()
        site.app.close()


def row(page: Page, name: str) -> Any:
    """The row of a lock, by the text that is seen."""
    return page.locator("#rows tr").filter(has=page.locator(".name", has_text=name))


def no_sideways_scroll(page: Page) -> bool:
    """Neither the page nor what scrolls in it is wider than the window."""
    return bool(page.evaluate(_FITS))


_PARTS = "html, .panel, .panel h2, dialog, .lock-name, .targets"
_FITS = f"""() => [...document.querySelectorAll("{_PARTS}")]
  .every((node) => node.scrollWidth <= node.clientWidth)"""
