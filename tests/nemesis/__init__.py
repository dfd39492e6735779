"""One fault at a time against real workers: which promise holds, and for how long is one broken?

``make nemesis`` writes ``benchmarks/results/nemesis.json`` and ``.md``, which
``docs/concepts/nemesis.md`` includes. ``tasks.py`` is the app of the workers, ``load.py`` publishes
its jobs, ``rig.py`` has the servers and workers, ``faults/`` causes the faults, ``journal.py`` has
what the jobs write, ``windows.py`` and ``promises.py`` what follows from it, ``row.py`` runs one
row and ``table.py`` writes them all.
"""
