"""``manage.py celery_locks …``: the commands of ``celery -A proj locks``, handed on as they are."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from celery_locks.cli import locks
from celery_locks.cli.commands import COMMANDS
from celery_locks.django.celery_app import the_app
from celery_locks.errors import LockUsageError

PROGRAM = "manage.py celery_locks"


class Command(BaseCommand):  # type: ignore[misc]
    help = "See who holds which lock, and free one that is stuck."
    # A lock can be freed while something else in the project is amiss.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "arguments",
            nargs=argparse.REMAINDER,
            metavar="COMMAND …",
            help=f"{', '.join(COMMANDS)}: as in `celery -A proj locks`; "
            f"`{PROGRAM} COMMAND --help` says more",
        )

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        try:
            app = the_app()
        except LockUsageError as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            # What the group takes as obj is Celery's own context; all it uses of it is the app.
            locks.main(_without_djangos(arguments), PROGRAM, obj=SimpleNamespace(app=app))
        except SystemExit as end:
            if end.code:
                raise


def _without_djangos(arguments: list[str]) -> list[str]:
    """Options like --settings may stand anywhere; Django has heeded them before we are called."""
    parser = BaseCommand().create_parser("manage.py", "celery_locks", add_help=False)
    return list(parser.parse_known_args(arguments)[1])
