"""`permissions.network`: the hosts that a skill may reach."""

from __future__ import annotations

import ipaddress
import re

from cellblock.egress.policy import NETWORK_FORM, NetworkPattern, host_problem, parse_network_pattern

__all__ = [
    "NETWORK_FORM",
    "NetworkPattern",
    "covers",
    "host_only",
    "host_problem",
    "is_open_to_anybody",
    "network_of",
    "parse_network_pattern",
]

_WITH_PATH = re.compile(r"((?:https?://)?[^/?#]+)[/?#].*", re.IGNORECASE | re.DOTALL)

# A few likely domains, not the whole list of public suffixes: the result is only a warning.
_REGISTRARS = {"ac", "co", "com", "edu", "gov", "net", "or", "org"}
_HOSTING = {
    "amazonaws.com",
    "appspot.com",
    "azurewebsites.net",
    "cloudfront.net",
    "github.io",
    "githubusercontent.com",
    "gitlab.io",
    "herokuapp.com",
    "netlify.app",
    "ngrok-free.app",
    "ngrok.io",
    "pages.dev",
    "run.app",
    "s3.amazonaws.com",
    "vercel.app",
    "web.app",
    "windows.net",
    "core.windows.net",
    "blob.core.windows.net",
    "workers.dev",
}


def host_only(text: str) -> str:
    """Return the pattern for the whole host if the text is a URL with a path, else ""."""
    match = _WITH_PATH.fullmatch(text)
    pattern = parse_network_pattern(match[1]) if match else ""
    return "" if isinstance(pattern, str) else pattern.text


def covers(wider: NetworkPattern, pattern: NetworkPattern) -> bool:
    """Return whether `wider` allows every host that `pattern` allows."""
    if (wider.scheme, wider.port) != (pattern.scheme, pattern.port):
        return False
    if wider.wildcard and pattern.host.endswith(f".{wider.host}"):
        return True
    return wider.host == pattern.host and wider.wildcard == pattern.wildcard


def is_open_to_anybody(pattern: NetworkPattern) -> bool:
    """Return whether the pattern is a wildcard for a domain in which strangers can register names.

    Examples: `*.com`, `*.co.uk`, `*.github.io`. The list of such domains is not complete.
    """
    *parents, top_level = pattern.host.split(".")
    registrar = len(parents) == 1 and len(top_level) == 2 and parents[0] in _REGISTRARS
    return pattern.wildcard and (not parents or registrar or pattern.host in _HOSTING)


# -- Network addresses as keys for limits: one key for each IPv4 address, and one for each /64 network of IPv6 ---------


def network_of(address: str) -> str:
    """Return the key under which limits count an address: an IPv4 address, or the /64 network of an IPv6 address.

    Usually one owner has the whole /64 network. A text that is not an address is cut to 64 characters.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
