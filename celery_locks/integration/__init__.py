"""Celery: translates the values below (leases, conflicts, decisions) into what Celery understands.

``task.py`` is LockedTask and ``decorator.py`` single_instance, both over ``execution.py``, one run
of a task under its lock. ``request.py`` and ``wards.py`` are the worker's main process, which
renews for its children and frees what a killed one held. ``interrupt.py`` brings a loss into a
running task.
"""
