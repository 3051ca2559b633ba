"""Logins on this computer: in the keyring, or in a file that only the user can read."""

from __future__ import annotations

import hashlib
import importlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec

from skillery.client.logins.login import Login, UnusableLogin

# -- The keyring of the operating system, with the package `keyring` if it is installed --------------------------------


SERVICE = "skillery"
RECOMMENDED = 1
"""Keyrings of at least this priority encrypt. The package `keyring` gives a plain file a lower priority, and 0 if there
is no keyring.
"""


def has_keyring() -> bool:
    """Return whether this computer has a keyring that can store logins."""
    try:
        return float(_package().get_keyring().priority) >= RECOMMENDED
    except Exception:  # noqa: BLE001 - no package, or a keyring that does not work here
        return False


def store(server: str, secret: str) -> bool:
    """Store a text in the keyring. Return whether the keyring now has it."""
    if not has_keyring():
        return False
    try:
        _package().set_password(SERVICE, server, secret)
        # A keyring may shorten a text, or lose it when it is locked.
        return bool(_package().get_password(SERVICE, server) == secret)
    except Exception:  # noqa: BLE001 - each keyring raises its own exceptions
        return False


def find(server: str) -> str | None:
    """Return the text in the keyring, or None. Raise UnusableLogin if the keyring cannot be read."""
    try:
        password = _package().get_password(SERVICE, server)
    except Exception as error:  # noqa: BLE001 - each keyring raises its own exceptions
        hint = "Unlock the keyring, or log in again. The package `keyring` must be installed."
        message = f"the login for {server} is in the keyring, which cannot be read ({type(error).__name__})"
        raise UnusableLogin(message, hint=hint) from None
    return str(password) if password is not None else None


def remove(server: str) -> None:
    """Remove the text of a server from the keyring, if it is there."""
    try:
        _package().delete_password(SERVICE, server)
    except Exception:  # noqa: BLE001 - it was not there, or the keyring does not work
        return


def _package() -> Any:
    # Imported here: the package is optional, and looks for keyrings when it is imported.
    return importlib.import_module("keyring")


# -- Files that only the user can read: logins in the user's configuration folder --------------------------------------


MAX_BYTES = 256 * 1024
OTHERS = 0o077
OF_ANOTHER = "Run the command as that user, or name your own folder in XDG_CONFIG_HOME."
HAS_MODES = os.name == "posix"
"""Whether files have modes. Windows has access lists instead, and gives the folder of a user to this user alone."""


def configuration_folder() -> Path:
    """Return the folder of Skillery in the user's configuration.

    Raise UnusableLogin if the user has no home folder.
    """
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
    """Create a folder that only the user can enter. Raise UnusableLogin if it exists and others can enter it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _check(path, path.lstat(), "700", stat.S_ISDIR, "folder")
    except OSError as error:
        raise UnusableLogin(f"cannot make the folder '{path}': {error.strerror}") from None


def read_private(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is no file that the user can read.

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


def _check(path: Path, status: os.stat_result, mode: str, is_kind: Callable[[int], bool], kind: str) -> None:
    """Raise UnusableLogin if a file or folder is of another kind, or if other users can access it."""
    if not is_kind(status.st_mode):
        raise UnusableLogin(f"'{path}' is not a {kind}", hint="Remove it, and log in again.")
    if not HAS_MODES:
        return
    if status.st_uid != os.getuid():
        raise UnusableLogin(f"the {kind} '{path}' belongs to another user", hint=OF_ANOTHER)
    if stat.S_IMODE(status.st_mode) & OTHERS:
        shown = f"{stat.S_IMODE(status.st_mode):03o}"
        raise UnusableLogin(
            f"other users can access the {kind} '{path}' with a login: its mode is {shown}",
            hint=f"Run `chmod {mode} '{path}'`. If other users may have read it, log out and log in again.",
        )


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only the user can read. The file is either complete or unchanged.

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
    """Remove a file, and the incomplete file that a killed process has left."""
    _partial(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    # Always the same name, so that no file with a secret is left for good if the process is killed.
    return path.with_name(f".{path.name}.new")


# -- A lock that one process at a time holds ---------------------------------------------------------------------------


RETRY_SECONDS = 0.05


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file at `path` during the `with` block. Wait while another process or thread holds it.

    The operating system releases the lock if the process dies. The file stays, because deleting it would let two
    processes lock two files. Raise UnusableLogin if the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise UnusableLogin(f"cannot lock '{path}': {error.strerror}") from None
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> None:
        import msvcrt

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                time.sleep(RETRY_SECONDS)

else:

    def _lock(descriptor: int) -> None:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


FOLDER = "logins"
CURRENT = "current"
"""The name of the file with the address of the current server. Files of logins end with `.json`."""
Where = Literal["keyring", "file"]


class _File(msgspec.Struct, frozen=True):
    """The file of one login. If the login is in the keyring, the file contains no secret."""

    server: str
    kept_in: Where
    login: Login | None = None


def place_of(server: str) -> Path:
    """Return the path of the file with the login for a server."""
    host = "".join(
        character if character.isalnum() or character in ".-" else "_" for character in httpx.URL(server).host
    )[:60]
    return configuration_folder() / FOLDER / f"{host}-{hashlib.sha256(server.encode()).hexdigest()[:16]}.json"


@contextmanager
def changing(server: str) -> Iterator[None]:
    """Hold the lock of the login for a server, so that only one process at a time changes the login."""
    place = place_of(server)
    make_folder(place.parent)
    with locked(place.with_suffix(".lock")):
        yield


def find_login(server: str) -> Login | None:
    """Return the login for a server, or None.

    Raise UnusableLogin if the login cannot be read, or if others can read it.
    """
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
        secret = find(server)
        return msgspec.json.decode(secret, type=Login) if secret is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnusableLogin(f"the login in '{place}' cannot be read", hint="Log in again.") from None


def keep_login(server: str, login: Login) -> Where:
    """Store the login for a server, and return the place. The caller holds the lock `changing`."""
    kept_in: Where = "keyring" if store(server, msgspec.json.encode(login).decode()) else "file"
    file = _File(server, kept_in, login if kept_in == "file" else None)
    write_private(place_of(server), msgspec.json.encode(file))
    return kept_in


def remove_login(server: str) -> None:
    """Remove the login for a server, even if it cannot be read. The caller holds the lock `changing`."""
    # The keyring may have an earlier login, from a time when the file was not needed.
    remove(server)
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
    """Store the address of the user's current server. None means the home of this computer."""
    place = configuration_folder() / FOLDER / CURRENT
    if server is None:
        remove_private(place)
        return
    make_folder(place.parent)
    write_private(place, f"{server}\n".encode())
