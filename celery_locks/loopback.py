"""Whether a host is this very machine; for what is served to this machine only.

A page of a foreign site can make its own name lead to 127.0.0.1 (DNS rebinding), and the browser
then takes what is served there for that site's own. The Host header gives it away.
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
    """The same of a Host header, which may have a port."""
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False
