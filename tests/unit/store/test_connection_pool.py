"""The connections to one node: which are kept when an exchange ends."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_locks.clock import now
from celery_locks.store.bounded_connection import ExchangeState
from celery_locks.store.connection_config import Address
from celery_locks.store.connection_pool import ConnectionPool
from celery_locks.store.drivers import run_blocking

ADDRESS: Address = ("node", 6379)


class Driver:
    """Answers everything; ``during_exchange`` is called while a caller waits for its reply."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.closed: list[Any] = []
        self.during_exchange: Callable[[], None] = lambda: None

    def new_connection(self, *_: Any) -> Any:
        self.opened.append(connection := Connection())
        return connection

    async def connect(self, *_: Any) -> None: ...

    async def exchange(self, *_: Any) -> bytes:
        self.during_exchange()
        return b"OK"

    async def disconnect(self, connection: Any) -> None:
        self.closed.append(connection)

    def semaphore(self, is_free: bool) -> None: ...


class Connection:
    def __init__(self) -> None:
        self.state = ExchangeState()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def pool(driver: Driver) -> ConnectionPool:
    server: Any = SimpleNamespace(checked={ADDRESS})
    return ConnectionPool(driver, server, ADDRESS)  # type: ignore[arg-type]


def exchange(pool: ConnectionPool) -> None:
    assert run_blocking(pool.exchange, b"PING", now() + 5) == b"OK"


def test_connection_is_kept_for_the_next_exchange(pool: ConnectionPool, driver: Driver) -> None:
    exchange(pool)
    exchange(pool)
    assert len(driver.opened) == 1
    assert driver.closed == []


def test_connection_in_use_is_closed_after_its_exchange(
    pool: ConnectionPool, driver: Driver
) -> None:
    """The background thread may be waiting for a reply when the user closes: nobody else would."""
    driver.during_exchange = lambda: run_blocking(pool.close)
    exchange(pool)
    assert driver.closed == driver.opened


def test_closed_pool_can_be_used_again(pool: ConnectionPool, driver: Driver) -> None:
    exchange(pool)
    run_blocking(pool.close)
    exchange(pool)
    exchange(pool)
    assert len(driver.opened) == 2
    assert driver.closed == driver.opened[:1]
