"""Where the locks of a page are."""

from __future__ import annotations

from celery_locks import Locks
from celery_locks.web.context import WebContext


def test_location_says_where_the_locks_are_and_never_a_password() -> None:
    """Production and staging must not look the same; a screenshot must not give access."""
    locks = Locks.from_url("redis://ann:s3cret@redis.prod:6380/4", prefix="shop")
    where = WebContext.of(locks).location()
    assert where == {"app_name": None, "server": "redis.prod:6380", "db": 4, "prefix": "shop"}
    locks.close()
