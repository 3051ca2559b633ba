"""The policy: may a run connect to a host?

This module converts each name to its canonical form. Patterns, look-ups, SNI and the log use only that form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from skillery.formats.network import NetworkPattern, host_problem, parse_network_pattern

Scheme = Literal["http", "https"]
DEFAULT_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"([^:@/?#\[\]]+)(?::([0-9]{1,5}))?")
MAX_SHOWN = 120


class Denied(Exception):
    """Raised for a refused connection. `reason` is short and recorded; `advice` names the remedy."""

    def __init__(self, reason: str, *, status: int = 403, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.advice = advice


class Target(msgspec.Struct, frozen=True):
    """The target of a connection."""

    scheme: Scheme
    host: str
    """Canonical: an ASCII DNS name in lower case without a final dot."""
    port: int

    @property
    def origin(self) -> str:
        """Return the origin in the form of `permissions.network`."""
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


def shown(text: str) -> str:
    """Return a host from untrusted input as printable text, for a log."""
    cut = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    return cut.encode("ascii", "backslashreplace").decode() if cut.isprintable() else ascii(cut)[1:-1]


def canonical_host(text: str) -> str:
    """Return the canonical form.

    Raise Denied for all but a DNS name: addresses in any spelling, users, escapes, control characters.
    """
    name = text.removesuffix(".").lower() if text.isascii() else text
    problem = host_problem(name)
    if problem:
        raise Denied(f"'{shown(text)}' {problem}")
    return name


def parse_target(scheme: Scheme, authority: str) -> Target:
    """Return the target for `host` or `host:port`. Raise Denied."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise Denied(f"'{shown(authority)}' is not HOST or HOST:PORT with a DNS name")
    port = int(match[2]) if match[2] else DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65_535 or (match[2] or "").startswith("0"):
        raise Denied(f"'{shown(authority)}' has a port that is not a number from 1 to 65535")
    return Target(scheme, canonical_host(match[1]), port)


class Policy:
    """The hosts that one skill may reach. An empty policy allows none."""

    def __init__(self, patterns: Sequence[NetworkPattern]) -> None:
        self._patterns = tuple(patterns)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Policy:
        """Parse the patterns when a run starts, so that older versions obey the current rules. Raise ValueError."""
        patterns = []
        for text in texts:
            pattern = parse_network_pattern(text)
            if isinstance(pattern, str):
                raise ValueError(f"permissions.network: '{shown(text)}' {pattern}")
            patterns.append(pattern)
        return cls(patterns)

    def check(self, target: Target) -> str:
        """Return the text of the pattern that allows the target. Raise Denied."""
        for pattern in self._patterns:
            if matches(pattern, target):
                return pattern.text
        advice = f'"{target.origin}" in permissions.network of skill.toml would allow it'
        raise Denied(f"{target.origin} is not in permissions.network of this skill", advice=advice)


def matches(pattern: NetworkPattern, target: Target) -> bool:
    if (pattern.scheme, pattern.port) != (target.scheme, target.port):
        return False
    if pattern.wildcard:
        return target.host.endswith("." + pattern.host)
    return target.host == pattern.host
