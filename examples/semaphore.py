"""An external API that allows three calls at once, and six processes that would make more.

python -m examples.semaphore
"""

import time

from celery import Celery, group

from celery_locks import LockedTask, single_instance
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.semaphore", broker=REDIS, backend=REDIS)


@app.task(base=LockedTask)
@single_instance(key="geocoder", limit=3, on_conflict="wait", wait=30)
def locate(address: str) -> str:
    return geocoder(address)


def geocoder(address: str) -> str:
    """Stand for an external service, which notes each call."""
    _run.note("in")
    time.sleep(0.4)
    _run.note("out")
    return f"the coordinates of {address}"


def show() -> None:
    with _run.running(app, "--concurrency=6"):
        _run.say("Nine addresses, six processes, an API that allows three calls at once.")
        found = group(locate.s(f"{n} High Street") for n in range(1, 10)).delay().get(timeout=15)
        inside = [0]
        for line in _run.notes():
            inside.append(inside[-1] + (1 if line == "in" else -1))
        _run.say(f"{len(found)} addresses found.")
        _run.say(f"Number of calls at once, over time: {' '.join(map(str, inside[1:]))}")
        if max(inside) > 3:
            raise SystemExit("Error: more than three calls at once.")
        _run.say(f"At most {max(inside)} calls at once.")


if __name__ == "__main__":
    _run.main(show)
