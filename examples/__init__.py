"""Things to run and read: ``python -m examples.demo``, or ``make demo``."""
