"""The other two ways to a server: a unix socket, and TLS with a certificate of our own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_locks import AsyncLocks, Locks, LockUnavailable
from celery_locks.testing.servers import EmbeddedServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transports")


@pytest.fixture(scope="module")
def socket_url(folder: Path, no_server_left: None) -> Iterator[str]:
    path = folder / "s"
    with EmbeddedServer({"unixsocket": str(path)}):
        yield f"unix://{path}?db=1"


@pytest.fixture(scope="module")
def tls_url(folder: Path, redis_server: EmbeddedServer) -> Iterator[str]:
    """Debian's Redis speaks TLS; the embedded Valkey does not."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    settings = {
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }
    with EmbeddedServer(binary=shutil.which("redis-server")) as server:
        for name, value in settings.items():
            server.client().config_set(name, value)
        port = tls_port_of(server)
        yield f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"


def tls_port_of(server: EmbeddedServer) -> int:
    """The next port that nobody has."""
    for port in range(server.port + 1, server.port + 50):
        try:
            server.client().config_set("tls-port", port)
        except redis.ResponseError:
            continue
        return port
    raise AssertionError("no port for TLS")


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


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_url: str) -> None:
    locks = Locks.from_url(tls_url.split("?")[0])
    with pytest.raises(LockUnavailable, match=r"(?i)certificate"):
        locks.acquire("a", ttl=3)
