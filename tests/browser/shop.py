"""A shop's tasks, for the pictures of the page: each holds a lock until its time is over."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_locks import LockedTask

URL_VARIABLE = "CELERY_LOCKS_SHOP_URL"
STOCK_QUEUE = "stock"
# Task → its ttl.
TTLS = {
    "shop.billing.tasks.charge": 30,
    "shop.billing.tasks.pay_out": 30,
    "shop.billing.tasks.handle_event": 15,
    "shop.reports.tasks.build_daily": 60,
    "shop.search.tasks.reindex": 60,
    "shop.catalogue.tasks.import_catalogue": 60,
    "shop.media.tasks.thumbnail": 15,
    "shop.crm.tasks.merge_customers": 15,
    "shop.stock.tasks.recount": 60,
}

app = Celery("shop", broker=os.environ.get(URL_VARIABLE, "redis://"), set_as_current=False)
app.conf.update(locks_show_arguments=True, task_routes={"shop.stock.*": {"queue": STOCK_QUEUE}})


def run(lock: str, seconds: float = 600.0, **more: Any) -> None:
    time.sleep(seconds)


def name_itself(lock: str, *args: Any, **kwargs: Any) -> str:
    return lock


for name, ttl in TTLS.items():
    app.task(
        run, name=name, base=LockedTask, lock_key=name_itself, lock_ttl=ttl, lock_on_conflict="wait"
    )
app.task(run, name="shop.exports.tasks.export", base=LockedTask, lock_key=name_itself, lock_limit=4)
