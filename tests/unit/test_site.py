"""URLs and clients become sites; wrong ones are refused without showing a password."""

from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio

from celery_locks.errors import LockUsageError
from celery_locks.store.resp import pack
from celery_locks.store.site import Site, from_client, from_url


@pytest.mark.parametrize(
    ("url", "addresses", "transport", "kwargs"),
    [
        ("redis://", (("localhost", 6379),), "tcp", {}),
        ("redis://h:1/2", (("h", 1),), "tcp", {"db": 2}),
        ("redis://u:p%40@h", (("h", 6379),), "tcp", {"username": "u", "password": "p@"}),
        ("rediss://h?ssl_cert_reqs=none", (("h", 6379),), "tls", {"ssl_cert_reqs": "none"}),
        ("redis://[::1]:7", (("::1", 7),), "tcp", {}),
        (
            "unix:///tmp/x.sock?db=1",
            (("/tmp/x.sock", 0),),
            "unix",
            {"path": "/tmp/x.sock", "db": 1},
        ),
    ],
)
def test_single_url(url: str, addresses: Any, transport: str, kwargs: dict[str, Any]) -> None:
    site = from_url(url)
    assert (site.shape, site.addresses, site.transport) == ("single", addresses, transport)
    assert {k: v for k, v in site.kwargs.items() if v not in (0, None)} == kwargs


def test_sentinel_url() -> None:
    site = from_url("redis+sentinel://u:p@a:1,b:2/mymaster/3")
    assert (site.shape, site.service) == ("sentinel", "mymaster")
    assert site.addresses == (("a", 1), ("b", 2))
    assert (site.kwargs["username"], site.kwargs["password"], site.kwargs["db"]) == ("u", "p", 3)
    assert site.sentinel_kwargs == {}, "the servers' password is not the sentinels'"


def test_sentinel_url_with_tls_trusts_alike() -> None:
    site = from_url("rediss+sentinel://:p@a:1/m?ssl_ca_certs=/ca.pem")
    assert site.transport == "tls"
    assert site.sentinel_kwargs == {"ssl_ca_certs": "/ca.pem"}


def test_cluster_url() -> None:
    site = from_url("rediss+cluster://:p@a,b:2/")
    assert (site.shape, site.transport) == ("cluster", "tls")
    assert site.addresses == (("a", 6379), ("b", 2))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://host",
        "redis:/host",
        "redis://host:port",
        "redis+sentinel://host:1",
        "redis+sentinel:///mymaster",
        "redis+cluster://",
        "redis+cluster://[::1",
        "redis+raft://h",
        "unix+sentinel://h/m",
    ],
)
def test_url_that_is_refused(url: str) -> None:
    with pytest.raises(LockUsageError, match=r"lock server URL|must name its hosts"):
        from_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://u:secret@h",
        "u:secret@h:1",
        "redis://:secret@h:port",
        "redis://:secr/et@h",
        "redis://h:x?password=secret",
        "redis+sentinel://:secret@h",
        "redis+cluster://u:secret@[::1",
        "amqp://h?password=secret",
    ],
)
def test_password_is_not_in_the_message(url: str) -> None:
    """It ends in logs and error trackers."""
    with pytest.raises(LockUsageError) as caught:
        from_url(url)
    message = f"{caught.value} {caught.value.__cause__}"
    assert "secr" not in message


def test_site_says_where_but_not_the_password() -> None:
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
    site = from_client(client)
    assert site
    assert (site.addresses, site.transport) == ((("h", 5),), "tcp")
    assert {k: v for k, v in site.kwargs.items() if k in ("db", "username", "password")} == {
        "db": 2,
        "username": "u",
        "password": "p",
    }
    assert not {"decode_responses", "socket_timeout", "retry"} & site.kwargs.keys()


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_client_over_tls_and_unix(module: Any) -> None:
    tls = from_client(module.Redis.from_url("rediss://h?ssl_cert_reqs=none"))
    unix = from_client(module.Redis(unix_socket_path="/x.sock"))
    assert tls
    assert unix
    assert (tls.transport, unix.transport) == ("tls", "unix")
    assert unix.addresses == (("/x.sock", 0),)


@pytest.mark.parametrize("client", [fakeredis.FakeRedis(), fakeredis.FakeAsyncRedis()])
def test_client_without_sockets_has_no_site(client: Any) -> None:
    assert from_client(client) is None


@pytest.mark.parametrize("client", [None, "redis://h", object()])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(LockUsageError, match="no redis-py client"):
        from_client(client)


@pytest.mark.parametrize("asyncio", [False, True])
def test_connection_has_our_timeouts(asyncio: bool) -> None:
    site = Site("single", (("h", 1),), {"password": "p"})
    connection = site.connection(("h", 1), 0.7, asyncio=asyncio)
    assert (connection.host, connection.port) == ("h", 1)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.7, 0.7)


def test_connection_to_a_sentinel_has_the_sentinels_login() -> None:
    site = Site(
        "sentinel", (("s", 1),), {"password": "p"}, service="m", sentinel_kwargs={"password": "q"}
    )
    assert site.greetings(("s", 1)) == [pack("AUTH", "q")]
    assert site.greetings(("primary", 1)) == [pack("AUTH", "p")]
    assert site.connection(("primary", 1), 1).password is None, "redis-py would say it again"


def test_greetings_are_login_name_and_database() -> None:
    site = from_url("redis://u:p@h/3?client_name=me")
    said = [pack("AUTH", "u", "p"), pack("CLIENT", "SETNAME", "me"), pack("SELECT", 3)]
    assert site.greetings(("h", 6379)) == said
    assert from_url("redis://h/0").greetings(("h", 6379)) == []
