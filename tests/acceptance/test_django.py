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
from tests.support.django_site import LOCKS, Principal, manage, serving
from tests.support.waiting import wait_until

_numbers = itertools.count()
LOCK, RELEASE, STOP = f"{LOCKS}lock/", f"{LOCKS}lock/release/", f"{LOCKS}lock/stop/"
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
def root(site: str) -> Principal:
    return Principal(site, "root")


@pytest.fixture(scope="module")
def rolf(site: str) -> Principal:
    return Principal(site, "rolf")


@pytest.fixture
def name(rig: Rig) -> Iterator[str]:
    name = f"lock-{next(_numbers)}"
    yield name
    admin.force_release(rig.locks, name)


def take(rig: Rig, name: str, token: str, *, limit: int = 1, alive: float = 0, **said: Any) -> None:
    """Held by nobody who renews it, or waited for. A token is of one lock only."""
    holder = Holder(**{"task": "bill", "task_id": f"id-{token}", **said})
    spec = LockSpec(name, 600, limit)
    rig.locks.perform(rig.locks.commands.acquire(spec, token, holder, alive=alive))


def holders(rig: Rig, name: str) -> list[str]:
    return [holder.token for holder in rig.locks.holders(name)]


def test_index_shows_the_locks(root: Principal, site: str) -> None:
    """Where people look for it; but not to staff who may not see them."""
    assert root.get("/admin/").links("Locks") == [LOCKS]
    assert httpx.get(site + LOCKS).headers["location"].startswith("/admin/login/")
    sam = Principal(site, "sam")
    assert LOCKS not in sam.get("/admin/").html
    for url in (LOCKS, LOCK, RELEASE, STOP, f"{LOCKS}acts/"):
        assert sam.get(url, name="x", token="t").status == 403


def test_list_filters_and_sorts(rig: Rig, root: Principal) -> None:
    for number in range(3):
        take(rig, f"fs:{number}", f"fs{number}", task=f"fs.task{number}", worker=f"fs@{number}")
    take(rig, "fs:0", "fs-waiter", alive=300, worker="fs@9")
    take(rig, "fs:q", "q-message", retries=-1)

    def seen(**asked: Any) -> list[str]:
        return root.get(LOCKS, **asked).names

    assert sorted(seen(q="fs:")) == ["fs:0", "fs:1", "fs:2", "fs:q"]
    assert seen(q="fs:?", sort="name") == ["fs:0", "fs:1", "fs:2", "fs:q"]
    assert seen(q="fs:*", sort="-name") == ["fs:q", "fs:2", "fs:1", "fs:0"]
    assert seen(q="fs:", sort="waiting")[0] == "fs:0"
    assert seen(task="fs.task1") == ["fs:1"]
    assert seen(worker="fs@9") == ["fs:0"]
    assert seen(q="fs:", state="waiting") == ["fs:0"]
    assert seen(q="fs:", state="queued") == ["fs:q"]
    exact = "The lock of this very name: fs:1"
    assert exact in root.get(LOCKS, q="fs:1", state="waiting").text
    assert exact not in root.get(LOCKS, q="fs:1").text
    assert "No lock matches." in root.get(LOCKS, q="fs:nothing").text
    # What makes no sense in an address is as if it were not there.
    assert len(seen(q="fs:", state="odd", sort="odd", page="²")) == 4


def test_list_is_paged(rig: Rig, root: Principal) -> None:
    """Few are counted and sorted; of many only what the page shows is read."""
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
        assert "More than 1000 locks, in no order" in unsorted.text
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
    """A request must not outlive its web server; the lock that was named is there all the same."""
    take(rig, name, name)
    monkeypatch.setattr(listing, "PATIENCE", -1.0)
    part = listing.part_of(rig.locks, listing.Question(q=name))
    assert (part.rows, part.looked_at) == ((), 0)
    assert part.exact is not None
    assert part.exact.name == name


def test_lock_says_who_and_whether_it_lives(site: str, rig: Rig, name: str) -> None:
    """By the answer of a real worker, and who waits, in one page."""
    with rig.worker("-n", "one@%h"):
        result = rig.task("work").delay(name, name)
        pid = rig.wait_started(result)["pid"]
        take(rig, name, "waiter", alive=300, worker="w@two")
        seen = Principal(site, "vera").get(LOCK, name=name)
        rig.open(name)
        result.get(timeout=PATIENCE)
    assert f"is alive and runs it in pid {pid}." in seen.text
    assert f"Task ID {result.id}" in seen.text
    assert "It has 1 waiter:" in seen.text
    assert "1 bill id-waiter w@two" in seen.text


