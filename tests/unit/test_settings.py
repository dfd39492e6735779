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
    values = of()
    assert values == Settings("redis://here/1")
    assert values.keep_invisible is True
    assert values.task == {}


def test_settings_of_tasks_are_their_options() -> None:
    values = of(locks_ttl=5, locks_on_conflict="wait", locks_wait=3)
    assert values.task == {"ttl": 5, "on_conflict": "wait", "wait": 3}


def test_settings_take_what_is_said() -> None:
    values = of(
        locks_url="redis://there/2",
        locks_prefix="shop",
        locks_shards=4,
        locks_keep_invisible=False,
        locks_done_ttl=60,
        locks_guard_after_loss=False,
    )
    assert values == Settings("redis://there/2", {}, "shop", 4, False, 60, guard_after_loss=False)


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
    values = settings.of(app)
    assert (values.url, values.task) == ("redis://there/2", {"ttl": 7, "on_conflict": "requeue"})


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
    assert tls.url_options == {"ssl": True, "ssl_ca_certs": "/ca"}
    sentinel = of(
        broker_url="sentinel://s:26379",
        broker_transport_options={"master_name": "m", "visibility_timeout": 5},
    )
    assert sentinel.url_options == {"master_name": "m"}


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_use_ssl": {"ssl_ca_certs": "/ca"}},
        {
            "broker_url": "amqp://b",
            "result_backend": "redis://r",
            "redis_backend_use_ssl": {"ssl_ca_certs": "/ca"},
        },
        # The same server by another database, user or spelling.
        {"locks_url": "redis://u:p@here:6379/5", "broker_use_ssl": {"ssl_ca_certs": "/ca"}},
        {
            "broker_url": "sentinel://:p@s:1;sentinel://t:2",
            "locks_url": "redis+sentinel://s:1,t:2/m/1",
            "broker_use_ssl": {"ssl_ca_certs": "/ca"},
        },
    ],
)
def test_settings_with_tls_mean_tls(conf: dict[str, Any]) -> None:
    """kombu and Celery take a mapping for it whatever the scheme: so the password is encrypted."""
    assert of(**conf).url_options == {"ssl": True, "ssl_ca_certs": "/ca"}


def test_settings_of_another_server_are_not_taken_over() -> None:
    tls = {"ssl_ca_certs": "/ca"}
    assert of(locks_url="redis://there/1", broker_use_ssl=tls).url_options == {}
    assert of(broker_use_ssl={}).url_options == {}, "kombu is plain then"
    own = of(locks_url="redis://here/1", broker_use_ssl=tls, locks_url_options={"ssl": False})
    assert own.url_options == {"ssl": False}


@pytest.mark.parametrize("url", ["redis://here/1", "sentinel://here:1"])
def test_settings_refuse_tls_that_kombu_ignores(url: str) -> None:
    """``broker_use_ssl=True`` beside redis:// is plain text in kombu: nobody means that."""
    with pytest.raises(LockUsageError, match=r"broker_use_ssl is True, which kombu ignores"):
        of(broker_url=url, broker_use_ssl=True)


def test_settings_do_not_show_the_password() -> None:
    assert "secret" not in repr(of(broker_url="redis://:secret@here"))


@pytest.mark.parametrize("variable", ["CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"])
def test_settings_heed_celerys_variables(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples and many deployments name the server this way only."""
    monkeypatch.setenv(variable, "redis://elsewhere:7000/3")
    broker = "redis://here/0" if "BROKER" in variable else "amqp://here"
    app = Celery(broker=broker, set_as_current=False)
    assert settings.of(app).url == "redis://elsewhere:7000/3"
