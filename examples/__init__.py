"""Small programs that show one thing each. ``python -m examples.<name>`` runs one by itself:
a server of its own, a worker, and an end within seconds. ``python -m examples.demo`` is the tour.
"""
