"""How to connect, from a URL or a client of the user's."""

from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio

from celery_locks.errors import LockUsageError
from celery_locks.store.server_config import ServerConfig, from_client
from celery_locks.store.url import from_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@h:1", "redis://h:1/0"),
        ("rediss://u:secret@h/3?ssl_ca_certs=/ca", "rediss://h:6379/3"),
        ("unix://:secret@/tmp/x.sock?db=2", "unix:///tmp/x.sock?db=2"),
        ("redis+cluster://:secret@h:1,i:2", "redis+cluster://h:1,i:2/"),
        ("rediss+sentinel://:secret@h:1,i:2/m/4", "rediss+sentinel://h:1,i:2/m/4"),
    ],
)
def test_config_as_a_url_has_no_password(url: str, shown: str) -> None:
    """It is what a worker writes into its log when it starts."""
    config = from_url(url)
    assert config.url == shown
    assert "secret" not in repr(config)


def test_config_says_where_but_not_the_password() -> None:
    assert str(from_url("redis://:secret@h:1")) == "lock server at h:1"
    assert str(from_url("redis+cluster://:secret@h:1,i:2")) == "cluster lock server at h:1, i:2"


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_client_gives_where_and_who(module: Any) -> None:
    client = module.Redis(
        host="h",
        port=5,
        db=2,
        username="u",
        password="p",
        decode_responses=True,
        socket_timeout=9,
    )
    config = from_client(client)
    assert config
    assert (config.addresses, config.transport) == ((("h", 5),), "tcp")
    assert {k: v for k, v in config.kwargs.items() if k in ("db", "username", "password")} == {
        "db": 2,
        "username": "u",
        "password": "p",
    }
    assert not {"socket_timeout", "retry"} & config.kwargs.keys()


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_client_over_tls_and_unix(module: Any) -> None:
    tls = from_client(module.Redis.from_url("rediss://h?ssl_cert_reqs=none"))
    unix = from_client(module.Redis(unix_socket_path="/x.sock"))
    assert tls
    assert unix
    assert (tls.transport, unix.transport) == ("tls", "unix")
    assert unix.addresses == (("/x.sock", 0),)


@pytest.mark.parametrize("client", [fakeredis.FakeRedis(), fakeredis.FakeAsyncRedis()])
def test_client_without_sockets_is_in_process(client: Any) -> None:
    assert from_client(client).is_in_process
    assert not from_client(redis.Redis()).is_in_process


@pytest.mark.parametrize("client", [None, "redis://:secret@h", object()])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(LockUsageError, match="no redis-py client") as caught:
        from_client(client)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("asyncio", [False, True])
def test_connection_has_our_timeouts(asyncio: bool) -> None:
    config = ServerConfig("single", (("h", 1),), {"password": "p"})
    connection = config.connection(("h", 1), 0.7, asyncio=asyncio)
    assert (connection.host, connection.port) == ("h", 1)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.7, 0.7)


def test_connection_to_a_sentinel_has_the_sentinels_login() -> None:
    config = ServerConfig(
        "sentinel", (("s", 1),), {"password": "p"}, service="m", sentinel_kwargs={"password": "q"}
    )
    assert config.connection(("s", 1), 1).password == "q"
    assert config.connection(("primary", 1), 1).password == "p"


CA = {"ssl_ca_certs": "/ca"}


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h?ssl_ca_certs=/ca", {}),
        ("redis://h", CA),
        ("redis://h?ssl=true", {}),
        ("redis+cluster://h", CA),
        ("redis+sentinel://h/m", CA),
        ("redis+sentinel://h/m", {"sentinel_kwargs": CA}),
        ("unix:///x.sock", CA),
        ("unix:///x.sock", {"ssl": True}),
    ],
)
def test_options_of_tls_without_tls_are_refused(url: str, options: dict[str, Any]) -> None:
    """Dropped, they would leave a password in clear that was meant to be encrypted."""
    with pytest.raises(LockUsageError, match="rediss://"):
        from_url(url, options)


