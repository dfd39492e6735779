"""The settings of a Django project with django-celery-beat, and what a test does in it.

python -m tests.support.beat_django migrate
python -m tests.support.beat_django once SECONDS
python -m tests.support.beat_django counts
"""

import json
import os
import sys

SECRET_KEY = "test"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("BEAT_DATABASE")}
}
USE_TZ = True
TIME_ZONE = "Europe/Vienna"


def once(seconds: float) -> None:
    """Add an entry that runs once, in so many seconds."""
    from datetime import timedelta

    from django.utils import timezone
    from django_celery_beat.models import ClockedSchedule, PeriodicTask

    at = timezone.now() + timedelta(seconds=seconds)
    clocked = ClockedSchedule.objects.create(clocked_time=at)
    PeriodicTask.objects.create(
        name="once", task="note", args='["once"]', clocked=clocked, one_off=True
    )


def counts() -> None:
    """Print how often each entry ran, as the database has it."""
    from django_celery_beat.models import PeriodicTask

    print(json.dumps({each.name: each.total_run_count for each in PeriodicTask.objects.all()}))


def main(command: str, *arguments: str) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    if command == "migrate":
        call_command("migrate", verbosity=0)
    elif command == "once":
        once(float(*arguments))
    else:
        counts()


if __name__ == "__main__":
    main(*sys.argv[1:])
