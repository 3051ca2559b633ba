"""Network addresses, as far as limits are counted by them."""

from __future__ import annotations

import ipaddress


def network_of(address: str) -> str:
    """Whoever has one IPv6 address has the 2⁶⁴ around it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
