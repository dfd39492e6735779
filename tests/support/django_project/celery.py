"""The project's Celery app, current because it was the last to be made."""

import os

from celery import Celery

app = Celery("shop")
app.conf.update(
    broker_url=os.environ.get("SHOP_REDIS_URL", "memory://"),
    worker_enable_remote_control=bool(os.environ.get("SHOP_ASKS_WORKERS")),
    locks_ttl=60,
)
