"""URLs of servers; wrong ones are refused without showing a password."""

from typing import Any

import pytest

from celery_locks.errors import LockUsageError
from celery_locks.store.url import from_url


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
    config = from_url(url)
    assert (config.topology, config.addresses, config.transport) == ("single", addresses, transport)
    given = {k: v for k, v in config.kwargs.items() if k not in ("host", "port")}
    assert {k: v for k, v in given.items() if v not in (0, None)} == kwargs


def test_sentinel_url() -> None:
    config = from_url("redis+sentinel://u:p@a:1,b:2/mymaster/3")
    assert (config.topology, config.service) == ("sentinel", "mymaster")
    assert config.addresses == (("a", 1), ("b", 2))
    assert (config.kwargs["username"], config.kwargs["password"], config.kwargs["db"]) == (
        "u",
        "p",
        3,
    )
    assert config.sentinel_kwargs == {}, "the servers' password is not the sentinels'"


def test_sentinel_url_with_tls_trusts_alike() -> None:
    config = from_url("rediss+sentinel://:p@a:1/m?ssl_ca_certs=/ca.pem")
    assert config.transport == "tls"
    assert config.sentinel_kwargs == {"ssl_ca_certs": "/ca.pem"}


def test_cluster_url() -> None:
    config = from_url("rediss+cluster://:p@a,b:2/")
    assert (config.topology, config.transport) == ("cluster", "tls")
    assert config.addresses == (("a", 6379), ("b", 2))


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
        "redis://:secret",
        "redis://:secr/et",
        "redis://:secr#et@h",
        "redis://:12?secret@h",
        "redis+sentinel://:secr/et@h1:26379/m/0",
        "redis+sentinel://:secr#et@h1:26379/m/0",
        "redis+cluster://:secr/et@h",
        "redis+cluster://:secret",
        "sentinel://:secr/et@h1:26379/0",
        "sentinel://:secr;et@h1:26379/0",
        "sentinel://:12#secret@h1",
        "sentinel://:secret",
        "sentinel://[secret",
        "unix://:secr/et@/tmp/x.sock",
        "redis+socket://:secr/et@/tmp/x.sock",
        "secret",
    ],
)
def test_password_is_not_in_the_message(url: str) -> None:
    """It ends in logs and error trackers."""
    with pytest.raises(LockUsageError) as caught:
        from_url(url, {"master_name": "m"})
    message = f"{caught.value} {caught.value.__cause__}"
    assert "secr" not in message
    assert "12" not in message


def test_max_connections_of_a_url_holds() -> None:
    assert from_url("redis://h?max_connections=4").max_connections == 4
    assert from_url("redis+cluster://h?max_connections=4").max_connections == 4
    assert from_url("redis://h").max_connections == 0
