"""Tools for maintainers; no part of the package."""
