"""docs/replace-your-lock: each fault that a page names happens, and not with the replacement.

The code that runs is the code on the page (``tests/support/page_code.py``).
"""

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis.exceptions import LockNotOwnedError

from celery_locks import options as lock_options
from celery_locks.core.requests import AcquireOptions
from celery_locks.rates import RateRule
from celery_locks.validation import QUEUED
from tests.servers.subprocesses import Child
from tests.support.page_code import PATIENCE, Bench
from tests.support.waiting import wait_until

PAGES = Path(__file__).parents[2] / "docs" / "replace-your-lock"


def before(page: str, **constants: str) -> Bench:
    """The hand-made lock of a page; with constants of the page replaced, such as a ttl."""
    return Bench(PAGES / f"{page}.md", "before", constants, {})


def after(page: str, **conf: Any) -> Bench:
    """The replacement on a page; ``conf`` are settings of the app."""
    return Bench(PAGES / f"{page}.md", "after", {}, conf)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_holder(bench: Bench, name: str) -> None:
    """Kill the first run, and wait until its lock is free: long before the ttl of 30 s."""
    run = bench.wait_run(1)
    assert [holder.pid for holder in bench.locks.holders(name)] == [run.pid]
    kill(run.pid)
    wait_until(lambda: not bench.locks.is_locked(name), 10, what="a free lock")


def is_skipped(value: Any) -> bool:
    return isinstance(value, dict) and value["skipped"] is True


class TestCacheAdd:
    def test_before_runs_two_at_once(self) -> None:
        """The work takes longer than the key lives."""
        with before("cache-add", LOCK_EXPIRE="1") as bench, bench.worker():
            bench.send("import_one", "feed")
            bench.wait_run(1)
            bench.wait_lapsed(":1:import:feed")
            bench.send("import_one", "feed")
            bench.wait_run(2)
            assert len(bench.running()) == 2

    def test_before_is_stuck_after_kill(self) -> None:
        """Nobody holds the lock, and nobody gets it for ten minutes."""
        with before("cache-add") as bench, bench.worker():
            bench.send("import_one", "feed")
            kill(bench.wait_run(1).pid)
            wait_until(lambda: not bench.running(), PATIENCE, what="the run to be dead")
            assert bench.get(bench.send("import_one", "feed")) == "already running"
            assert bench.client.ttl(":1:import:feed") > 500

    def test_after_runs_alone_beyond_its_ttl(self) -> None:
        with after("cache-add", locks_ttl=1) as bench, bench.worker():
            first = bench.send("import_one", "feed")
            run = bench.wait_run(1)
            bench.wait_beyond_ttl("import:feed")
            second = bench.get(bench.send("import_one", "feed"))
            assert is_skipped(second)
            assert second["holder"]["task_id"] == first.id
            bench.finish(run)
            assert bench.get(first) == "imported"
            assert len(bench.runs()) == 1

    def test_after_is_free_after_kill(self) -> None:
        with after("cache-add") as bench, bench.worker():
            bench.send("import_one", "feed")
            kill_holder(bench, "import:feed")
            second = bench.send("import_one", "feed")
            bench.finish(bench.wait_run(2))
            assert bench.get(second) == "imported"


class TestRedisLockAndRetry:
    def test_before_loses_the_job(self) -> None:
        """Waiting uses up the retries that errors would need."""
        with before("redis-lock-and-retry", RETRY_IN="0.1") as bench, bench.worker():
            bench.send("rebuild", "site")
            bench.wait_run(1)
            second = bench.wait_state(bench.send("rebuild", "site"), "FAILURE")
            assert "MaxRetriesExceeded" in type(second.result).__name__
            assert len(bench.runs()) == 1

    def test_before_runs_two_at_once_and_reports_work_as_failed(self) -> None:
        with before("redis-lock-and-retry", LOCK_TIMEOUT="1") as bench, bench.worker():
            first = bench.send("rebuild", "site")
            run = bench.wait_run(1)
            bench.wait_lapsed("rebuild:site")
            bench.send("rebuild", "site")
            bench.wait_run(2)
            assert len(bench.running()) == 2
            bench.finish(run)
            bench.wait_state(first, "FAILURE")
            assert type(first.result).__name__ == LockNotOwnedError.__name__

    def test_after_waits_without_retries_and_runs(self) -> None:
        with after("redis-lock-and-retry", locks_ttl=1) as bench, bench.worker() as worker:
            first = bench.send("rebuild", "site")
            run = bench.wait_run(1)
            second = bench.send("rebuild", "site")
            # Requeued twice: the pauses grow, so this is longer than the renewed ttl of 1 s.
            wait_until(lambda: requeued(worker) >= 2, PATIENCE, what="it to be requeued")
            assert second.state == "PENDING"
            assert bench.running() == [run]
            bench.finish(run)
            assert bench.get(first) is None
            bench.finish(bench.wait_run(2))
            assert bench.get(second) is None
            assert second.state == "SUCCESS"


