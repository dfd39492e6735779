"""Servers for all tests, each started once when a test first asks for it.

They are shared: a test that kills, pauses or reconfigures one starts its own instead
(`EmbeddedServer` in `tests.servers.embedded`, a Cluster or Sentinel in `several`).
"""

import gc
import logging
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.servers.embedded import EmbeddedServer
from tests.servers.fork_server import fork_server
from tests.servers.subprocesses import DIRECTORY_VARIABLE
from tests.servers.topologies import EmbeddedCluster, EmbeddedSentinel
from tests.support.processes import processes_in
from tests.support.rabbitmq import RabbitMQ, is_installed
from tests.support.waiting import wait_until

# A shell's background job ignores Ctrl-C, and so would every child that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Emptied = TypeVar("Emptied", EmbeddedServer, EmbeddedCluster, EmbeddedSentinel)


def pytest_collection_finish() -> None:
    """Leave the modules that are loaded by now out of every later collection: it is much faster."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Collect what a file's tests left open: the warning fails one of them, no test elsewhere."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    """Restore the root logger: Celery's in-process worker sets its level to ERROR, and a later
    test would find no warning."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    """Free the frames of a failed test at its end: what they held open is no later test's fault."""
    result = yield
    if vars(sys).pop("last_value", None) is not None:
        vars(sys).pop("last_exc", None)
        vars(sys).pop("last_traceback", None)
        _collect_quietly()
    return result


def _collect_quietly() -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def no_server_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run when a server outlives it, also one that a test's subprocess started."""
    directory = tmp_path_factory.mktemp("servers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRECTORY_VARIABLE, str(directory))
        with fork_server():
            yield
    _expect_none_in(directory)


def _expect_none_in(directory: Path) -> None:
    try:
        wait_until(lambda: not processes_in(directory), what="the servers of this run to end")
    finally:
        for pid in processes_in(directory):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def valkey(no_server_left: None) -> Iterator[EmbeddedServer]:
    """The embedded Valkey."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(no_server_left: None) -> Iterator[EmbeddedServer]:
    """The redis-server on the PATH: Debian's Redis 7 in CI, 6.2 in `make test-oldest`."""
    binary = shutil.which("redis-server")
    if binary is None:
        _miss("No redis-server on the PATH (Debian: apt-get install redis-server).")
    with EmbeddedServer(binary=binary) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq(no_server_left: None) -> Iterator[RabbitMQ]:
    """Debian's, started by us."""
    if not is_installed():
        _miss("No rabbitmq-server here (Debian: apt-get install rabbitmq-server).", "RABBITMQ")
    with RabbitMQ() as broker:
        yield broker


def _miss(sentence: str, server: str = "REDIS") -> None:
    # .ci/run sets the second variable after it tried to install one and could not.
    if os.environ.get("CI") and not os.environ.get(f"CELERY_LOCKS_WITHOUT_{server}"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def cluster(no_server_left: None) -> Iterator[EmbeddedCluster]:
    """Three primaries without replicas."""
    with EmbeddedCluster() as servers:
        yield servers


@pytest.fixture(scope="session")
def sentinel(no_server_left: None) -> Iterator[EmbeddedSentinel]:
    """A primary, a replica, three sentinels."""
    with EmbeddedSentinel() as servers:
        yield servers


@pytest.fixture(scope="session")
def external_url() -> str:
    """A server of the developer's choice. Its data is not ours: use a key prefix, never flush."""
    url = os.environ.get("CELERY_LOCKS_TEST_URL")
    if not url:
        pytest.skip("CELERY_LOCKS_TEST_URL names no server.")
    return url


@pytest.fixture(scope="session")
def fresh() -> Callable[[Emptied], Emptied]:
    """`fresh(valkey)` empties a shared server and hands it back."""

    def empty(servers: Emptied) -> Emptied:
        servers.flush()
        return servers

    return empty
