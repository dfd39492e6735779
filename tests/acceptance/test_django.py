"""The locks in Django's admin and under ``manage.py``: a real project in a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from celery_locks import admin
from celery_locks.django import listing
from celery_locks.types import Holder, LockSpec
from tests.support.celery_worker import PATIENCE, ROOT, Rig, fresh_rig
from tests.support.django_site import LOCKS, User, manage, serving
from tests.support.parked import park
from tests.support.waiting import wait_until

_numbers = itertools.count()
LOCK, RELEASE, STOP = f"{LOCKS}lock/", f"{LOCKS}lock/release/", f"{LOCKS}lock/stop/"
HISTORY = f"{LOCKS}history/"
RATES = f"{LOCKS}rates/"
HOSTILE = "in\nvoice \x1b[31m'\"$(id)` \u202e{0} <script>alert(1)</script>&amp;%2e/../?name=x#"
HARMLESS = "in\\nvoice \\x1b[31m'\"$(id)` \\u202e{0} <script>alert(1)</script>&amp;%2e/../?name=x#"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with fresh_rig(locks_ttl=30) as rig:
        yield rig


@pytest.fixture(scope="module")
def site(rig: Rig) -> Iterator[str]:
    with serving(rig.server.url, SHOP_ASKS_WORKERS="1") as base:
        yield base


@pytest.fixture(scope="module")
def root(site: str) -> User:
    return User(site, "root")


@pytest.fixture(scope="module")
def rolf(site: str) -> User:
    return User(site, "rolf")


@pytest.fixture
def name(rig: Rig) -> Iterator[str]:
    name = f"lock-{next(_numbers)}"
    yield name
    admin.force_release(rig.locks, name)


def take(
    rig: Rig, name: str, token: str, *, limit: int = 1, alive: float = 0, **fields: Any
) -> None:
    """Hold a lock without renewing it, or wait for it. A token belongs to one lock only."""
    holder = Holder(**{"task": "bill", "task_id": f"id-{token}", **fields})
    spec = LockSpec(name, 600, limit)
    rig.locks.perform(rig.locks.commands.acquire(spec, token, holder, alive=alive))


def holders(rig: Rig, name: str) -> list[str]:
    return [holder.token for holder in rig.locks.holders(name)]


def test_index_shows_the_locks(root: User, site: str) -> None:
    """The admin's index is where people look; staff without the permission must not see it."""
    assert root.get("/admin/").links("Locks") == [LOCKS]
    assert httpx.get(site + LOCKS).headers["location"].startswith("/admin/login/")
    sam = User(site, "sam")
    assert LOCKS not in sam.get("/admin/").html
    for url in (LOCKS, LOCK, RELEASE, STOP, HISTORY):
        assert sam.get(url, name="x", token="t").status == 403


def test_list_filters_and_sorts(rig: Rig, root: User) -> None:
    for number in range(3):
        take(rig, f"fs:{number}", f"fs{number}", task=f"fs.task{number}", worker=f"fs@{number}")
    take(rig, "fs:0", "fs-waiter", alive=300, worker="fs@9")
    take(rig, "fs:q", "q-message", retries=-1)

    def seen(**query: Any) -> list[str]:
        return root.get(LOCKS, **query).names

    assert sorted(seen(q="fs:")) == ["fs:0", "fs:1", "fs:2", "fs:q"]
    assert seen(q="fs:?", sort="name") == ["fs:0", "fs:1", "fs:2", "fs:q"]
    assert seen(q="fs:*", sort="-name") == ["fs:q", "fs:2", "fs:1", "fs:0"]
    assert seen(q="fs:", sort="waiting")[0] == "fs:0"
    assert seen(task="fs.task1") == ["fs:1"]
    assert seen(worker="fs@9") == ["fs:0"]
    assert seen(q="fs:", state="waiting") == ["fs:0"]
    assert seen(q="fs:", state="queued") == ["fs:q"]
    exact = "The lock with exactly this name: fs:1"
    assert exact in root.get(LOCKS, q="fs:1", state="waiting").text
    assert exact not in root.get(LOCKS, q="fs:1").text
    assert "No lock matches." in root.get(LOCKS, q="fs:nothing").text
    # Invalid values in the URL are ignored.
    assert len(seen(q="fs:", state="odd", sort="odd", page="²")) == 4