def test_tls_of_the_options_is_spoken_to_the_server() -> None:
    """``broker_use_ssl`` beside ``redis://``: kombu speaks TLS there, so must we."""
    config = from_url("redis://:p@h", {"ssl": True, "ssl_cert_reqs": "CERT_REQUIRED", **CA})
    assert config.transport == "tls"
    assert isinstance(config.connection(("h", 6379), 1), redis.SSLConnection)
    assert (config.kwargs["ssl_ca_certs"], config.kwargs["ssl_cert_reqs"]) == ("/ca", "required")


@pytest.mark.parametrize(
    ("url", "options", "server", "sentinel"),
    [
        ("sentinel://s:1", {"ssl": True, **CA}, "tls", "tcp"),
        ("sentinel://s:1", {"sentinel_kwargs": {"ssl": True, **CA}}, "tcp", "tls"),
        ("sentinel://s:1", {"ssl": True, "sentinel_kwargs": {"ssl": True}}, "tls", "tls"),
        ("sentinel://s:1", {}, "tcp", "tcp"),
        ("rediss+sentinel://s:1/m", {"sentinel_kwargs": {"password": "q"}}, "tls", "tls"),
    ],
)
def test_tls_to_sentinels_is_asked_for_apart(
    url: str, options: dict[str, Any], server: str, sentinel: str
) -> None:
    """As with kombu: TLS of the broker is the primary's, ``sentinel_kwargs`` are the sentinels'."""
    config = from_url(url, {"master_name": "m", **options})
    kinds = [isinstance(config.connection(a, 1), redis.SSLConnection) for a in (("p", 2), ("s", 1))]
    assert kinds == [server == "tls", sentinel == "tls"]


def test_client_of_sentinels_keeps_both_transports() -> None:
    from redis.sentinel import Sentinel

    made = Sentinel([("s", 1)], ssl=True)  # type: ignore[no-untyped-call]
    config = from_client(made.master_for("m"))
    assert config
    assert (config.transport, config.sentinel_transport) == ("tls", "tcp")


@pytest.mark.parametrize("asyncio", [False, True])
@pytest.mark.parametrize(
    ("query", "checked"),
    [("", True), ("?ssl_cert_reqs=none", None), ("?ssl_check_hostname=false", False)],
)
def test_host_name_is_checked_with_any_redis_py(
    query: str, checked: bool | None, asyncio: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py before 6 takes a certificate of any host for that of the server."""
    given: dict[str, Any] = {}
    module: Any = redis.asyncio.connection if asyncio else redis.connection

    class Recorder(module.SSLConnection):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            given.update(kwargs)
            super().__init__(**kwargs)

    monkeypatch.setattr(module, "SSLConnection", Recorder)
    from_url(f"rediss://h{query}").connection(("h", 6379), 1, asyncio=asyncio)
    assert given.get("ssl_check_hostname") is checked


class LoggingConnection(redis.Connection):
    """A user's own class, with an argument of its own."""

    def __init__(self, *, label: str = "", **kwargs: Any) -> None:
        self.label = label
        super().__init__(**kwargs)


def connect_func(connection: Any) -> None: ...


def test_connection_class_and_hook_of_the_client_are_used() -> None:
    """They may log in in a way of their own: without them we would not get in."""
    pool = redis.ConnectionPool(
        connection_class=LoggingConnection,
        label="x",
        redis_connect_func=connect_func,
        max_connections=7,
        retry_on_timeout=True,
        health_check_interval=3,
    )
    config = from_client(redis.Redis(connection_pool=pool))
    connection = config.connection(("localhost", 6379), 1)
    assert isinstance(connection, LoggingConnection)
    assert (connection.label, connection.redis_connect_func) == ("x", connect_func)
    assert connection.health_check_interval == 0
    assert config.max_connections == 7


def test_class_of_an_async_client_is_not_used_by_the_blocking_store() -> None:
    """Its leases are renewed by a thread, which cannot await."""

    async def hook(connection: Any) -> None: ...

    client = redis.asyncio.Redis(host="h", password="p", redis_connect_func=hook)
    connection = from_client(client).connection(("h", 6379), 1)
    assert isinstance(connection, redis.Connection)
    assert (connection.password, connection.redis_connect_func) == ("p", None)
