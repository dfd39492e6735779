"""One suite over every store (`backends.py`) and both APIs (`apis.py`)."""
