"""What the engine's faults need: servers that may be broken, both faces, and a clean keeper."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_locks.core.renewer import renewer
from tests.servers.embedded import EmbeddedServer
from tests.support.faces import FACES, LeaseBackend
from tests.support.news import News
from tests.support.proxy import Proxy
from tests.support.stalls import measure_stalls

Open = Callable[..., Any]


@pytest.fixture(autouse=True)
def empty_keeper() -> Iterator[None]:
    """What a test leaves held would be renewed, on a server that is gone, during the next one."""
    yield
    for token in renewer.tokens:
        renewer.discard(token)
    renewer._pending_releases.clear()


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A Valkey of the test's own, to break."""
    with EmbeddedServer() as one:
        yield one


@pytest.fixture
def own_redis() -> Iterator[EmbeddedServer]:
    """A Redis of the test's own."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip(
            "No redis-server on the PATH; the shared fixture redis_server fails for it in CI."
        )
    with EmbeddedServer(binary=binary) as one:
        yield one


@pytest.fixture(params=["valkey", "redis_server"])
def either(request: pytest.FixtureRequest) -> EmbeddedServer:
    """A server to break, of either kind."""
    name = {"valkey": "server", "redis_server": "own_redis"}[request.param]
    return request.getfixturevalue(name)


@pytest.fixture
def proxy(valkey: EmbeddedServer) -> Iterator[Proxy]:
    """A network to break in front of the shared, emptied Valkey."""
    valkey.flush()
    with Proxy(valkey.host, valkey.port) as one:
        yield one


def _opener(kinds: dict[str, Any], kind: str) -> Iterator[Open]:
    opened: list[LeaseBackend] = []

    def open_face(url: str, **layout: Any) -> LeaseBackend:
        opened.append(kinds[kind](url, **layout))
        return opened[-1]

    yield open_face
    for face in opened:
        face.close()


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Open]:
    """``face(url)`` opens locks, once with ``Locks`` and once with ``AsyncLocks``."""
    yield from _opener(FACES, request.param)


@pytest.fixture
def both() -> Iterator[Callable[..., list[Any]]]:
    """``both(url)`` opens both faces, for faults that are too slow to be made twice."""
    opened: list[LeaseBackend] = []

    def open_both(url: str, **layout: Any) -> list[Any]:
        opened.extend(made := [kind(url, **layout) for kind in FACES.values()])
        return made

    yield open_both
    for face in opened:
        face.close()


@pytest.fixture
def locks() -> Iterator[Open]:
    """``locks(url)`` opens ``Locks``, behind the same verbs."""
    yield from _opener(FACES, "sync")


@pytest.fixture
def news() -> Iterator[News]:
    with News() as one:
        yield one


@pytest.fixture
def stalled() -> Iterator[Callable[[], float]]:
    """``stalled()``: the seconds that a bound on time must forgive a busy machine."""
    with measure_stalls() as seconds:
        yield seconds
