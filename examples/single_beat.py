"""Two beats, one of them active: kill -9 of the active one, and the other one goes on.

Each run is claimed on the lock server before it is sent, so none is sent twice, and the last runs
are there too, so the second beat continues where the first one stopped.

    python -m examples.single_beat
"""

import os
import time
from itertools import pairwise

from celery import Celery
from celery.beat import BeatLazyFunc

from examples import _run

REDIS = "redis://localhost:6379/0"
EVERY = 0.5
app = Celery("examples.single_beat", broker=REDIS, backend=REDIS)
app.conf.beat_scheduler = "celery_locks.beat:SingleBeat"
app.conf.locks_beat_ttl = 2
app.conf.beat_schedule = {
    "tick": {
        "task": "examples.single_beat.tick",
        "schedule": EVERY,
        "args": [BeatLazyFunc(os.getpid), BeatLazyFunc(time.time)],
    }
}


@app.task
def tick(beat: int, sent_at: float) -> None:
    _run.note(f"{beat} {sent_at}")


def sent_by(pid: int) -> list[float]:
    """Return the times at which this beat sent."""
    return [float(note.split()[1]) for note in _run.notes() if note.startswith(f"{pid} ")]


def show() -> None:
    with (
        _run.running(app, "--concurrency=1") as worker,
        _run.running_beat(app) as first,
        _run.running_beat(app) as second,
    ):
        _run.wait_until(lambda: len(_run.notes()) >= 4, "some runs", worker, 30)
        active, other = (first, second) if sent_by(first.pid) else (second, first)
        _run.say(f"Beat 1 has sent {len(_run.notes())} runs. Beat 2 has sent none; it stands by.")
        active.kill()
        _run.say("kill -9 of beat 1.")
        _run.wait_until(lambda: len(sent_by(other.pid)) >= 3, "beat 2", other, 30)
        gap = sent_by(other.pid)[0] - sent_by(active.pid)[-1]
        _run.say(f"Beat 2 goes on: its first run came {gap:.1f} s after the last one of beat 1.")
        times = sent_by(active.pid) + sent_by(other.pid)
        if any(later - earlier < EVERY * 0.5 for earlier, later in pairwise(times)):
            raise SystemExit(f"Error: a run was sent twice: {times}")
        _run.say("No run was sent twice.")


if __name__ == "__main__":
    _run.main(show)
