"""The other ways to a server: a unix socket, and TLS with certificates of an authority of our own.

How TLS is asked for in Celery's settings, each time with kombu or Celery's backend as the control.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
import redis.exceptions
from celery import Celery

from celery_locks import AsyncLocks, Locks, LockUnavailable
from celery_locks.clock import now
from celery_locks.errors import ServerRefused
from celery_locks.store.bounded_connection import DeadlineSocket, close_without_loop
from celery_locks.store.url import from_url
from tests.servers.embedded import EmbeddedServer
from tests.support.tls import Authority, TlsSentinel, TlsServer

PASSWORD = "S3cretPw"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transports")


@pytest.fixture(scope="module")
def socket_url(folder: Path, no_server_left: None) -> Iterator[str]:
    path = folder / "s"
    with EmbeddedServer({"unixsocket": str(path)}):
        yield f"unix://{path}?db=1"


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder / "ca")


@pytest.fixture(scope="module")
def server(authority: Authority, no_server_left: None) -> Iterator[TlsServer]:
    with TlsServer(authority) as server:
        yield server


@pytest.fixture(scope="module")
def tls_url(server: TlsServer, authority: Authority) -> str:
    return f"rediss://127.0.0.1:{server.tls_port}/0?ssl_ca_certs={authority.certificate}"


@pytest.fixture(scope="module")
def tcp_url(server: TlsServer) -> str:
    return server.url


@pytest.fixture
def trusted(authority: Authority) -> dict[str, Any]:
    """``broker_use_ssl`` as Celery's documentation writes it."""
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": str(authority.certificate)}


@contextmanager
def app_with(**conf: Any) -> Iterator[Celery]:
    app = Celery(set_as_current=False)
    app.conf.update(conf)
    yield app
    app.close()


def take_one(locks: Locks) -> None:
    with locks.hold("a", ttl=30):
        assert locks.is_locked("a")
    locks.close()


@pytest.mark.parametrize("way", ["socket_url", "tls_url"])
async def test_both_faces_lock_over_it(way: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(way)
    locks, awaited = Locks.from_url(url), AsyncLocks.from_url(url)
    with locks.hold("a") as lease:
        lease.renew()
        assert await awaited.acquire("a") is None
    async with awaited.hold("a") as other:
        assert other.fence > lease.fence
        assert locks.acquire("a") is None
    locks.close()
    await awaited.close()


@pytest.mark.parametrize("way", ["socket_url", "tls_url", "tcp_url"])
def test_connection_of_an_ended_loop_can_be_closed(
    way: str, request: pytest.FixtureRequest
) -> None:
    """It takes private attributes of redis-py and asyncio: what they left open would warn."""
    config = from_url(request.getfixturevalue(way))
    connection = config.connection(config.addresses[0], None, asyncio=True)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(connection.connect())
    sock = connection._writer.get_extra_info("socket")
    loop.close()
    close_without_loop(connection)
    assert sock.fileno() == -1
    assert not connection.is_connected
    del connection, loop
    gc.collect()


@pytest.mark.parametrize("way", ["socket_url", "tls_url", "tcp_url"])
def test_closed_locks_leave_no_socket_to_a_loop_that_ends(
    way: str, request: pytest.FixtureRequest
) -> None:
    """The end of TLS takes a reply of the server, for which the loop does not wait."""
    locks = AsyncLocks.from_url(request.getfixturevalue(way))
    with asyncio.Runner() as runner:
        runner.run(locks.info("a"))
        [connection] = locks._store._by_loop[runner.get_loop()].driver._connections
        sock = connection._writer.get_extra_info("socket")
        runner.run(locks.close())
        assert sock.fileno() == -1


@pytest.mark.parametrize("way", ["socket_url", "tls_url", "tcp_url"])
def test_blocking_connection_has_our_socket(way: str, request: pytest.FixtureRequest) -> None:
    """It takes ``_connect`` of redis-py: without our socket nothing would bound an exchange."""
    config = from_url(request.getfixturevalue(way))
    connection = config.connection(config.addresses[0], 5)
    connection.state.deadline = now() + 5
    connection.connect()
    assert isinstance(connection._sock, DeadlineSocket)
    connection.state.deadline = now()
    with pytest.raises(redis.exceptions.TimeoutError):
        connection.read_response()
    connection.disconnect()


def test_tls_of_the_broker_is_ours(server: TlsServer, trusted: dict[str, Any]) -> None:
    """``redis://`` and ``broker_use_ssl``: kombu speaks TLS there, and so do the locks."""
    url = f"redis://127.0.0.1:{server.tls_port}/0"
    with app_with(broker_url=url, broker_use_ssl=trusted) as app:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1)
        take_one(Locks.from_app(app))


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_tls_of_the_result_backend_is_ours(
    server: TlsServer, trusted: dict[str, Any], scheme: str
) -> None:
    url = f"{scheme}://127.0.0.1:{server.tls_port}/0"
    conf = {"broker_url": "memory://", "result_backend": url, "redis_backend_use_ssl": trusted}
    with app_with(**conf) as app:
        try:
            app.backend.client.ping()
        except ValueError as error:  # Celery 5.5 wants rediss:// beside redis_backend_use_ssl
            pytest.skip(f"This Celery refuses the URL: {error}")
        take_one(Locks.from_app(app))
        # Its close() leaves open what is in a pool of Celery's: a socket for the garbage collector.
        app.backend.client.connection_pool.disconnect()


