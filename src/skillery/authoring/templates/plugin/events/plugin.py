"""__DESCRIPTION__"""

from __future__ import annotations

from pathlib import Path

import msgspec
from skillery import hookimpl
from skillery.backends import Event, EventType, Offer, Place

api_version = __API__


class __CLASS__Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    """The file to which each event is appended, as a line of JSON."""
    types: tuple[EventType, ...] = ()
    """The types of events to write. Empty: all."""


class __CLASS__:
    """Writes events to a file. The methods are hooks: docs/reference/hooks.md of Skillery lists all of them."""

    def __init__(self, settings: __CLASS__Settings, place: Place) -> None:
        self._path = Path(settings.file).expanduser()
        self._types = settings.types

    @hookimpl
    def events(self, event: Event) -> None:
        if self._types and event.type not in self._types:
            return
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        """Called when the server ends."""


@hookimpl
def skillery_plugin() -> Offer:
    return Offer("__OFFER__", __CLASS__, __CLASS__Settings)
