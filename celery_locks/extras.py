"""What to say where a package is missing that comes with an extra of ours."""

from __future__ import annotations


def missing_extra(extra: str, error: ImportError) -> ImportError:
    """``from celery_locks import otel`` without OpenTelemetry: the error says what to install."""
    what = error.name or str(error)
    sentence = f"celery_locks needs {what} for this: pip install 'celery-locks[{extra}]'"
    return ImportError(sentence, name=error.name)
