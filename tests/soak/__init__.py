"""Jobs under repeated faults: does the lock exclude, and is any job lost or executed twice?

``make soak SECONDS=60 SEED=1`` runs the same jobs under the same kind of faults twice: first with
celery-locks, then with plain Celery as the control. ``run.py`` drives it, ``tasks.py`` is the app
of the workers, ``faults.py`` causes the faults, ``journal.py`` has what the jobs write and what
that proves.
"""