def requeued(worker: Child) -> int:
    return worker.log(1000).count("is put back for")


QUEUED_MON = "report:mon" + QUEUED


class TestGuardAroundSendTask:
    def test_before_is_stuck_after_a_revoke(self) -> None:
        with before("guard-around-send-task") as bench, bench.worker(concurrency=1):
            revoke_queued(bench)
            assert bench.call("request_report('mon')") is None
            assert bench.client.ttl("report-queued:mon") > 3500

    def test_before_is_stuck_after_a_failed_publish(self) -> None:
        with before("guard-around-send-task") as bench:
            publish_without_broker(bench)
            assert bench.call("request_report('mon')") is None
            assert bench.client.ttl("report-queued:mon") > 3500
            assert bench.client.llen("celery") == 0

    def test_before_queues_and_runs_two_after_an_hour(self) -> None:
        with before("guard-around-send-task") as bench:
            assert bench.call("request_report('mon')")
            bench.let_lapse("report-queued:mon")
            assert bench.call("request_report('mon')")
            with bench.worker():
                bench.wait_run(2)
                assert len(bench.running()) == 2

    def test_after_is_free_after_a_revoke(self) -> None:
        with after("guard-around-send-task") as bench, bench.worker(concurrency=1):
            revoked = revoke_queued(bench, is_locked=True)
            wait_until(lambda: not bench.locks.is_locked(QUEUED_MON), 10, what="a free lock")
            assert bench.call("request_report('mon')") not in (None, revoked)
            assert bench.wait_run(2).key == "mon"

    def test_after_is_free_after_a_failed_publish(self) -> None:
        with after("guard-around-send-task") as bench:
            publish_without_broker(bench, locks_url=bench.server.url)
            assert not bench.locks.is_locked(QUEUED_MON)
            assert bench.call("request_report('mon')")
            assert bench.client.llen("celery") == 1

    def test_after_queues_one_and_runs_one(self) -> None:
        """A second request gets the queued task; one that comes during the run is queued."""
        with after("guard-around-send-task") as bench:
            first = bench.call("request_report('mon')")
            assert bench.locks.is_locked(QUEUED_MON)
            assert bench.call("request_report('mon')") == first
            assert bench.client.llen("celery") == 1
            with bench.worker():
                run = bench.wait_run(1)
                second = bench.call("request_report('mon')")
                assert second != first
                assert bench.running() == [run]
                bench.finish(run)
                bench.finish(bench.wait_run(2))

    def test_after_never_runs_two_when_the_reservation_lapses(self) -> None:
        """The queue is longer than pending_ttl."""
        with after("guard-around-send-task", locks_pending_ttl=1) as bench:
            bench.call("request_report('mon')")
            wait_until(lambda: not bench.locks.is_locked(QUEUED_MON), PATIENCE, what="a lapse")
            bench.call("request_report('mon')")
            assert bench.client.llen("celery") == 2
            with bench.worker() as worker:
                run = bench.wait_run(1)
                wait_until(lambda: requeued(worker), PATIENCE, what="the other to be requeued")
                assert bench.running() == [run]
                bench.finish(run)
                bench.finish(bench.wait_run(2))

    def test_after_takes_the_lock_with_a_declared_task(self) -> None:
        """A sender that cannot import the task declares one of its name."""
        declared = """
from celery_locks import LockedTask, single_instance

@configured.app.task(base=LockedTask, name="after.report")
@single_instance(key="report:{day}", scope="queued", on_conflict={"run": "requeue"})
def report(day): ...

print(json.dumps([report.delay("mon").id, report.delay("mon").id]))
"""
        with after("guard-around-send-task") as bench:
            one, other = bench.python(declared)
            assert one == other
            assert bench.client.llen("celery") == 1


