"""Benchmarks against the floor and the peers on one embedded server: ``python -m benchmarks``.

Timings are compared only within one run, in which the candidates take turns: the speed of a machine
changes from minute to minute. Each benchmark is a module with ``run(server) -> Report``.
"""
