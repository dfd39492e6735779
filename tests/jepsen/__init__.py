"""Jepsen's three workloads for locks, with clients as processes, a real server, and faults.

``make jepsen SECONDS=60 SEED=1`` runs them one after the other: acquire and release; a set that is
updated under the lock, without a fence; the same with the fence. ``client.py`` is one client,
``storage.py`` keeps the set, ``faults.py`` causes the faults, ``run.py`` drives a workload and
judges it.
"""
