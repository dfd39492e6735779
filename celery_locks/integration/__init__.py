"""The Celery layer: turns leases, conflicts and decisions into calls and exceptions of Celery.

``task.py`` has LockedTask and ``decorator.py`` single_instance. Both use ``execution.py``, which
runs a task once under its lock. ``request.py`` and ``supervisor.py`` work in the worker's main
process: they renew the locks of its children and release what a killed child held.
``interrupt`` raises the loss of a lock in the running task.
"""