def revoke_queued(bench: Bench, is_locked: bool = False) -> str:
    """Revoke a queued request for Monday while the only process is busy with Sunday."""
    bench.call("request_report('sun')")
    busy = bench.wait_run(1)
    queued: str = bench.call("request_report('mon')")
    assert bench.locks.is_locked(QUEUED_MON) == is_locked
    replies = bench.app.control.revoke(queued, reply=True, timeout=PATIENCE, limit=1)
    assert replies, "the worker did not hear the revoke"
    bench.finish(busy)
    bench.wait_state(bench.app.AsyncResult(queued), "REVOKED")
    return queued


def publish_without_broker(bench: Bench, **conf: str) -> None:
    """Request a report while nobody answers at the broker's address: the caller gets the error."""
    code = f"""
from kombu.exceptions import OperationalError
from {bench.module} import request_report

configured.app.conf.update(task_publish_retry=False, **{conf!r})
try:
    request_report("mon")
except OperationalError as error:
    print(json.dumps(str(error)))
"""
    assert "refused" in bench.python(code, CELERY_BROKER_URL="redis://127.0.0.1:1/0")


class TestNamedLocks:
    PAGE = "named-locks-as-semaphore"

    def test_before_runs_more_than_allowed(self) -> None:
        with before(self.PAGE, SLOT_TIMEOUT="1") as bench, bench.worker():
            for number in (1, 2):
                bench.send("fetch", "ann")
                bench.wait_run(number)
            bench.wait_lapsed("api:ann:0")
            bench.send("fetch", "ann")
            bench.wait_run(3)
            assert len(bench.running()) == 3

    def test_before_lets_a_latecomer_overtake(self) -> None:
        with before(self.PAGE, RETRY_IN="60") as bench, bench.worker():
            for number in (1, 2):
                bench.send("fetch", "ann")
                bench.wait_run(number)
            early = bench.wait_state(bench.send("fetch", "ann"), "RETRY")
            bench.finish(bench.runs()[0])
            bench.wait_lapsed("api:ann:0")
            bench.send("fetch", "ann")
            bench.wait_run(3)
            assert early.state == "RETRY"

    def test_before_loses_the_slot_of_a_killed_process(self) -> None:
        with before(self.PAGE, RETRY_IN="60") as bench, bench.worker():
            for number in (1, 2):
                bench.send("fetch", "ann")
                bench.wait_run(number)
            kill(bench.runs()[0].pid)
            wait_until(lambda: len(bench.running()) == 1, PATIENCE, what="the run to be dead")
            bench.wait_state(bench.send("fetch", "ann"), "RETRY")
            assert bench.client.ttl("api:ann:0") > 60
            assert len(bench.running()) == 1

    def test_after_never_runs_more_and_serves_in_order(self) -> None:
        with after(self.PAGE, locks_ttl=1) as bench, bench.worker(concurrency=4):
            for number in (1, 2):
                bench.send("fetch", "ann")
                bench.wait_run(number)
            early, late = bench.send("fetch", "ann"), None
            wait_until(lambda: waiting(bench, "api:ann") == 1, PATIENCE, what="a waiter")
            late = bench.send("fetch", "ann")
            wait_until(lambda: waiting(bench, "api:ann") == 2, PATIENCE, what="a second waiter")
            bench.wait_beyond_ttl("api:ann")
            assert len(bench.runs()) == 2

            bench.finish(bench.runs()[0])
            third = bench.wait_run(3)
            assert holders(bench, "api:ann") >= {early.id}
            assert late.id not in holders(bench, "api:ann")
            bench.finish(bench.runs()[1], third)
            bench.finish(bench.wait_run(4))
            assert [bench.get(early), bench.get(late)] == [None, None]

    def test_after_gives_the_slot_of_a_killed_process_to_the_next(self) -> None:
        with after(self.PAGE) as bench, bench.worker():
            for number in (1, 2):
                bench.send("fetch", "ann")
                bench.wait_run(number)
            third = bench.send("fetch", "ann")
            wait_until(lambda: waiting(bench, "api:ann") == 1, PATIENCE, what="a waiter")
            kill(bench.runs()[0].pid)
            wait_until(lambda: third.id in holders(bench, "api:ann"), 10, what="the slot")
            bench.wait_run(3)
            assert len(bench.running()) == 2


def waiting(bench: Bench, name: str) -> int:
    info = bench.locks.info(name)
    return len(info.waiters) if info else 0


def holders(bench: Bench, name: str) -> set[str | None]:
    return {holder.task_id for holder in bench.locks.holders(name)}


