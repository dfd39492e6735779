"""Small programs that show one thing each.

``python -m examples.<name>`` runs one with a server and a worker of its own, and exits within
seconds. ``python -m examples.demo`` is the tour.
"""
