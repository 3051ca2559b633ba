"""Network addresses in the form in which limits count them."""

from __future__ import annotations

import ipaddress


def network_of(address: str) -> str:
    """Return the key that limits use for an address: an IPv4 address, or the /64 network of an IPv6 address.

    One owner of an IPv6 address usually has the whole /64 network. Text that is no address is cut to 64 characters.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
