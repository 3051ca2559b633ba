"""The connections of a run, for the record and the log of the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Self

from cellblock.values import NetworkUse

MAX_USES = 256
MAX_LINES = 100
OTHERS = "…"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a connection: it was allowed, it was refused (not `allowed`), or it has `ended`.

    Only an `ended` event has `bytes_*` other than 0. These bytes are added to the figures of the host.
    """

    host: str
    port: int
    allowed: bool
    reason: str
    advice: str = ""
    ended: bool = False
    bytes_out: int = 0
    bytes_in: int = 0

    def line(self) -> bytes:
        """Return the event as one line for the server."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


class Uses:
    """Counts events by host. The memory is bounded: above a number of hosts, all others count under `…`."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, int, bool, str], NetworkUse] = {}
        self._lines = 0

    def add(self, event: Event) -> None:
        key = (event.host, event.port, event.allowed, event.reason)
        if key not in self._uses and len(self._uses) >= MAX_USES - 2:
            key = (OTHERS, 0, event.allowed, "more hosts than are listed one by one")
        use = self._uses.get(key) or NetworkUse(*key, connections=0)
        self._uses[key] = replace(
            use,
            connections=use.connections + (not event.ended),
            bytes_out=use.bytes_out + event.bytes_out,
            bytes_in=use.bytes_in + event.bytes_in,
        )

    def line(self, event: Event) -> str | None:
        """Return the line for the run's log. Only refusals have a line; other events return None.

        After MAX_LINES refusals, one last line says that more was refused.
        """
        if event.allowed or event.ended or self._lines > MAX_LINES:
            return None
        self._lines += 1
        if self._lines > MAX_LINES:
            return "network: more was refused, which the record of the run counts"
        return "network: " + sentence(event.reason, event.advice)

    def finish(self) -> tuple[NetworkUse, ...]:
        return tuple(self._uses.values())


def sentence(reason: str, advice: str) -> str:
    return f"{reason}; {advice}" if advice else reason