class TestHeartbeatThread:
    """Two workers with a queue each: the machine of the first is suspended for a while."""

    def test_before_shares_and_deletes_the_lock_of_another(self) -> None:
        with before("heartbeat-thread", LOCK_TTL="1") as bench, ExitStack() as stack:
            suspended = stack.enter_context(bench.worker(queue="one"))
            stack.enter_context(bench.worker(queue="two"))
            first = bench.send("sync", "shop", queue="one")
            run = bench.wait_run(1)
            suspended.signal(signal.SIGSTOP)
            bench.wait_lapsed("sync:shop")
            bench.send("sync", "shop", queue="two")
            bench.wait_run(2)
            suspended.signal(signal.SIGCONT)
            assert len(bench.running()) == 2

            bench.finish(run)
            assert bench.get(first) == "synchronised"
            bench.send("sync", "shop", queue="two")
            bench.wait_run(3)
            assert len(bench.running()) == 2

    def test_before_stops_when_the_work_holds_the_interpreter_lock(self) -> None:
        with before("heartbeat-thread", LOCK_TTL="1") as bench, bench.worker():
            bench.hold_the_interpreter_lock()
            bench.send("sync", "shop")
            bench.wait_run(1)
            bench.wait_lapsed("sync:shop")
            bench.send("sync", "shop")
            bench.wait_run(2)
            assert len(bench.running()) == 2

    def test_after_tells_the_task_and_leaves_the_lock_of_another(self) -> None:
        with after("heartbeat-thread", locks_ttl=1) as bench, ExitStack() as stack:
            suspended = stack.enter_context(bench.worker(queue="one"))
            stack.enter_context(bench.worker(queue="two"))
            first = bench.send("sync", "shop", queue="one")
            bench.wait_run(1)
            suspended.signal(signal.SIGSTOP)
            wait_until(lambda: not bench.locks.is_locked("sync:shop"), PATIENCE, what="a lapse")
            second = bench.send("sync", "shop", queue="two")
            run = bench.wait_run(2)
            suspended.signal(signal.SIGCONT)

            bench.wait_state(first, "FAILURE")
            assert type(first.result).__name__ == "LeaseLost"
            assert holders(bench, "sync:shop") == {second.id}
            assert is_skipped(bench.get(bench.send("sync", "shop", queue="two")))
            bench.finish(run)
            assert bench.get(second) == "synchronised"

    def test_after_renews_while_the_work_holds_the_interpreter_lock(self) -> None:
        with after("heartbeat-thread", locks_ttl=1) as bench, bench.worker():
            bench.hold_the_interpreter_lock()
            bench.send("sync", "shop")
            bench.wait_run(1)
            bench.wait_beyond_ttl("sync:shop")
            assert is_skipped(bench.get(bench.send("sync", "shop")))
            assert len(bench.running()) == 1


class TestGetThenSet:
    """Writes are paused on the server until two have begun: nobody is faster than the other."""

    def test_before_runs_two_at_once_and_then_a_third(self) -> None:
        with before("get-then-set") as bench, ExitStack() as stack:
            start_together(bench, stack, "bill('may')", command="set")
            first = bench.wait_run(1)
            bench.wait_run(2)
            assert len(bench.running()) == 2
            bench.finish(first)
            bench.wait_lapsed(":1:billing:may")
            stack.enter_context(bench.process("bill('may')"))
            bench.wait_run(3)
            assert len(bench.running()) == 2

    def test_before_is_stuck_after_kill(self) -> None:
        with before("get-then-set") as bench, bench.process("bill('may')"):
            kill(bench.wait_run(1).pid)
            wait_until(lambda: not bench.running(), PATIENCE, what="the run to be dead")
            assert bench.call("bill('may')") == "already running"
            assert bench.client.ttl(":1:billing:may") > 3500

    def test_after_runs_one(self) -> None:
        with after("get-then-set") as bench, ExitStack() as stack:
            children = start_together(bench, stack, "bill.apply(('may',))", command="evalsha")
            run = bench.wait_run(1)
            wait_until(
                lambda: sum(not child.is_running for child in children) == 1,
                PATIENCE,
                what="the other to be skipped",
            )
            assert bench.runs() == [run]
            bench.finish(run)

    def test_after_is_free_after_kill(self) -> None:
        with after("get-then-set") as bench, bench.worker():
            bench.send("bill", "may")
            kill_holder(bench, "billing:may")
            bench.send("bill", "may")
            bench.wait_run(2)

    def test_after_with_a_worker_runs_one(self) -> None:
        with after("get-then-set") as bench, bench.worker():
            results = [bench.send("bill", "may") for _ in range(3)]
            run = bench.wait_run(1)
            wait_until(lambda: sum(result.ready() for result in results) == 2, PATIENCE)
            assert bench.runs() == [run]
            bench.finish(run)
            values = [bench.get(result) for result in results]
            assert values.count("billed") == 1
            assert sum(map(is_skipped, values)) == 2


