"""The error for a package that is missing because an extra is not installed."""

from __future__ import annotations


def missing_extra(extra: str, error: ImportError) -> ImportError:
    """Return an error that says which extra to install."""
    what = error.name or str(error)
    sentence = f"celery_locks needs {what} for this: pip install 'celery-locks[{extra}]'"
    return ImportError(sentence, name=error.name)
