"""The protocol of the locks in TLA+, and the command that checks it: ``python -m model``."""