def start_together(bench: Bench, stack: ExitStack, call: str, command: str) -> list[Child]:
    """Let two processes make the same call; both stand before their first write together."""
    bench.client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    children = [stack.enter_context(bench.process(call)) for _ in range(2)]
    wait_until(lambda: before_write(bench, command) == 2, PATIENCE, what="two before their write")
    bench.client.execute_command("CLIENT", "UNPAUSE")
    return children


def before_write(bench: Bench, command: str) -> int:
    return sum(client["cmd"] == command for client in bench.client.client_list())


class TestViewAndTask:
    def test_before_locks_the_user_out_after_kill(self) -> None:
        with before("view-and-task") as bench, bench.worker():
            assert bench.call("export_view('ann')") == "202: started"
            kill(bench.wait_run(1).pid)
            wait_until(lambda: not bench.running(), PATIENCE, what="the run to be dead")
            assert bench.call("export_view('ann')").startswith("409")
            assert bench.client.ttl("export:ann") > 3500

    def test_before_runs_two_at_once_after_a_long_queue(self) -> None:
        """And the first to end deletes the key of the second, so a third starts."""
        with before("view-and-task") as bench:
            assert bench.call("export_view('ann')") == "202: started"
            bench.let_lapse("export:ann")
            assert bench.call("export_view('ann')") == "202: started"
            with bench.worker():
                bench.wait_run(2)
                assert len(bench.running()) == 2
                bench.finish(bench.runs()[0])
                bench.wait_lapsed("export:ann")
                assert bench.call("export_view('ann')") == "202: started"
                bench.wait_run(3)
                assert len(bench.running()) == 2

    def test_after_says_what_is_on_its_way(self) -> None:
        """Queued or running: 409. Ended: a new one."""
        with after("view-and-task") as bench:
            assert bench.call("export_view('ann')") == "202: started"
            assert bench.call("export_view('ann')").startswith("409")
            assert bench.call("export.pending('ann')") == "queued"
            with bench.worker():
                run = bench.wait_run(1)
                assert bench.call("export_view('ann')").startswith("409")
                assert bench.call("export.pending('ann')") == "running"
                bench.finish(run)
                wait_until(lambda: not bench.locks.is_locked("export:ann"), PATIENCE)
                assert bench.call("export.pending('ann')") is None
                assert bench.call("export_view('ann')") == "202: started"
                bench.wait_run(2)

    def test_after_is_free_after_kill(self) -> None:
        with after("view-and-task") as bench, bench.worker():
            bench.call("export_view('ann')")
            kill_holder(bench, "export:ann")
            assert bench.call("export_view('ann')") == "202: started"
            bench.wait_run(2)

    def test_after_never_runs_two_after_a_long_queue(self) -> None:
        with after("view-and-task", locks_pending_ttl=1) as bench:
            bench.call("export_view('ann')")
            wait_until(lambda: not bench.locks.is_locked("export:ann"), PATIENCE, what="a lapse")
            assert bench.call("export_view('ann')") == "202: started"
            assert bench.client.llen("celery") == 2
            with bench.worker() as worker:
                run = bench.wait_run(1)
                wait_until(lambda: "is skipped" in worker.log(1000), PATIENCE, what="a skip")
                assert bench.runs() == [run]
                bench.finish(run)


def test_list_of_applications_writes_options_that_exist() -> None:
    """It promises that 20 of 24 applications need no lock of their own."""
    page = (PAGES / "applications.md").read_text()
    _, _, section = page.partition("## Application by application")
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in row] for row in rows[1:25]]
    assert len({name for name, *_ in found}) == 24
    assert "20 of the 24" in section
    assert len([stays for *_, stays in found if re.match("nothing|the table of last", stays)]) == 20
    options = {*lock_options.DEFAULTS, *AcquireOptions.__annotations__, *RateRule._fields}
    assert set(re.findall(r"\b([a-z_]+)=", " ".join(row[2] for row in found))) <= options


def test_every_page_is_tested() -> None:
    """A fault that nobody has shown is a claim; two pages are lists, and claim none."""
    pages = {page.stem for page in PAGES.glob("*.md")} - {"index", "applications"}
    assert {page for page in pages if f'"{page}"' not in Path(__file__).read_text()} == set()
