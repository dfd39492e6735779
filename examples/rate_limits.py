"""Five tasks and a web API that share the rate of a supplier: five calls in a second.

The tasks are delayed to the start that is reserved for them. The API answers 429 with Retry-After.

    python -m examples.rate_limits
"""

import asyncio
import math
import os
import time
from typing import Any

import httpx
from celery import Celery, group
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from celery_locks import AsyncLocks, RateLimited, rate_limited
from examples import _run

REDIS = "redis://localhost:6379/0"
app = Celery("examples.rate_limits", broker=REDIS, backend=REDIS)


@app.task
@rate_limited("5/s", key="supplier")
def order(number: int) -> float:
    return time.time()


async def price(request: Request) -> JSONResponse:
    locks: AsyncLocks = request.app.state.locks
    try:
        await locks.throttle("supplier", "5/s", wait=0.5)
    except RateLimited as error:
        headers = {"Retry-After": str(math.ceil(error.retry_after))}
        return JSONResponse({"error": "too many requests"}, 429, headers)
    return JSONResponse({"price": 42})


async def ask(count: int) -> list[httpx.Response]:
    api: Any = Starlette(routes=[Route("/price", price)])
    api.state.locks = AsyncLocks.from_url(os.environ["CELERY_BROKER_URL"])
    transport = httpx.ASGITransport(api)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await asyncio.gather(*(client.get("/price") for _ in range(count)))
    finally:
        await api.state.locks.close()


def show() -> None:
    with _run.running(app, "--concurrency=2"):
        _run.say("Five tasks at once, for a supplier that allows five calls in a second.")
        starts = sorted(group(order.s(n) for n in range(5)).delay().get(timeout=30))
        _run.say(f"{len(starts)} orders, the last one {starts[-1] - starts[0]:.1f} s later.")
        if starts[-1] - starts[0] < 0.75:
            raise SystemExit("Error: five calls in less than four fifths of a second.")
    answers = asyncio.run(ask(10))
    served = sum(answer.status_code == 200 for answer in answers)
    refused = [answer for answer in answers if answer.status_code == 429]
    _run.say(f"Ten requests at once: {served} answered, {len(refused)} get 429.")
    _run.say(f"Retry-After: {refused[0].headers['Retry-After']} s.")


if __name__ == "__main__":
    _run.main(show)
