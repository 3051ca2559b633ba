"""The configuration folder of a test's user, with the logins that commands keep there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NO_SCREEN = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": "", "SKILLERY_TOKEN": "", "SSH_CONNECTION": ""}


class Configuration:
    """A configuration folder. `variables` are those of a user who has this folder and no screen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logins = folder / "skillery" / "logins"
        self.variables: dict[str, Any] = {**NO_SCREEN, "XDG_CONFIG_HOME": str(folder)}
        self.use_keyring("keyring.backends.null.Keyring")

    def use_keyring(self, name: str, folder: Path | None = None) -> None:
        """Choose a backend of the package `keyring`. Without one, tests would use the keyring of a developer."""
        place = self.folder / "python_keyring" / "keyringrc.cfg"
        place.parent.mkdir(parents=True, exist_ok=True)
        more = f"keyring-path={folder}\n" if folder is not None else ""
        place.write_text(f"[backend]\ndefault-keyring={name}\n{more}")

    def files(self) -> list[Path]:
        """Return the files with logins."""
        return sorted(self.logins.glob("*.json"))

    def modes(self) -> dict[str, Any]:
        """Return the modes of the folder with the logins, and of the files in it."""
        found = {place.suffix or place.name: oct(place.stat().st_mode & 0o777) for place in self.logins.iterdir()}
        return {"folder": oct(self.logins.stat().st_mode & 0o777), **found}
