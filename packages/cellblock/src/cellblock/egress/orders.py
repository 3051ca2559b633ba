"""The order that the server sends to the proxy for each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

from cellblock.egress.policy import ListNames
from cellblock.egress.streams import Caps

GOODBYE = b"\n"
"""The last line from the proxy to the server: the proxy has reported all events."""


@dataclass(frozen=True, slots=True)
class Order:
    """The network permissions of a run, and the settings of the operator."""

    patterns: tuple[str, ...]
    identity: str = ""
    """The identity that requested the run. All runs of an identity share one limit on look-ups."""
    allow_private: tuple[str, ...] = ()
    private: bool = False
    """Whether the proxy may connect to private addresses. True if the server's admin wrote the patterns."""
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    caps: Caps = field(default_factory=Caps)
    names: ListNames = field(default_factory=ListNames)

    def line(self) -> bytes:
        """Return the order as one line for the proxy."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Return the order of a line. Only the server writes such lines, so their shape is not checked."""
        fields = json.loads(line)
        return cls(
            patterns=tuple(fields["patterns"]),
            identity=fields["identity"],
            allow_private=tuple(fields["allow_private"]),
            private=fields["private"],
            hosts={name: tuple(addresses) for name, addresses in fields["hosts"].items()},
            caps=Caps(**fields["caps"]),
            names=ListNames(**fields["names"]),
        )