def test_list_is_paged(rig: Rig, root: User) -> None:
    """A short list is counted and sorted; of a long one only what the page shows is read."""
    for number in range(1101):
        take(rig, f"many:{number:04}", f"m{number}")
    try:
        first = root.get(LOCKS, q="many:10", sort="name")
        assert first.names == [f"many:{number:04}" for number in range(1000, 1100)]
        assert "100 locks" in first.text
        [to_second] = root.get(LOCKS, q="many:", sort="name").links("next")
        second = root.get(LOCKS + to_second)
        assert second.names == [f"many:{number:04}" for number in range(100, 200)]
        assert len(second.links("previous")) == 1
        unsorted = root.get(LOCKS)
        assert len(unsorted.names) == 100
        assert "More than 1000 locks, not sorted" in unsorted.text
        others = root.get(LOCKS + unsorted.links("next")[0]).names
        assert len(others) == 100
        assert others != unsorted.names
        assert root.get(LOCKS, page="9999").names == []
    finally:
        for number in range(1101):
            admin.force_release(rig.locks, f"many:{number:04}")


def test_list_ends_when_the_time_is_up(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request must not exceed the web server's limit; an exact match is still shown."""
    take(rig, name, name)
    monkeypatch.setattr(listing, "MAX_SECONDS", -1.0)
    page = listing.read_page(rig.locks, listing.ListQuery(q=name))
    assert (page.rows, page.read) == ((), 0)
    assert page.exact is not None
    assert page.exact.name == name


def test_lock_page_shows_the_holder_and_whether_it_is_alive(site: str, rig: Rig, name: str) -> None:
    """A real worker answers, and the waiters are on the same page."""
    with rig.worker("-n", "one@%h"):
        result = rig.task("work").delay(name, name)
        pid = rig.wait_started(result)["pid"]
        take(rig, name, "waiter", alive=300, worker="w@two")
        seen = User(site, "vera").get(LOCK, name=name)
        rig.open(name)
        result.get(timeout=PATIENCE)
    assert f"is alive and runs it in pid {pid}." in seen.text
    assert f"Task ID {result.id}" in seen.text
    assert "It has 1 waiter:" in seen.text
    assert "1 bill id-waiter w@two" in seen.text


def test_release_page_shows_whether_the_holder_is_alive(rolf: User, rig: Rig, name: str) -> None:
    """It matters most before a release; also when the form is shown again with an error."""
    with rig.worker("-n", "one@%h"):
        result = rig.task("work").delay(name, name)
        pid = rig.wait_started(result)["pid"]
        [holder] = rig.locks.holders(name)
        form = f"{RELEASE}?name={name}&token={holder.token}"

        def shown() -> Any:
            """Try again: a worker on a busy machine may answer too late the first time."""
            page = rolf.get(form)
            return page if f"is alive and runs it in pid {pid}." in page.text else None

        page = wait_until(shown, PATIENCE, what="the worker's answer")
        again = rolf.post(form, reason="", grace="0")
        rig.open(name)
        result.get(timeout=PATIENCE)
    assert "This field is required." in again.text
    assert "Celery was not asked" not in page.text + again.text
    # A ttl of 30 s: the holder is asked within 10 s and has five more to stop.
    assert "This holder needs up to 15 s to stop." in page.text
    assert 'value="15.0"' in page.html
    assert "replaced" not in page.text.lower()


def test_viewer_may_not_release(site: str, rig: Rig, name: str) -> None:
    take(rig, name, name)
    vera = User(site, "vera")
    seen = vera.get(LOCK, name=name)
    assert seen.status == 200
    assert seen.links("Release") == seen.links("stop") == []
    for url in (RELEASE, STOP):
        action = f"{url}?name={name}&token={name}"
        assert vera.get(action).status == 403
        assert vera.post(action, reason="no permission", grace="0").status == 403
    assert holders(rig, name) == [name]
    assert admin.history(rig.locks, name, only_actions=True) == []


def test_release_is_recorded_with_the_user(rig: Rig, rolf: User, name: str) -> None:
    """Both our history and Django's own have it."""
    take(rig, name, name)
    [release] = rolf.get(LOCK, name=name).links("Release")
    confirm = rolf.get(release)
    assert "The lock is taken from this holder" in confirm.text
    assert holders(rig, name) == [name], "a GET changes nothing"
    assert "This field is required." in rolf.post(release, reason=" ", grace="0").text
    assert "less than or equal to 20" in rolf.post(release, reason="r", grace="21").text
    assert holders(rig, name) == [name]

    done = rolf.post(release, reason="it <hangs>", grace="0")
    assert f"Lock '{name}' was taken from bill id-{name}." in done.text
    assert holders(rig, name) == []
    [entry] = admin.history(rig.locks, name, only_actions=True)
    assert (entry.act, entry.by) == ("force_release", "rolf via Django admin")
    assert entry.why == "it <hangs>"
    for page in (done, rolf.get(HISTORY)):
        assert f"rolf via Django admin taken task bill[id-{name}]" in page.text
        assert "it <hangs>" in page.text
    [logged] = rolf.get("/admin/").links(name)
    assert f"Nobody holds lock {name!r}" in rolf.get(logged).text


def test_release_affects_only_the_holder_shown(rig: Rig, rolf: User, name: str) -> None:
    """A later holder keeps the lock."""
    take(rig, name, "old")
    [release] = rolf.get(LOCK, name=name).links("Release")
    admin.force_release(rig.locks, name)
    take(rig, name, "new")
    done = rolf.post(release, reason="late", grace="0")
    assert "Nothing was taken: that holder has already released lock" in done.text
    assert holders(rig, name) == ["new"]


def test_release_with_grace_asks_first(rig: Rig, rolf: User, name: str) -> None:
    take(rig, name, name)
    done = rolf.post(f"{RELEASE}?name={name}&token={name}", reason="slow", grace="0.3")
    assert "was taken from" in done.text
    entries = admin.history(rig.locks, name, only_actions=True)
    assert [entry.act for entry in entries] == ["force_release", "stop"]
    assert holders(rig, name) == []


def test_release_of_one_slot_leaves_the_others(rig: Rig, rolf: User, name: str) -> None:
    take(rig, name, "a", limit=2)
    take(rig, name, "b", limit=2)
    first, second = rolf.get(LOCK, name=name).links("Release")
    assert first != second
    rolf.post(f"{RELEASE}?name={name}&token=a", reason="one of two", grace="0")
    assert holders(rig, name) == ["b"]
    admin.force_release(rig.locks, name)


def test_stop_asks_and_leaves_the_lock(rig: Rig, rolf: User) -> None:
    """The holder receives the request and stops on its own."""
    stopped: list[str] = []
    with rig.locks.hold("stops", ttl=6, on_stop=lambda lease, _: stopped.append(lease.name)):
        [stop] = rolf.get(LOCK, name="stops").links("stop")
        assert "was asked to stop" in rolf.post(stop, reason="deploy").text
        wait_until(lambda: stopped, PATIENCE, what="the stop request to arrive")
        assert len(rig.locks.holders("stops")) == 1
    [entry] = admin.history(rig.locks, "stops", only_actions=True)
    assert (entry.act, entry.by, entry.why) == ("stop", "rolf via Django admin", "deploy")
    assert "Nobody holds lock 'stops'" in rolf.get(LOCK, name="stops").text


@pytest.mark.parametrize(
    ("name", "shown", "about"),
    [
        (HOSTILE, HARMLESS, {"worker": "<u>w"}),
        ("..", "..", {}),
        ("a/b", "a/b", {}),
    ],
    ids=["hostile", "dots", "slash"],
)
def test_name_is_only_text(
    rig: Rig, root: User, name: str, shown: str, about: dict[str, str]
) -> None:
    """A lock name comes from task arguments, so it may be anything; each can be released."""
    take(rig, name, "<b>t", task="<i>bill", **about)
    listed = root.get(LOCKS, task="<i>bill")
    assert listed.names == [shown]
    [link] = listed.links(shown)
    lock = root.get(link)
    assert shown in lock.text
    [release] = lock.links("Release")
    confirm = root.get(release)
    done = root.post(release, reason="<s>why", grace="0")
    assert holders(rig, name) == []
    index = root.get("/admin/")
    for page in (listed, lock, confirm, done, root.get(HISTORY), index):
        assert page.status == 200
        tags = ("<script>a", "<b>t", "<i>b", "<u>w", "<s>w", "\x1b", "\u202e")
        assert [tag for tag in tags if tag in page.html] == []
    if name != "..":  # Django's own links have the name in the path
        assert "Nobody holds lock" in root.get(index.links(shown)[0]).text


def test_browser_reports_no_errors(rig: Rig, site: str) -> None:
    """The site's policy allows no inline script or style, and the lock name tries to add one."""
    if shutil.which("chromium") is None:
        miss = pytest.skip if os.environ.get("CELERY_LOCKS_WITHOUT_BROWSER") == "1" else pytest.fail
        miss("No chromium on the PATH (Debian: apt-get install chromium).")
    take(rig, HOSTILE, "browsed")
    command = [sys.executable, "-m", "tests.support.django_browser", site, "*voice*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["complaints"] == []
    assert seen["heading"] == HARMLESS
    assert "was taken from bill id-browsed." in seen["message"]
    assert seen["overflow_wrap"] == "anywhere", "our stylesheet was not applied"
    assert holders(rig, HOSTILE) == []


def test_release_without_the_csrf_token_is_refused(rig: Rig, rolf: User, name: str) -> None:
    """A form of another site, sent by our browser, has our cookies but not the token."""
    take(rig, name, name)
    for url in (RELEASE, STOP):
        seen = rolf.post_bare(f"{url}?name={name}&token={name}", reason="forged", grace="0")
        assert seen.status == 403
    assert holders(rig, name) == [name]


def test_unreachable_lock_server_is_reported_in_a_sentence() -> None:
    """Every page must work while the lock server is unreachable."""
    with serving("redis://127.0.0.1:1/0") as base:
        root = User(base, "root")
        for url in (LOCKS, LOCK, HISTORY):
            seen = root.get(url, name="x", token="t")
            assert seen.status == 200
            assert "Connection refused" in seen.text
        assert "must be a text that is not empty" in root.get(LOCK).text
        seen = root.post(f"{RELEASE}?name=x&token=t", reason="r", grace="0")
        assert "Connection refused" in seen.text


def test_no_migration_and_both_permissions(rig: Rig, tmp_path: Path) -> None:
    """There is no table, and Django's own commands work without it."""
    database = tmp_path / "db"
    url = rig.server.url
    assert manage(url, "makemigrations", "--check", "--dry-run").code == 0
    result = manage(url, "migrate", "--run-syncdb", "-v0", SHOP_DATABASE=str(database))
    assert result.code == 0, result.err
    with sqlite3.connect(database) as db:
        tables = {row[0] for row in db.execute("select name from sqlite_master")}
        rows = db.execute(
            "select codename from auth_permission p join django_content_type t "
            "on p.content_type_id = t.id where t.app_label = 'celery_locks' order by codename"
        )
        permissions = [row[0] for row in rows]
    db.close()
    assert not [table for table in tables if "lock" in table]
    assert permissions == ["release_lock", "view_lock"]
    result = manage(url, "dumpdata", SHOP_DATABASE=str(database))
    assert (result.code, result.err) == (0, "")


def test_check_reports_wrong_settings(rig: Rig) -> None:
    result = manage("memory://", "check")
    assert result.code == 0
    assert "No lock server is configured: no Redis to keep the locks in" in result.err
    result = manage(rig.server.url, "check", SHOP_APP="no.such:app")
    assert result.code == 1
    assert "CELERY_LOCKS_APP is 'no.such:app', which cannot be imported" in result.err
    result = manage(rig.server.url, "check", SHOP_APP="tests.support.django_project.celery:app")
    assert (result.code, result.err) == (0, "")


def test_manage_command_is_the_command_line(rig: Rig, name: str) -> None:
    """The same answers and exit codes as ``celery -A proj locks``; Django's options anywhere."""
    take(rig, name, name)

    def locks(*arguments: str, url: str = rig.server.url) -> Any:
        return manage(url, "celery_locks", *arguments)

    settings = "--settings=tests.support.django_project.settings"
    [lock] = locks("list", name, "--json", settings).json
    assert lock["holders"][0]["token"] == name
    result = locks("info", "--", "--settings")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Nobody holds lock '--settings' or waits for it.\n"
    result = locks("list", "--odd")
    assert (result.code, result.out) == (2, "")
    assert "Usage: manage.py celery_locks list" in result.err
    assert locks("list", url="redis://127.0.0.1:1/0").code == 3
    result = locks("release", name, "--yes", "--reason", "by hand", "--by", "ann")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Released lock {name!r}, held by task bill[id-{name}]")
    assert admin.history(rig.locks, name, only_actions=True)[0].by == "ann"


def test_pause_and_limit_are_recorded_with_the_user(rig: Rig, rolf: User, name: str) -> None:
    take(rig, name, name)
    [pause] = rolf.get(LOCK, name=name).links("Pause")
    assert "This field is required." in rolf.post(pause, reason=" ", minutes="").text
    info = rig.locks.info(name)
    assert info
    assert info.pause is None
    done = rolf.post(pause, reason="bad data", minutes="60")
    assert f"Lock '{name}' is paused." in done.text
    assert "paused by rolf via Django admin" in done.text
    [limit] = rolf.get(LOCK, name=name).links("Set limit")
    rolf.post(limit, reason="more", minutes="", limit="4")
    info = rig.locks.info(name)
    assert info
    assert info.pause
    assert info.pause.until
    assert info.limit == 4
    [reset] = rolf.get(LOCK, name=name).links("Reset limit")
    rolf.post(reset, reason="enough")
    [resume] = rolf.get(LOCK, name=name).links("Resume")
    assert f"Lock '{name}' is resumed." in rolf.post(resume, reason="good again").text
    assert f"Lock '{name}' itself is not paused." in rolf.post(resume, reason="twice").text
    entries = admin.history(rig.locks, name, only_actions=True)
    assert [entry.act for entry in entries] == ["resume", "limit_reset", "limit", "pause"]
    assert {entry.by for entry in entries} == {"rolf via Django admin"}


def test_parked_messages_are_shown_and_dropped(rig: Rig, rolf: User, site: str, name: str) -> None:
    """One with its link, then all; who and why are in the history."""
    take(rig, name, name)
    message = '{"headers": {"id": "%s", "task": "bill"}, "body": "[]"}'
    ids = [f"{name} &/{number}" for number in range(3)]
    for task_id in ids:
        park(rig.locks, name, task_id, message=message % task_id)
    page = rolf.get(LOCK, name=name)
    assert f"{ids[1]} (parked)" in page.text
    assert f"is parked for lock '{name}'" not in page.text
    assert "3 parked messages wait on the lock server" in page.text
    assert "3 (3 parked)" in rolf.get(LOCKS, q=name, state="parked").text
    drops = page.links("Drop…")
    assert len(drops) == 3
    assert "This field is required." in rolf.post(drops[1], reason=" ", task_id=ids[1]).text
    assert ids[1] in rolf.get(drops[1]).html.replace("&amp;", "&")
    done = rolf.post(drops[1], reason="wrong day", task_id=ids[1])
    assert f"Dropped 1 parked message of lock '{name}'." in done.text
    assert "wrong day" in done.text
    again = rolf.post(drops[1], reason="twice", task_id=ids[1])
    assert f"No such message is parked for lock '{name}'." in again.text
    [drop_all] = rolf.get(LOCK, name=name).links("Drop all parked messages…")
    assert "Dropped 2 parked messages" in rolf.post(drop_all, reason="all", task_id="").text
    entries = admin.history(rig.locks, name, only_actions=True)
    assert [(entry.act, entry.count) for entry in entries] == [("purge", 2), ("purge", 1)]
    assert {entry.by for entry in entries} == {"rolf via Django admin"}
    assert User(site, "sam").get(f"{LOCKS}lock/purge/", name=name).status == 403


def test_rate_is_paused_and_set_with_the_user(rig: Rig, rolf: User, name: str) -> None:
    """Also one that delays nobody, by its name; who did it is in the history."""
    [pause] = rolf.get(RATES, name=name).links("Pause")
    assert "This field is required." in rolf.post(pause, reason=" ", minutes="").text
    done = rolf.post(pause, reason="429", minutes="60")
    assert f"The rate '{name}' is paused." in done.text
    assert "paused by rolf via Django admin" in done.text
    assert name in rolf.get(RATES).text
    [new] = rolf.get(RATES, name=name).links("Set rate")
    assert "must be a number from 1" in rolf.post(new, reason="x", minutes="", rate="fast").text
    rolf.post(new, reason="slower", minutes="", rate="2/h")
    info = admin.rate_info(rig.locks, name)
    assert info
    assert info.pause
    assert info.rate_override
    assert (info.rate_override.rate, info.rate_override.until) == ("2/h", None)
    assert info.pause.until
    [resume] = rolf.get(RATES, name=name).links("Resume")
    assert f"The rate '{name}' is resumed." in rolf.post(resume, reason="fine").text
    assert f"The rate '{name}' is not paused." in rolf.post(resume, reason="twice").text
    [reset] = rolf.get(RATES, name=name).links("Reset rate")
    rolf.post(reset, reason="enough")
    entries = admin.history(rig.locks, name, only_actions=True)
    kinds = ["rate_reset", "rate_resume", "rate", "rate_pause"]
    assert [entry.act for entry in entries] == kinds
    assert {entry.by for entry in entries} == {"rolf via Django admin"}
    history = rolf.get(HISTORY)
    assert "rate set to 2/h" in history.text
    assert history.links(name)[0].endswith(f"{RATES}?name={name}")
