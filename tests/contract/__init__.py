"""One suite over every store and both faces; `places.py` says which, `faces.py` how one test drives both."""
