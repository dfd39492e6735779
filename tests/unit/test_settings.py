"""``app.conf`` to settings: names, defaults, namespaces, and where the locks are kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_locks import LockUsageError, settings
from celery_locks.settings import Settings


def of(**conf: Any) -> Settings:
    app = Celery(set_as_current=False)
    app.conf.update({"broker_url": "redis://here/1", **conf})
    return settings.of(app)


def test_settings_have_defaults() -> None:
    said = of()
    assert said == Settings("redis://here/1")
    assert said.keep_invisible is True
    assert said.task == {}


def test_settings_of_tasks_are_their_options() -> None:
    said = of(locks_ttl=5, locks_on_conflict="wait", locks_wait=3)
    assert said.task == {"ttl": 5, "on_conflict": "wait", "wait": 3}


def test_settings_take_what_is_said() -> None:
    said = of(
        locks_url="redis://there/2",
        locks_prefix="shop",
        locks_shards=4,
        locks_keep_invisible=False,
        locks_done_ttl=60,
    )
    assert said == Settings("redis://there/2", {}, "shop", 4, False, 60)


def test_settings_come_from_django_by_namespace() -> None:
    """``CELERY_LOCKS_TTL`` in Django's settings, as with every setting of Celery's own."""
    app = Celery(set_as_current=False)
    django = SimpleNamespace(
        CELERY_BROKER_URL="redis://here/1",
        CELERY_LOCKS_URL="redis://there/2",
        CELERY_LOCKS_TTL=7,
        CELERY_LOCKS_ON_CONFLICT="requeue",
    )
    app.config_from_object(django, namespace="CELERY")
    said = settings.of(app)
    assert (said.url, said.task) == ("redis://there/2", {"ttl": 7, "on_conflict": "requeue"})


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"locks_ttl": 0.1}, "app.conf.locks_…: ttl is 0.1 s"),
        ({"locks_on_conflict": "ignore"}, "app.conf.locks_…: on_conflict is 'ignore'; write"),
        ({"locks_limit": 0}, "app.conf.locks_…: limit"),
    ],
)
def test_settings_refuse_a_wrong_word(conf: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LockUsageError, match=sentence):
        of(**conf)


def test_settings_find_the_redis_there_is() -> None:
    """Broker first, then the result backend; with neither, a sentence says what to set."""
    assert of(broker_url="rediss://b/0").url == "rediss://b/0"
    assert of(broker_url="amqp://b", result_backend="redis://r/3").url == "redis://r/3"
    with pytest.raises(LockUsageError, match=r"set app.conf.locks_url = 'redis://…'"):
        of(broker_url="amqp://b", result_backend="rpc://")


def test_settings_take_over_how_the_broker_is_reached() -> None:
    tls = of(broker_url="rediss://b/0", broker_use_ssl={"ssl_ca_certs": "/ca", "other": 1})
    assert tls.url_options == {"ssl_ca_certs": "/ca"}
    sentinel = of(
        broker_url="sentinel://s:26379",
        broker_transport_options={"master_name": "m", "visibility_timeout": 5},
    )
    assert sentinel.url_options == {"master_name": "m"}
