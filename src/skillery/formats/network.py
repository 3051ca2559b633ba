"""`permissions.network`: the hosts that a skill may reach."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

import msgspec

_PATTERN = re.compile(r"(?:(https?)://)?(\*\.)?([^/:@?#\[\]*]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_WITH_PATH = re.compile(r"((?:https?://)?[^/?#]+)[/?#].*", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}

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

NETWORK_FORM = (
    "'https://HOST', 'http://HOST' or either with ':PORT', "
    "HOST being a DNS name such as 'api.example.com' or '*.example.com'"
)


class NetworkPattern(msgspec.Struct, frozen=True):
    """One host, or with `wildcard` every host below this host, for one scheme and port. `*.x` does not match `x`."""

    scheme: Literal["http", "https"]
    host: str
    """The host in lower case, without `*.`."""
    port: int
    wildcard: bool
    text: str
    """The pattern in lower case, without the port if it is the default of the scheme."""


def parse_network_pattern(text: str) -> NetworkPattern | str:
    """Return the pattern, or the reason why the text is invalid. The reason is a clause that follows the text in a
    message. A host without a scheme means https.
    """
    # This check comes first: case folding turns some other letters into ASCII (the Kelvin sign, the long s).
    if not text.isascii():
        return "is not ASCII; write international names in their 'xn--' form"
    match = _PATTERN.fullmatch(text)
    if match is None:
        return f"is not {NETWORK_FORM}; no path, user or bare '*'"
    scheme: Literal["http", "https"] = "http" if (match[1] or "").lower() == "http" else "https"
    host = match[3].lower()
    problem = host_problem(host)
    if problem:
        return problem
    port = int(match[4]) if match[4] else _DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65_535 or (match[4] or "").startswith("0"):
        return "has a port that is not a number from 1 to 65535"
    wildcard = match[2] is not None
    shown_port = "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
    return NetworkPattern(scheme, host, port, wildcard, f"{scheme}://{'*.' if wildcard else ''}{host}{shown_port}")


def host_only(text: str) -> str:
    """Return the pattern for the whole host of a URL with a path, or "" if the text is not such a URL."""
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
    *above, last = pattern.host.split(".")
    registrar = len(above) == 1 and len(last) == 2 and above[0] in _REGISTRARS
    return pattern.wildcard and (not above or registrar or pattern.host in _HOSTING)


def host_problem(host: str) -> str | None:
    """Return the reason why `host` is not a valid DNS name, or None if it is valid. The caller passes `host` in lower
    case.

    The reason is a clause that follows the checked text in a message.
    """
    labels = host.split(".")
    if not host.isascii():
        return "has a host that is not ASCII; write international names in their 'xn--' form"
    # Resolvers read every name whose last label is a number as an IPv4 address: 127.1, 0x7f.1, 2130706433.
    if _NUMBER_LABEL.fullmatch(labels[-1] or (labels[-2] if len(labels) > 1 else "")):
        return "names an IP address; only DNS names are allowed"
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return "has a host that is not a DNS name"
    return None


# -- Network addresses as keys for limits: one key for each IPv4 address, and one for each /64 network of IPv6 ---------


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
