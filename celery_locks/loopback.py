"""Recognize hosts that are this machine, for pages that are served to this machine only.

A foreign site can make its own name resolve to 127.0.0.1 (DNS rebinding); the browser then treats
what is served there as that site's own. The Host header shows it.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_header(header: str) -> bool:
    """Return True if a Host header, which may have a port, names this machine."""
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False
