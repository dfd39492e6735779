"""The TLA+ model and the scripts, step by step: traces of TLC are replayed on a real server."""
