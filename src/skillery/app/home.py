"""The home: the folder of a server. Only one process at a time can hold the lock of a home."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from skillery.context.disks import Disks
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.backends import Storage
    from skillery.database import Database

LOCK = "server.lock"
SERVER_ID = "server.id"
LOCK_ATTEMPTS = 20
RETRY_SECONDS = 0.01


class HomeInUse(StartupError):
    """Raised if another process holds the home."""


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a home, as the lock file records it."""

    pid: int
    url: str | None = None
    """Address of the server. None while the server starts, and for a command that works on the home without a
    server.
    """
    auth: str | None = None
    """The setting `auth` of the server."""
    database: str | None = None
    """URL of the server's database, without its password."""


class Home:
    """A home that this process holds until `close` is called."""

    def __init__(self, path: Path) -> None:
        """Create the folder if it is missing, and lock the home.

        Raise StartupError if the folder cannot be created or another process holds the home.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock: IO[bytes] = (path / LOCK).open("a+b")
        except OSError as error:
            raise StartupError(
                f"the home {path} cannot be used: {error.strerror}; choose another with --home or SKILLERY_HOME"
            ) from None
        try:
            _lock(self._lock, path)
        except StartupError:
            self._lock.close()
            raise
        self._record(Holder(os.getpid()))
        self.server_id = _server_id(path)

    def announce(self, url: str, auth: str, database: str) -> None:
        """Record the address, `auth` and database of this process's server in the lock file, where commands read them.
        `database` is the URL without its password.
        """
        self._record(Holder(os.getpid(), url, auth, database))

    def _record(self, holder: Holder) -> None:
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(msgspec.json.encode(holder))
        self._lock.flush()

    def close(self) -> None:
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.close()


def disks_of(home: Home, database: Database, storage: Storage) -> Disks:
    """Return the disks of a server: those of its home, its SQLite database and its storage in a folder."""
    folders = {"home": home.path, "cache": home.path / "cache", "environments": home.path / "environments"}
    if database.is_sqlite and database.url.database:
        folders["database"] = Path(database.url.database).resolve().parent
    if isinstance(folder := getattr(storage, "folder", None), Path):
        folders["storage"] = folder
    return Disks(folders)


def holder_of(path: Path) -> Holder | None:
    """Return the process that holds the home, or None if no process holds it or the lock file cannot be read."""
    try:
        with (path / LOCK).open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return msgspec.json.decode(lock.read(), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None
    return None


def server_id_of(path: Path) -> str | None:
    """Return the id that a server of this home writes into its runs, or None if the home was never opened."""
    file = path / SERVER_ID
    return file.read_text().strip() or None if file.is_file() else None


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock the file of the home at `path`. Raise StartupError if another process holds the lock, or if locking fails.

    A failed attempt is repeated, because `holder_of` holds a shared lock for a short time.
    """
    for _ in range(LOCK_ATTEMPTS):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise StartupError(f"the home {path} cannot be locked: {error.strerror}") from None
        if holder_of(path) is not None:
            break
        time.sleep(RETRY_SECONDS)
    raise HomeInUse(_in_use_message(path))


def _in_use_message(path: Path) -> str:
    holder = holder_of(path)
    caller = "another process" if holder is None else f"process {holder.pid}"
    address = f", listening at {holder.url}" if holder and holder.url else ""
    return f"the home {path} is in use by {caller}{address}; stop that process, or choose another home with --home"


def _server_id(path: Path) -> str:
    """Return the server id of a home. Create the id at the first start.

    The id never changes, so a starting server can find and close the runs of its predecessor, if that was killed.
    """
    server_id = server_id_of(path)
    if server_id:
        return server_id
    file = path / SERVER_ID
    new_id = secrets.token_hex(16)
    partial = path / f".{SERVER_ID}.partial"
    partial.write_text(new_id)
    partial.rename(file)
    return new_id