def test_release_asks_whether_the_holder_lives(rolf: Principal, rig: Rig, name: str) -> None:
    """The one moment at which one wants to know; also when the form comes back with an error."""
    with rig.worker("-n", "one@%h"):
        result = rig.task("work").delay(name, name)
        pid = rig.wait_started(result)["pid"]
        [holder] = rig.locks.holders(name)
        form = f"{RELEASE}?name={name}&token={holder.token}"

        def shown() -> Any:
            """A worker on a busy machine may answer too late the first time."""
            page = rolf.get(form)
            return page if f"is alive and runs it in pid {pid}." in page.text else None

        page = wait_until(shown, PATIENCE, what="the worker's answer")
        again = rolf.post(form, reason="", grace="0")
        rig.open(name)
        result.get(timeout=PATIENCE)
    assert "This field is required." in again.text
    assert "Celery was not asked" not in page.text + again.text
    # A ttl of 30 s: it learns of it within 10 s, and has five more to end.
    assert "This holder needs up to 15 s to stop." in page.text
    assert 'value="15.0"' in page.html
    assert "replaced" not in page.text.lower()


def test_viewer_may_not_release(site: str, rig: Rig, name: str) -> None:
    take(rig, name, name)
    vera = Principal(site, "vera")
    seen = vera.get(LOCK, name=name)
    assert seen.status == 200
    assert seen.links("Release") == seen.links("stop") == []
    for url in (RELEASE, STOP):
        asked = f"{url}?name={name}&token={name}"
        assert vera.get(asked).status == 403
        assert vera.post(asked, reason="mine", grace="0").status == 403
    assert holders(rig, name) == [name]
    assert admin.history(rig.locks, name, only_actions=True) == []


def test_release_frees_and_says_who_did_it(rig: Rig, rolf: Principal, name: str) -> None:
    """Our history and Django's own both know."""
    take(rig, name, name)
    [release] = rolf.get(LOCK, name=name).links("Release")
    asked = rolf.get(release)
    assert "The lock is taken from this holder" in asked.text
    assert holders(rig, name) == [name], "a GET changes nothing"
    assert "This field is required." in rolf.post(release, reason=" ", grace="0").text
    assert "less than or equal to 20" in rolf.post(release, reason="r", grace="21").text
    assert holders(rig, name) == [name]

    done = rolf.post(release, reason="it <hangs>", grace="0")
    assert f"Lock '{name}' was taken from bill id-{name}." in done.text
    assert holders(rig, name) == []
    [act] = admin.history(rig.locks, name, only_actions=True)
    assert (act.act, act.by) == ("force_release", "rolf via Django admin")
    assert act.why == "it <hangs>"
    for page in (done, rolf.get(f"{LOCKS}acts/")):
        assert f"rolf via Django admin taken task bill[id-{name}]" in page.text
        assert "it <hangs>" in page.text
    [logged] = rolf.get("/admin/").links(name)
    assert f"Nobody holds lock {name!r}" in rolf.get(logged).text


def test_release_is_of_the_holder_that_was_shown(rig: Rig, rolf: Principal, name: str) -> None:
    """Whoever came after it keeps the lock."""
    take(rig, name, "old")
    [release] = rolf.get(LOCK, name=name).links("Release")
    admin.force_release(rig.locks, name)
    take(rig, name, "new")
    done = rolf.post(release, reason="late", grace="0")
    assert "Nothing was taken: that holder has given lock" in done.text
    assert holders(rig, name) == ["new"]


def test_release_with_grace_asks_first(rig: Rig, rolf: Principal, name: str) -> None:
    take(rig, name, name)
    done = rolf.post(f"{RELEASE}?name={name}&token={name}", reason="slow", grace="0.3")
    assert "was taken from" in done.text
    acts = admin.history(rig.locks, name, only_actions=True)
    assert [act.act for act in acts] == ["force_release", "stop"]
    assert holders(rig, name) == []


def test_release_of_one_slot_leaves_the_others(rig: Rig, rolf: Principal, name: str) -> None:
    take(rig, name, "a", limit=2)
    take(rig, name, "b", limit=2)
    first, second = rolf.get(LOCK, name=name).links("Release")
    assert first != second
    rolf.post(f"{RELEASE}?name={name}&token=a", reason="one of two", grace="0")
    assert holders(rig, name) == ["b"]
    admin.force_release(rig.locks, name)


