"""Helpers for tests, demos and benchmarks: real servers that need no installation."""
