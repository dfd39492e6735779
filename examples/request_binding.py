"""Two instances of a scheduler get the same request id, from a client's retry: one job.

``claim`` binds the id to a job in one atomic step; the first caller creates the job.
``claim_or_create`` is for a job that has no name before it is created: the lock is held only during
the creation, the acquire looks for the binding again, and the release writes it.

    python -m examples.request_binding
"""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from celery_locks import Locks
from celery_locks.recipes import claim, claim_or_create
from examples import _run
from tests.servers.embedded import EmbeddedServer

made: list[str] = []


def reserve_a_node() -> str:
    """Do the slow part, once for a request."""
    time.sleep(0.1)
    made.append(f"job-{uuid.uuid4().hex[:8]}")
    return made[-1]


def fail() -> str:
    raise OSError("no node is free")


def show() -> None:
    with EmbeddedServer() as server, ThreadPoolExecutor(8) as pool:
        instances = [Locks.from_url(server.url) for _ in range(2)]
        start = threading.Barrier(8)

        def receive(number: int) -> tuple[bool, str]:
            start.wait()
            return claim_or_create(instances[number % 2], "request:r-1", reserve_a_node)

        answers = list(pool.map(receive, range(8)))
        jobs = {job for _, job in answers}
        created = sum(new for new, _ in answers)
        _run.say(f"8 requests with one id at two instances: {len(jobs)} job, {created} created it.")
        if jobs != set(made) or len(made) != 1:
            raise SystemExit(f"Error: the jobs {made} were created for one request.")

        began = time.perf_counter()
        claim_or_create(instances[1], "request:r-1", reserve_a_node)
        took = (time.perf_counter() - began) * 1000
        _run.say(f"A retry after that takes no lock: the same job in {took:.1f} ms.")

        try:
            claim_or_create(instances[0], "request:r-2", fail)
        except OSError as error:
            _run.say(f"A factory that raises ({error}) leaves no binding.")
        new, _ = claim_or_create(instances[1], "request:r-2", reserve_a_node)
        _run.say(f"The client retries at the other instance: created {new}.")

        jobs_named = [claim(locks, "request:r-3", f"job-{n}") for n, locks in enumerate(instances)]
        _run.say(f"With one atomic claim: {jobs_named[0]}, then {jobs_named[1]}.")
        for locks in instances:
            locks.close()


if __name__ == "__main__":
    _run.main(show)
