"""A worker image with this project in it, on Redis and on RabbitMQ; locks and results in Redis.

By pytest-celery's documented way to bring a worker of one's own: an image, a container class, and
the fixtures that it overrides.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import docker
import pytest
from docker.errors import DockerException
from pytest_celery import (
    CELERY_RABBITMQ_BROKER,
    CELERY_REDIS_BACKEND,
    CELERY_REDIS_BROKER,
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryWorkerContainer,
)
from pytest_docker_tools import build, container, fxtr

from tests.docker import tasks

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for = config.getoption("markexpr") == "docker" and not config.getoption("collectonly")
    if asked_for and (reason := _why_not()):
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_not() -> str:
    try:
        docker.from_env().ping()
    except DockerException as error:
        return f"No Docker engine answers here, so the container tests are left out: {error}"
    return ""


class LockingWorker(CeleryWorkerContainer):  # type: ignore[misc]
    @classmethod
    def version(cls) -> str:
        return str(celery.__version__)

    @classmethod
    def command(cls, *args: str, **options: Any) -> list[str]:
        return super().command("--concurrency=3", *args, **options)

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        return {tasks}


locking_worker_image = build(
    path=str(ROOT),
    dockerfile="tests/docker/Dockerfile",
    tag="celery-locks/tests/worker",
    buildargs={"CELERY_VERSION": LockingWorker.version()},
)

default_worker_container = container(
    image="{locking_worker_image.id}",
    ports=fxtr("default_worker_ports"),
    environment=fxtr("default_worker_env"),
    network="{default_pytest_celery_network.name}",
    volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
    wrapper_class=LockingWorker,
    timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
    command=fxtr("default_worker_command"),
)


@pytest.fixture
def default_worker_container_cls() -> type[CeleryWorkerContainer]:
    return LockingWorker


@pytest.fixture(scope="session")
def default_worker_container_session_cls() -> type[CeleryWorkerContainer]:
    return LockingWorker


@pytest.fixture(params=[CELERY_REDIS_BROKER, CELERY_RABBITMQ_BROKER])
def celery_broker(request: pytest.FixtureRequest) -> Any:
    broker: CeleryTestBroker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture(params=[CELERY_REDIS_BACKEND])
def celery_backend(request: pytest.FixtureRequest) -> Any:
    backend: CeleryTestBackend = request.getfixturevalue(request.param)
    yield backend
    backend.teardown()