def test_stop_asks_and_leaves_the_lock(rig: Rig, rolf: Principal) -> None:
    """The holder hears it, and ends when it will."""
    describe_entry: list[str] = []
    with rig.locks.hold("stops", ttl=6, on_stop=lambda lease, _: describe_entry.append(lease.name)):
        [stop] = rolf.get(LOCK, name="stops").links("stop")
        assert "was asked to stop" in rolf.post(stop, reason="deploy").text
        wait_until(lambda: describe_entry, PATIENCE, what="the holder to hear it")
        assert len(rig.locks.holders("stops")) == 1
    [act] = admin.history(rig.locks, "stops", only_actions=True)
    assert (act.act, act.by, act.why) == ("stop", "rolf via Django admin", "deploy")
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
    rig: Rig, root: Principal, name: str, shown: str, about: dict[str, str]
) -> None:
    """A lock's name comes from a task's arguments, so from anywhere; each can be met and freed."""
    take(rig, name, "<b>t", task="<i>bill", **about)
    listed = root.get(LOCKS, task="<i>bill")
    assert listed.names == [shown]
    [link] = listed.links(shown)
    lock = root.get(link)
    assert shown in lock.text
    [release] = lock.links("Release")
    asked = root.get(release)
    done = root.post(release, reason="<s>why", grace="0")
    assert holders(rig, name) == []
    index = root.get("/admin/")
    for page in (listed, lock, asked, done, root.get(f"{LOCKS}acts/"), index):
        assert page.status == 200
        tags = ("<script>a", "<b>t", "<i>b", "<u>w", "<s>w", "\x1b", "\u202e")
        assert [tag for tag in tags if tag in page.html] == []
    if name != "..":  # Django's own links put it into the path
        assert "Nobody holds lock" in root.get(index.links(shown)[0]).text


def test_browser_has_nothing_to_complain_of(rig: Rig, site: str) -> None:
    """Under a policy that allows no inline script or style, with a name that wants to be one."""
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
    assert seen["sheet"] == "anywhere", "our own style is allowed"
    assert holders(rig, HOSTILE) == []


def test_release_without_the_token_of_the_form_is_refused(
    rig: Rig, rolf: Principal, name: str
) -> None:
    """Another site's form, sent by our browser, has our cookies and not that."""
    take(rig, name, name)
    for url in (RELEASE, STOP):
        seen = rolf.post_bare(f"{url}?name={name}&token={name}", reason="forged", grace="0")
        assert seen.status == 403
    assert holders(rig, name) == [name]


def test_trouble_is_a_sentence() -> None:
    """A lock server that is away is no error of the site: every page answers all the same."""
    with serving("redis://127.0.0.1:1/0") as base:
        root = Principal(base, "root")
        for url in (LOCKS, LOCK, f"{LOCKS}acts/"):
            seen = root.get(url, name="x", token="t")
            assert seen.status == 200
            assert "Connection refused" in seen.text
        assert "must be a text that is not empty" in root.get(LOCK).text
        seen = root.post(f"{RELEASE}?name=x&token=t", reason="r", grace="0")
        assert "Connection refused" in seen.text


def test_no_migration_and_both_permissions(rig: Rig, tmp_path: Path) -> None:
    """There is no table, and nothing in Django misses it."""
    database = tmp_path / "db"
    url = rig.server.url
    assert manage(url, "makemigrations", "--check", "--dry-run").code == 0
    said = manage(url, "migrate", "--run-syncdb", "-v0", SHOP_DATABASE=str(database))
    assert said.code == 0, said.err
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
    said = manage(url, "dumpdata", SHOP_DATABASE=str(database))
    assert (said.code, said.err) == (0, "")


def test_check_says_what_is_missing(rig: Rig) -> None:
    said = manage("memory://", "check")
    assert said.code == 0
    assert "There is no lock server: no Redis to keep the locks in" in said.err
    said = manage(rig.server.url, "check", SHOP_APP="no.such:app")
    assert said.code == 1
    assert "CELERY_LOCKS_APP is 'no.such:app', which cannot be imported" in said.err
    said = manage(rig.server.url, "check", SHOP_APP="tests.support.django_project.celery:app")
    assert (said.code, said.err) == (0, "")


def test_command_is_that_of_the_command_line(rig: Rig, name: str) -> None:
    """The same answers and exit codes as ``celery -A proj locks``; Django's options anywhere."""
    take(rig, name, name)

    def locks(*arguments: str, url: str = rig.server.url) -> Any:
        return manage(url, "celery_locks", *arguments)

    settings = "--settings=tests.support.django_project.settings"
    [lock] = locks("list", name, "--json", settings).json
    assert lock["holders"][0]["token"] == name
    said = locks("info", "--", "--settings")
    assert (said.code, said.out) == (1, "")
    assert said.err == "Nobody holds lock '--settings' or waits for it.\n"
    said = locks("list", "--odd")
    assert (said.code, said.out) == (2, "")
    assert "Usage: manage.py celery_locks list" in said.err
    assert locks("list", url="redis://127.0.0.1:1/0").code == 3
    said = locks("release", name, "--yes", "--reason", "by hand", "--by", "ann")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Released lock {name!r}, held by task bill[id-{name}]")
    assert admin.history(rig.locks, name, only_actions=True)[0].by == "ann"