def test_locks_url_on_the_same_server_has_its_tls(
    server: TlsServer, trusted: dict[str, Any]
) -> None:
    """Only the database differs: a password would else go to the same port in clear."""
    url = f"redis://127.0.0.1:{server.tls_port}"
    conf = {"broker_url": f"{url}/0", "broker_use_ssl": trusted, "locks_url": f"{url}/3"}
    with app_with(**conf) as app:
        take_one(Locks.from_app(app))


@pytest.fixture
def eavesdropper() -> Iterator[tuple[int, list[bytes]]]:
    """A port, and the first bytes of each connection to it."""
    heard: list[bytes] = []

    def listen() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    heard.append(connection.recv(4096))

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(2)  # closing alone leaves accept() waiting
    thread.join(10)


@pytest.mark.parametrize("option", ["broker_use_ssl", "redis_backend_use_ssl"])
def test_no_password_is_sent_in_clear(
    eavesdropper: tuple[int, list[bytes]], trusted: dict[str, Any], option: str
) -> None:
    """Whoever listens between worker and server hears the greeting of TLS and nothing else."""
    port, heard = eavesdropper
    url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    broker = url if option == "broker_use_ssl" else "memory://"
    conf: dict[str, Any] = {"broker_url": broker, "result_backend": url, option: trusted}
    with app_with(**conf) as app, pytest.raises(LockUnavailable):
        Locks.from_app(app).info("a")  # leaves nothing that would be tried again later
    assert heard
    assert all(first[:1] == b"\x16" for first in heard), "a TLS record of a handshake"
    assert not any(PASSWORD.encode() in first for first in heard)


@pytest.mark.parametrize("of_sentinel", ["plain", "tls"])
def test_tls_behind_a_sentinel(
    server: TlsServer, authority: Authority, trusted: dict[str, Any], of_sentinel: str
) -> None:
    """As kombu does: TLS to the primary by ``broker_use_ssl``, to sentinels by their own kwargs."""
    with TlsSentinel(authority, server) as sentinel:
        options: dict[str, Any] = {"master_name": "mymaster"}
        port = sentinel.port
        if of_sentinel == "tls":
            port = sentinel.tls_port
            options["sentinel_kwargs"] = {"ssl": True, **trusted}
        conf = {
            "broker_url": f"sentinel://127.0.0.1:{port}/0",
            "broker_transport_options": options,
            "broker_use_ssl": trusted,
        }
        with app_with(**conf) as app:
            with app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1)
            take_one(Locks.from_app(app))


def test_tls_by_our_own_sentinel_url(server: TlsServer, authority: Authority) -> None:
    """``rediss+sentinel://`` is TLS to both."""
    with TlsSentinel(authority, server) as sentinel:
        query = f"?ssl_ca_certs={authority.certificate}"
        url = f"rediss+sentinel://127.0.0.1:{sentinel.tls_port}/mymaster/0{query}"
        take_one(Locks.from_url(url))


@pytest.fixture
def strict(authority: Authority, no_server_left: None) -> Iterator[TlsServer]:
    """It wants a certificate of each client."""
    with TlsServer(authority, {"tls-auth-clients": "yes"}) as server:
        yield server


def test_client_certificate_is_shown(
    strict: TlsServer, authority: Authority, trusted: dict[str, Any]
) -> None:
    """In a URL and in Celery's settings; without one the error says what to set."""
    mine = authority.issue("client")
    url = f"rediss://127.0.0.1:{strict.tls_port}/0?ssl_ca_certs={authority.certificate}"
    query = "&".join(f"{word}={path}" for word, path in mine.items())
    take_one(Locks.from_url(f"{url}&{query}"))
    plain = f"redis://127.0.0.1:{strict.tls_port}/0"
    with app_with(broker_url=plain, broker_use_ssl={**trusted, **mine}) as app:
        take_one(Locks.from_app(app))
    with pytest.raises(LockUnavailable, match=r"client certificate.* ssl_certfile"):
        Locks.from_url(url).acquire("a", ttl=3)


def test_a_certificate_of_another_authority_is_refused(tls_url: str, folder: Path) -> None:
    """It is nobody's passing trouble: the error is final and says what to set."""
    other = Authority(folder / "other")
    for url in (tls_url.split("?")[0], f"{tls_url.split('?')[0]}?ssl_ca_certs={other.certificate}"):
        with pytest.raises(ServerRefused, match="not trusted here; set ssl_ca_certs") as caught:
            Locks.from_url(url).acquire("a", ttl=3)
        assert caught.value.is_permanent


async def test_a_certificate_of_another_host_is_refused(tls_url: str) -> None:
    """It is trusted, but made for 127.0.0.1: whoever has it could stand in for any server."""
    url = tls_url.replace("127.0.0.1", "localhost")
    with pytest.raises(ServerRefused, match="not trusted here"):
        Locks.from_url(url).acquire("a", ttl=3)
    awaited = AsyncLocks.from_url(url)
    with pytest.raises(ServerRefused, match="not trusted here"):
        await awaited.acquire("a", ttl=3)
    await awaited.close()
    take_one(Locks.from_url(f"{url}&ssl_check_hostname=false"))


def test_a_missing_file_is_no_outage(tls_url: str) -> None:
    url = tls_url.split("?")[0]
    with pytest.raises(ServerRefused, match=r"a file of ssl_ca_certs.* cannot be used"):
        Locks.from_url(f"{url}?ssl_ca_certs=/no/such/file").acquire("a", ttl=3)


def test_plain_text_to_a_tls_port_names_the_cure(server: TlsServer) -> None:
    """The server only closes the connection; what that may mean has to be said by us."""
    with pytest.raises(LockUnavailable, match="write rediss://"):
        Locks.from_url(f"redis://127.0.0.1:{server.tls_port}").acquire("a", ttl=3)
