"""A schedule that is shorter than the job: beat sends twice a second, the job takes 1.2 s.

Without a lock the runs would overlap and pile up. With one, a run that finds the previous one still
running is skipped.

    python -m examples.beat
"""

import time

from celery import Celery

from celery_locks import LockedTask
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.beat", broker=REDIS, backend=REDIS)
app.conf.beat_schedule = {"import": {"task": "examples.beat.import_catalogue", "schedule": 0.5}}


@app.task(base=LockedTask, lock_key="import-catalogue")
def import_catalogue() -> None:
    _run.note("begins")
    time.sleep(1.2)
    _run.note("ends")


def show() -> None:
    with _run.running(app, "--concurrency=3", beat=True) as worker:
        _run.say("Beat sends the import twice a second; a run takes 1.2 s.")
        for run in (1, 2):
            _run.wait_until(lambda n=run: _run.notes().count("begins") >= n, "a run", worker)
            _run.say(f"Run {run} begins.")
            _run.wait_until(lambda n=run: _run.notes().count("ends") >= n, "its end", worker)
            _run.say(f"Run {run} ends.")
        skipped = worker.log(1000).count("is skipped")
        _run.say(f"{skipped} more were due in the meantime and were skipped.")
        for before, after in zip(_run.notes(), _run.notes()[1:], strict=False):
            if before == after:
                raise SystemExit("Error: two runs overlapped.")
        _run.say("No two runs overlapped.")


if __name__ == "__main__":
    _run.main(show)
