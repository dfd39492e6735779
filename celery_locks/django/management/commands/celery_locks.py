"""``manage.py celery_locks …``: the commands of ``celery -A proj locks`` for Django projects.

The only module of a surface that imports another: this command is the command line.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from celery_locks.cli import locks
from celery_locks.cli.commands import COMMANDS
from celery_locks.django.celery_app import get_app
from celery_locks.errors import LockUsageError

PROGRAM = "manage.py celery_locks"


class Command(BaseCommand):  # type: ignore[misc]
    """Passes its arguments to the command line."""

    help = "Show who holds which lock, and release a stuck one."
    # A stuck lock can be released even if other checks of the project fail.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "arguments",
            nargs=argparse.REMAINDER,
            metavar="COMMAND …",
            help=f"{', '.join(COMMANDS)}: as in `celery -A proj locks`; "
            f"see `{PROGRAM} COMMAND --help`",
        )

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        try:
            app = get_app()
        except LockUsageError as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            # The group expects Celery's own context object; it uses only the app of it.
            locks.main(_without_django_options(arguments), PROGRAM, obj=SimpleNamespace(app=app))
        except SystemExit as end:
            if end.code:
                raise


def _without_django_options(arguments: list[str]) -> list[str]:
    """Remove options like --settings, which may be anywhere; Django has applied them already."""
    parser = BaseCommand().create_parser("manage.py", "celery_locks", add_help=False)
    return list(parser.parse_known_args(arguments)[1])
