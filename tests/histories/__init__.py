"""Recorded histories of runs, and the checker that says whether a correct lock allows them.

``recorder.py`` writes every request and reply of a process to a file, ``protocol.py`` reads what
goes over the connection, ``requests.py`` reads the files, ``checker.py`` searches for an order of
the requests that a correct lock allows (``lock.py``, ``grants.py``), and ``contradiction.py`` finds
the smallest part of a history that has none. ``python -m tests.histories FILE...`` checks files or
directories.
"""
