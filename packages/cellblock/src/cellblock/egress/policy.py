"""The policy: to which hosts a run may connect.

This module converts each host name to its canonical form. Patterns, look-ups, SNI and the log use only this form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["http", "https"]
DEFAULT_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}
_PATTERN = re.compile(r"(?:(https?)://)?(\*\.)?([^/:@?#\[\]*]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_AUTHORITY = re.compile(r"([^:@/?#\[\]]+)(?::([0-9]{1,5}))?")
MAX_SHOWN = 120

NETWORK_FORM = (
    "'https://HOST', 'http://HOST' or either with ':PORT', "
    "HOST being a DNS name such as 'api.example.com' or '*.example.com'"
)


@dataclass(frozen=True, slots=True)
class NetworkPattern:
    """One host, or with `wildcard` every host below this host, for one scheme and port. `*.x` does not match `x`."""

    scheme: Scheme
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
    scheme: Scheme = "http" if (match[1] or "").lower() == "http" else "https"
    host = match[3].lower()
    problem = host_problem(host)
    if problem:
        return problem
    port = int(match[4]) if match[4] else DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65_535 or (match[4] or "").startswith("0"):
        return "has a port that is not a number from 1 to 65535"
    wildcard = match[2] is not None
    shown_port = "" if port == DEFAULT_PORTS[scheme] else f":{port}"
    return NetworkPattern(scheme, host, port, wildcard, f"{scheme}://{'*.' if wildcard else ''}{host}{shown_port}")


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


class Denied(Exception):
    """Raised for a refused connection. `reason` is short and is recorded. `advice` names the remedy."""

    def __init__(self, reason: str, *, status: int = 403, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a connection."""

    scheme: Scheme
    host: str
    """The host in canonical form: an ASCII DNS name in lower case without a final dot."""
    port: int

    @property
    def origin(self) -> str:
        """The origin, as a network list writes it."""
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


def shown(text: str) -> str:
    """Return an untrusted host name as printable text for a log."""
    cut = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    return cut.encode("ascii", "backslashreplace").decode() if cut.isprintable() else ascii(cut)[1:-1]


def canonical_host(text: str) -> str:
    """Return the canonical form of a host name.

    Raise Denied if the text is not a DNS name, for example an IP address, or if it contains a user, an escape or a
    control character.
    """
    name = text.removesuffix(".").lower() if text.isascii() else text
    problem = host_problem(name)
    if problem:
        raise Denied(f"'{shown(text)}' {problem}")
    return name


def parse_target(scheme: Scheme, authority: str) -> Target:
    """Return the target for `host` or `host:port`. Raise Denied if the text is invalid."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise Denied(f"'{shown(authority)}' is not HOST or HOST:PORT with a DNS name")
    port = int(match[2]) if match[2] else DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65_535 or (match[2] or "").startswith("0"):
        raise Denied(f"'{shown(authority)}' has a port that is not a number from 1 to 65535")
    return Target(scheme, canonical_host(match[1]), port)


@dataclass(frozen=True, slots=True)
class ListNames:
    """The words for lists in messages to the code."""

    of_run: str = "the network list of this run"
    remedy: str = "this list"
    """Where the owner of the code adds a host."""
    private: str = "`allow_private` of the sandbox"
    """Where the owner of the sandbox adds an address that is not public."""


class Policy:
    """The hosts to which one run may connect. An empty policy allows no host."""

    def __init__(self, patterns: Sequence[NetworkPattern], names: ListNames = ListNames()) -> None:
        self._patterns = tuple(patterns)
        self._names = names

    @classmethod
    def parse(cls, texts: Sequence[str], names: ListNames = ListNames()) -> Policy:
        """Return the policy of these patterns. Raise ValueError if a pattern is invalid.

        Patterns are parsed when a run starts, so that the current rules also apply to old versions.
        """
        patterns = []
        for text in texts:
            pattern = parse_network_pattern(text)
            if isinstance(pattern, str):
                raise ValueError(f"network: '{shown(text)}' {pattern}")
            patterns.append(pattern)
        return cls(patterns, names)

    def check(self, target: Target) -> str:
        """Return the text of the pattern that allows the target. Raise Denied if no pattern allows it."""
        for pattern in self._patterns:
            if matches(pattern, target):
                return pattern.text
        advice = f'"{target.origin}" in {self._names.remedy} would allow it'
        raise Denied(f"{target.origin} is not in {self._names.of_run}", advice=advice)


def matches(pattern: NetworkPattern, target: Target) -> bool:
    if (pattern.scheme, pattern.port) != (target.scheme, target.port):
        return False
    if pattern.wildcard:
        return target.host.endswith("." + pattern.host)
    return target.host == pattern.host
