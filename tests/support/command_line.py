"""The command line without a process for each command."""

from typing import Any

from click.testing import CliRunner, Result

from celery_locks import Locks
from celery_locks.cli import main
from celery_locks.types import Holder, LockSpec


def run(*arguments: str, url: str = "redis://memory", typed: str = "") -> Result:
    """Run a command; any exception but the exit is a failure of the test."""
    result = CliRunner().invoke(main, ["--url", url, *arguments], input=typed)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def take(locks: Locks, *names: str, **fields: Any) -> None:
    """Acquire these locks, with the tokens t-NAME."""
    for name in names:
        locks.perform(locks.commands.acquire(LockSpec(name), f"t-{name}", Holder(**fields)))
