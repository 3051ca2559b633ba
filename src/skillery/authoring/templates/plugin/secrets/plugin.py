"""__DESCRIPTION__"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
from skillery import hookimpl
from skillery.backends import Offer, Place

api_version = __API__


class __CLASS__Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    """The folder with one file for each secret."""


class __CLASS__Secrets:
    """See `skillery.backends.Secrets`. Names have only letters, digits and underscores: Skillery checks them before."""

    read_only = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_bytes().decode()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if not path.name.startswith("."))

    def set(self, name: str, value: str) -> None:
        # A reader gets the old value or the new value, never a part of one.
        path = self._folder / f".{secrets.token_hex(8)}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(value.encode())
            file.flush()
            os.fsync(file.fileno())
        path.rename(self._folder / name)

    def remove(self, name: str) -> bool:
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True


def open_secrets(settings: __CLASS__Settings, place: Place) -> __CLASS__Secrets:
    return __CLASS__Secrets(Path(settings.folder).expanduser())


@hookimpl
def skillery_secrets() -> Offer:
    return Offer("__OFFER__", open_secrets, __CLASS__Settings)
