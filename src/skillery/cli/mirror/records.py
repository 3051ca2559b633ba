"""The mirrors of a user: one folder each, with a record and a copy of the source.

The copy (`tree`) is what the last refresh read. Each import sends the whole copy, so that the registry can tell which
skills are gone.
"""

from __future__ import annotations

import hashlib
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import platformdirs

from skillery.cli.locks import write_atomically
from skillery.errors import Conflict, InvalidParams, StartupError

RECORD = "mirror.json"


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """A source to follow, and the result of its last refresh."""

    id: str
    source: str
    namespace: str = ""
    review: bool = False
    every_seconds: float = 0.0
    """The shortest time between two refreshes. 0: each `skillery mirror run` refreshes it."""
    state: str = ""
    """What the copy was made from, as the source names it: a commit. "" for other sources."""
    imported: str = ""
    """The fingerprint of the copy that was imported last without an error."""
    tried_at: datetime | None = None
    result: str = ""
    """The outcome of the last refresh in words."""

    def is_due(self, now: datetime) -> bool:
        return self.tried_at is None or now - self.tried_at >= timedelta(seconds=self.every_seconds)

    @property
    def folder(self) -> Path:
        return mirrors_folder() / self.id

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def tried(self, **changes: object) -> Mirror:
        """Store the changes and the present time. Return the changed record."""
        changed = msgspec.structs.replace(self, tried_at=datetime.now(UTC), **changes)
        _store(changed)
        return changed


def mirrors_folder() -> Path:
    return Path(platformdirs.user_data_dir("skillery", appauthor=False)) / "mirrors"


def add_mirror(mirror: Mirror) -> None:
    """Store a new mirror. Raise Conflict if the user has a mirror with its id."""
    if (mirror.folder / RECORD).exists():
        raise Conflict(
            f"there is a mirror of {mirror.source!r} already: {mirror.id}",
            hint=f"Remove it first: skillery mirror remove {mirror.id}",
        )
    _store(mirror)


def list_mirrors() -> list[Mirror]:
    return [_read(path) for path in sorted(mirrors_folder().glob(f"*/{RECORD}"))]


def find_mirror(mirror_id: str) -> Mirror:
    """Return a mirror. Raise InvalidParams if the user has no such mirror."""
    for mirror in list_mirrors():
        if mirror.id == mirror_id:
            return mirror
    raise InvalidParams(f"there is no mirror {mirror_id[:80]!r}", hint="skillery mirror list shows all of them.")


def remove_mirror(mirror: Mirror) -> None:
    shutil.rmtree(mirror.folder)


def id_of(source: str, namespace: str) -> str:
    return hashlib.sha256(f"{source}\0{namespace}".encode()).hexdigest()[:12]


def _read(path: Path) -> Mirror:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mirror)
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"'{path}' is not a record of a mirror ({error}); delete its folder") from None


def _store(mirror: Mirror) -> None:
    mirror.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(mirror.folder / RECORD, msgspec.json.format(msgspec.json.encode(mirror)).decode())
