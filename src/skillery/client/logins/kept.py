"""Logins on this computer: in the keyring, or in a file that only the user can read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import httpx
import msgspec

from skillery.client.logins import keyrings
from skillery.client.logins.errors import UnusableLogin
from skillery.client.logins.locks import locked
from skillery.client.logins.login import Login
from skillery.client.logins.private_files import (
    configuration_folder,
    make_folder,
    read_private,
    remove_private,
    write_private,
)

FOLDER = "logins"
CURRENT = "current"
"""Name of the file with the address of the current server. Files of logins end with `.json`."""
Where = Literal["keyring", "file"]


class _File(msgspec.Struct, frozen=True):
    """The file of one login. If the login is in the keyring, the file contains no secret."""

    server: str
    kept_in: Where
    login: Login | None = None


def place_of(server: str) -> Path:
    """Return the path of the file for a server."""
    host = "".join(one if one.isalnum() or one in ".-" else "_" for one in httpx.URL(server).host)[:60]
    return configuration_folder() / FOLDER / f"{host}-{hashlib.sha256(server.encode()).hexdigest()[:16]}.json"


@contextmanager
def changing(server: str) -> Iterator[None]:
    """Context manager: let one process at a time change the login for a server."""
    place = place_of(server)
    make_folder(place.parent)
    with locked(place.with_suffix(".lock")):
        yield


def find_login(server: str) -> Login | None:
    """Return the login for a server, or None. Raise UnusableLogin if it cannot be read or is not safe."""
    try:
        place = place_of(server)
    except UnusableLogin:
        return None
    content = read_private(place)
    if content is None:
        return None
    try:
        file = msgspec.json.decode(content, type=_File)
        if file.kept_in == "file":
            return file.login
        secret = keyrings.find(server)
        return msgspec.json.decode(secret, type=Login) if secret is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnusableLogin(f"the login in '{place}' cannot be read", hint="Log in again.") from None


def keep_login(server: str, login: Login) -> Where:
    """Keep the login for a server, and return where. The caller holds the lock `changing`."""
    kept_in: Where = "keyring" if keyrings.store(server, msgspec.json.encode(login).decode()) else "file"
    file = _File(server, kept_in, login if kept_in == "file" else None)
    write_private(place_of(server), msgspec.json.encode(file))
    return kept_in


def remove_login(server: str) -> None:
    """Remove the login for a server, even if it cannot be read. The caller holds the lock `changing`."""
    # The keyring may have an earlier login, from a time when the file was not needed.
    keyrings.remove(server)
    remove_private(place_of(server))


def current_server() -> str | None:
    """Return the address of the user's current server, or None. Raise UnusableLogin if other users can change it."""
    try:
        place = configuration_folder() / FOLDER / CURRENT
    except UnusableLogin:
        return None
    content = read_private(place)
    return content.decode().strip() or None if content is not None else None


def set_current_server(server: str | None) -> None:
    """Keep the address of the user's current server. None means the home."""
    place = configuration_folder() / FOLDER / CURRENT
    if server is None:
        remove_private(place)
        return
    make_folder(place.parent)
    write_private(place, f"{server}\n".encode())
