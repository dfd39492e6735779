"""The commands of the store, as values: what each sends to its script and how it reads the reply.

``locks`` is for holders and waiters, ``admin`` for operators, ``metrics`` for the counters and
``recipes`` for the recipes. ``replies`` holds the values that come out.
"""
