"""Network addresses as keys for limits: one key for each IPv4 address, and one for each /64 network of IPv6."""

from __future__ import annotations

import ipaddress


def network_of(address: str) -> str:
    """Return the key of an address for limits: an IPv4 address, or the /64 network of an IPv6 address.

    Usually the whole /64 network belongs to one owner. A text that is not an address is cut to 64 characters.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
