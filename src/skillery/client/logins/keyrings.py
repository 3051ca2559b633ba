"""The keyring of the operating system, with the package `keyring` if it is installed."""

from __future__ import annotations

import importlib
from typing import Any

from skillery.client.logins.errors import UnusableLogin

SERVICE = "skillery"
RECOMMENDED = 1
"""The lowest priority of a keyring that encrypts. `keyring` gives less to a plain file, and 0 to no keyring at all."""


def has_keyring() -> bool:
    """Return whether a keyring can keep logins."""
    try:
        return float(_package().get_keyring().priority) >= RECOMMENDED
    except Exception:  # noqa: BLE001 - no package, or a keyring that does not work here
        return False


def store(server: str, secret: str) -> bool:
    """Store a text in the keyring. Return whether it is there."""
    if not has_keyring():
        return False
    try:
        _package().set_password(SERVICE, server, secret)
        # A keyring may shorten a text, or lose it when it is locked.
        return bool(_package().get_password(SERVICE, server) == secret)
    except Exception:  # noqa: BLE001 - each keyring raises its own exceptions
        return False


def find(server: str) -> str | None:
    """Return the text in the keyring. Raise UnusableLogin if the keyring cannot be read."""
    try:
        found = _package().get_password(SERVICE, server)
    except Exception as error:  # noqa: BLE001 - each keyring raises its own exceptions
        hint = "Unlock the keyring, or log in again. The package `keyring` must be installed."
        message = f"the login for {server} is in the keyring, which cannot be read ({type(error).__name__})"
        raise UnusableLogin(message, hint=hint) from None
    return str(found) if found is not None else None


def remove(server: str) -> None:
    """Remove a text from the keyring, if it is there."""
    try:
        _package().delete_password(SERVICE, server)
    except Exception:  # noqa: BLE001 - it was not there, or the keyring does not work
        return


def _package() -> Any:
    # Imported here: the package is optional, and looks for keyrings when it is imported.
    return importlib.import_module("keyring")
