"""What each test needs: locks that are held and waited for, the web server, and the page."""

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
READ, WRITE = "read-key", "write-key"
WORKER = "billing@web-3"
_numbers = itertools.count(1)

expect.set_options(timeout=PATIENCE * 1000)


def with_keys(source: Any) -> Any:
    return create_app(source, read_keys=[READ], write_keys=[WRITE], requests_per_minute=1_000_000)


class WebServer:
    """The web app on its own port; it keeps the port when it is stopped and started again."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._socket = _listen(0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._run()

    def _run(self) -> None:
        config = uvicorn.Config(
            self._app, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        wait_until(lambda: self._server.started, PATIENCE, what="the web server to start")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._socket.close()

    def start(self) -> None:
        self._socket = _listen(self.port)
        self._run()


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


class Holders:
    """Hold locks, and wait for them in threads, until the test is over."""

    def __init__(self, locks: Locks) -> None:
        self.locks = locks
        self._leases: list[Lease] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def hold(self, name: str, task: str = "shop.tasks.charge", **options: Any) -> Lease:
        lease = self.locks.acquire(name, **{"holder": new_holder(task), **options})
        assert lease, f"{name!r} is held already"
        self._leases.append(lease)
        return lease

    def hold_without_renewal(self, name: str, ttl: float = 600.0, **fields: Any) -> None:
        """Hold a lock that nobody renews."""
        holder = new_holder(**fields)
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
        lease = self.locks.acquire(name, wait=10 * PATIENCE, holder=new_holder(task))
        self._over.wait(10 * PATIENCE)
        if lease:
            lease.release()

    def release_all(self) -> None:
        self._over.set()
        for lease in self._leases:
            lease.release()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.locks.close()


def new_holder(task: str = "shop.tasks.charge", **fields: Any) -> Holder:
    number = next(_numbers)
    defaults = {
        "task_id": f"{number:08d}-0000-4000-8000-00000000beef",
        "worker": WORKER,
        "host": "web-3",
        "pid": 4000 + number,
    }
    return Holder(task=task, **defaults | fields)


def _waiters(locks: Locks, name: str) -> tuple[Holder, ...]:
    info = locks.info(name)
    return info.waiters if info else ()


class Harness:
    """Locks, a web server and browser windows; collects the errors that the browser reports."""

    def __init__(self, browser: Browser, holders: Holders, server: WebServer) -> None:
        self.holders = holders
        self.server = server
        self.locks = holders.locks
        self.hold = holders.hold
        self.errors: list[str] = []
        self._browser = browser
        self._contexts: list[Any] = []
        self._expected = re.compile(r"\Z.")

    def open(self, hash: str = "", key: str | None = WRITE, **options: Any) -> Page:
        """Open a new window, signed in with this key."""
        context = self._browser.new_context(**{"reduced_motion": "no-preference", **options})
        context.set_default_timeout(PATIENCE * 1000)
        self._contexts.append(context)
        if key:
            context.add_init_script(
                f"sessionStorage.getItem('seen') || (sessionStorage.setItem('seen', 1), "
                f"sessionStorage.setItem('celery-locks.key ' + location.pathname, '{key}'))"
            )
        page = context.new_page()
        page.on("console", self._record)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._dismiss)
        page.goto(self.server.url + hash)
        return page

    def expect_errors(self, pattern: str) -> None:
        """Allow errors that match; Chromium reports every response with an error status."""
        self._expected = re.compile(pattern)

    def _record(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _dismiss(self, dialog: Any) -> None:
        self.errors.append(f"a dialog was opened: {dialog.message}")
        dialog.dismiss()

    def close_windows(self) -> None:
        for context in self._contexts:
            context.close()

    def check_errors(self) -> None:
        unexpected = [error for error in self.errors if not self._expected.search(error)]
        assert not unexpected, unexpected


@contextmanager
def open_harness(
    browser: Browser, url: str, app_of: Callable[[Locks], Any], prefix: str = ""
) -> Iterator[Harness]:
    """Yield a harness; ``app_of`` builds the ASGI app for its locks."""
    holders = Holders(Locks.from_url(url, prefix=prefix or f"page-{next(_numbers)}"))
    app = app_of(holders.locks)
    harness = Harness(browser, holders, WebServer(app))
    try:
        yield harness
    finally:
        # In this order: an open page would see the locks disappear.
        harness.close_windows()
        holders.release_all()
        harness.server.stop()
        _close(app)
    harness.check_errors()


def _close(app: Any) -> None:
    """With a Celery app, the web app has its own locks, and the Celery app its connections."""
    context = getattr(app.state, "context", None)
    if context and context.app is not None:
        context.locks.close()
        context.app.close()


def row(page: Page, name: str) -> Any:
    """Return the row of a lock, by its visible text."""
    return page.locator("#rows tr").filter(has=page.locator(".name", has_text=name))


def no_sideways_scroll(page: Page) -> bool:
    """Whether neither the page nor what scrolls in it is wider than the window."""
    return bool(page.evaluate(_FITS))


_PARTS = "html, .panel, .panel h2, dialog, .lock-name, .targets"
_FITS = f"""() => [...document.querySelectorAll("{_PARTS}")]
  .every((node) => node.scrollWidth <= node.clientWidth)"""
