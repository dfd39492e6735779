"""Importing the package changes nothing in Celery; the first locked task connects everything."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_locks import integration

ROOT = Path(__file__).parents[3]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(integration.__path__, "celery_locks.integration.")
)

REPORT = """
import json
from celery import Celery, Task, signals
from celery.utils.dispatch import Signal
kinds = [s for s in vars(signals).values() if isinstance(s, Signal)]
def functions():
    for signal in kinds:
        for _, reference in signal.receivers:
            yield reference() if hasattr(reference, "__callback__") else reference
ours = [f.__module__ for f in functions() if f.__module__.startswith("celery_locks")]
wrapped = {hasattr(method, "__wrapped__") for method in (Task.bind, Celery.send_task)}
print(json.dumps([len(ours), wrapped.pop() if len(wrapped) == 1 else "only one of them"]))
"""

USES = {
    "an import of the class": "from celery_locks import LockedTask",
    "a subclass": "from celery_locks import LockedTask\nclass T(LockedTask): ...",
    "base=": (
        "from celery import Celery\nfrom celery_locks import LockedTask\n"
        "app = Celery(set_as_current=False)\n"
        "@app.task(base=LockedTask, lazy=False)\ndef f(): ..."
    ),
    "task_cls": (
        "from celery import Celery\n"
        "app = Celery(task_cls='celery_locks:LockedTask', set_as_current=False)\napp.Task"
    ),
    "a decorator": "from celery_locks import single_instance\n@single_instance\ndef f(): ...",
    "a leader": (
        "from celery import Celery\nfrom celery_locks import leader\n"
        "leader(Celery(set_as_current=False), 'primary')"
    ),
}


def connected(script: str) -> Any:
    """The number of our receivers, and whether both methods are wrapped, after a script has run."""
    done = subprocess.run(
        [sys.executable, "-c", script + REPORT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_imports_connect_nothing() -> None:
    """A process that only imports, to publish or to administer, has Celery as it was."""
    assert "celery_locks.integration.signals" in MODULES
    imports = "".join(f"import {name}\n" for name in MODULES)
    assert connected(imports) == [0, False]


@pytest.mark.parametrize("use", USES)
def test_first_use_connects_everything(use: str) -> None:
    """Whichever way a task is locked, the worker's side must be there before it runs."""
    assert connected(USES[use]) == [12, True]


def test_install_connects_once() -> None:
    """Every further wrapper of Task.bind would slow down the creation of tasks."""
    script = "from celery_locks.integration.signals import install\ninstall()\ninstall()\n"
    unwrapped = (
        "from celery import Task\nassert not hasattr(Task.bind.__wrapped__, '__wrapped__')\n"
    )
    assert connected(script + unwrapped) == [12, True]
