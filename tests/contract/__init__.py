"""One suite over every store (`places.py`) and both faces (`faces.py`)."""
