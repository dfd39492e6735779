"""``python -m celery_locks``: the same as ``celery-locks``."""

from celery_locks.cli import main

main(prog_name="python -m celery_locks")
