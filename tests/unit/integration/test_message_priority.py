"""The rank of a message: which number comes first depends on the broker."""

import json

import pytest
from celery import Celery

from celery_locks.integration.message_priority import rank_of

REDIS = ("redis://", "rediss://", "sentinel://", "redis+socket:///tmp/redis.sock")


def rank(broker: str, priority: object) -> int:
    with Celery("ranks", broker=broker, set_as_current=False) as app:
        return rank_of(app, json.dumps({"priority": priority}))


@pytest.mark.parametrize("broker", REDIS)
def test_with_redis_the_lowest_number_comes_first(broker: str) -> None:
    """kombu reads the list of priority 0 before the others."""
    assert rank(broker, 0) > rank(broker, 3) > rank(broker, 9)
    assert rank(broker, None) == rank(broker, 0) == 0


@pytest.mark.parametrize("broker", ["amqp://", "pyamqp://", "memory://"])
def test_with_other_brokers_the_highest_number_comes_first(broker: str) -> None:
    """So says AMQP, and kombu for its own transports."""
    assert rank(broker, 255) > rank(broker, 9) > rank(broker, 3)
    assert rank(broker, None) == rank(broker, 0) == 0


@pytest.mark.parametrize("priority", ["3", 2.5, [], 300, -1])
def test_rank_of_a_strange_priority_is_bounded(priority: object) -> None:
    """A rank beyond 255 would reach into the tickets of another year."""
    assert -255 <= rank("amqp://", priority) <= 255
