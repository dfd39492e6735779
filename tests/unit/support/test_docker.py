"""The container tests need an engine; that they can be collected is seen everywhere."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_docker_tests_are_collected_for_both_brokers() -> None:
    """They run elsewhere only; a name that pytest-celery dropped must not wait until then."""
    pytest.importorskip("pytest_celery")
    settings = ["-c", "tests/docker/pytest.ini", "--rootdir=."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-q", "--collect-only", "tests/docker"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for broker in ("celery_redis_broker", "celery_rabbitmq_broker"):
        assert done.stdout.count(broker) == 3, done.stdout
