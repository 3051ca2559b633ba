"""The predicates of the statements that the server signs. They contain no text of the files of a version, so that the
purge of a version leaves none in copies.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from skillery.backends import Identity
from skillery.formats.bundle import Bundle
from skillery.formats.npm import NPM_LOCK
from skillery.formats.requirements import LOCK

Predicate = dict[str, Any]


def publication_predicate(bundle: Bundle, publisher: Identity, made_by: str | None, visibility: str) -> Predicate:
    """Say who has published a bundle, with which method. `made_by` is the method that made the bundle, or None."""
    locks = {file.path: f"sha256:{file.sha256}" for file in bundle.files if file.path in (LOCK, NPM_LOCK)}
    return {
        "publisher": publisher.name,
        "kind": publisher.kind,
        "method": made_by or "create_skill",
        "package_locks": locks,
        "visibility": visibility,
        "at": now(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
