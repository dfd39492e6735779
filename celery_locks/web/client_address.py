"""The address a request comes from: parsed, so that the text of a header is never stored.

The ASGI server sets it (``scope["client"]``); behind a proxy, it takes it from a header.
"""

from __future__ import annotations

import ipaddress

from starlette.types import Scope

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
UNKNOWN = "an unknown address"


def address_of(scope: Scope) -> str:
    """Return the client's address, to be read by people."""
    address = _parse(scope)
    return str(address) if address else UNKNOWN


def network_of(scope: Scope) -> str:
    """Return what requests are counted by: an IPv4 address, or an IPv6 /64 (one machine's)."""
    address = _parse(scope)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address) if address else UNKNOWN


def _parse(scope: Scope) -> Address | None:
    try:
        address = ipaddress.ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    # Drop the zone ("fe80::1%anything"): it may be any text of any length.
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))
