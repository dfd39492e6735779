"""What a forked child resets, and in which order."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_locks import forking
from celery_locks.core.renewer import renewer

SOURCE = Path(forking.__file__).parent


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(forking, "_callbacks", {layer: [] for layer in forking._callbacks})
    return forking.run_after_fork


def in_child() -> str:
    """What the callbacks of a forked child wrote to ``WRITE``."""
    read, write = os.pipe()
    os.environ["WRITE"] = str(write)
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as text:
        return text.read()


def writes(letter: str) -> Callable[[], object]:
    return lambda: os.write(int(os.environ["WRITE"]), letter.encode())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_are_reset_from_the_bottom_up(register: Callable[..., None]) -> None:
    """A renewer that is reset before the connections could use a socket of its parent."""
    for letter, layer in (("c", "integration"), ("b", "core"), ("a", "store"), ("d", "surfaces")):
        register(writes(letter), layer)
        register(writes(letter.upper()), layer)
    assert in_child() == "aAbBcCdD"


def fail() -> None:
    raise KeyError("a bug of ours")


def test_one_failure_keeps_no_other_callback_from_running(register: Callable[..., None]) -> None:
    """A child with the parent's connections would read the parent's replies."""
    seen: list[str] = []
    register(fail, "store")
    register(lambda: seen.append("core"), "core")
    with pytest.raises(ExceptionGroup, match="after a fork"):
        forking._run_all()
    assert seen == ["core"]


def test_package_has_one_hook_and_the_renewer_is_in_it() -> None:
    """A second hook has an order of its own: that of the imports."""
    hooks = [path.name for path in SOURCE.rglob("*.py") if "register_at_fork(" in path.read_text()]
    assert hooks == ["forking.py"]
    assert renewer.after_fork in forking._callbacks["core"]
