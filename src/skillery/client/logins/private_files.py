"""Files that only the user can read: logins in the user's configuration folder."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from skillery.client.logins.errors import UnusableLogin

MAX_BYTES = 256 * 1024
OTHERS = 0o077
OF_ANOTHER = "Run the command as that user, or name your own folder in XDG_CONFIG_HOME."
HAS_MODES = os.name == "posix"
"""Windows has access lists instead, and gives the folder of a user to this user alone."""


def configuration_folder() -> Path:
    """Return the folder of Skillery in the user's configuration. Raise UnusableLogin if the user has no home."""
    try:
        return _configuration() / "skillery"
    except RuntimeError:
        raise UnusableLogin("this user has no home folder", hint="Set HOME or XDG_CONFIG_HOME.") from None


def _configuration() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    stated = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(stated) if Path(stated).is_absolute() else Path.home() / ".config"


def make_folder(path: Path) -> None:
    """Make a folder that only the user can enter. Raise UnusableLogin if others can enter an existing folder."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _check(path, path.lstat(), "700", stat.S_ISDIR, "folder")
    except OSError as error:
        raise UnusableLogin(f"cannot make the folder '{path}': {error.strerror}") from None


def read_private(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is no file for this user.

    Raise UnusableLogin if other users can read or replace the file.
    """
    try:
        folder = path.parent.lstat()
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise UnusableLogin(f"cannot read '{path}': {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        _check(path.parent, folder, "700", stat.S_ISDIR, "folder")
        _check(path, os.fstat(descriptor), "600", stat.S_ISREG, "file")
        return file.read(MAX_BYTES)


def _check(path: Path, found: os.stat_result, mode: str, is_kind: Callable[[int], bool], kind: str) -> None:
    if not is_kind(found.st_mode):
        raise UnusableLogin(f"'{path}' is not a {kind}", hint="Remove it, and log in again.")
    if not HAS_MODES:
        return
    if found.st_uid != os.getuid():
        raise UnusableLogin(f"the {kind} '{path}' belongs to another user", hint=OF_ANOTHER)
    if stat.S_IMODE(found.st_mode) & OTHERS:
        shown = f"{stat.S_IMODE(found.st_mode):03o}"
        raise UnusableLogin(
            f"other users can access the {kind} '{path}' with a login: its mode is {shown}",
            hint=f"Run `chmod {mode} '{path}'`. If other users may have read it, log out and log in again.",
        )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only the user can read. The file appears complete, or not at all.

    No other process may write the file at the same time.
    """
    partial = _partial(path)
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        partial.replace(path)
    except OSError as error:
        raise UnusableLogin(f"cannot write '{path}': {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def remove_private(path: Path) -> None:
    """Remove a file, and what a killed process has left of it."""
    _partial(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    # Always the same name, so that no file with a secret is left for good if the process is killed.
    return path.with_name(f".{path.name}.new")
