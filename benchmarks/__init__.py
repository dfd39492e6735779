"""Measured against the floor and the peers on one embedded server: ``python -m benchmarks``.

Timings are compared within one run only, with the candidates taking turns, because a machine is
never as fast as it was a minute ago. Each benchmark is a module with ``run(server) -> Report``.
"""
