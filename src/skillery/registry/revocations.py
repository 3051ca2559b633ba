"""Which callers may read and run revoked versions: versions that were yanked as `security` or `malicious`, and purged
ones.

| severity | reading the exact version | running the exact version |
|---|---|---|
| `broken` | all who see it | all who see it, with a warning |
| `security` | all who see it | reviewers of the skill |
| `malicious` | people who publish or review the skill | no caller |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skillery.backends import Identity
from skillery.errors import RunRevoked, VersionPurged, VersionRevoked
from skillery.identity import access
from skillery.registry.version_rows import VersionRow, is_severe, yank_of
from skillery.registry.visibility import is_model, require_audience


def revocation_of(row: VersionRow) -> Mapping[str, Any] | None:
    """Return the yank of a version with the severity `security` or `malicious`, or None for other versions."""
    yank = yank_of(row.standing_json) if row.status == "yanked" else {}
    return yank if is_severe(yank) else None


def reads_malicious(identity: Identity, name: str) -> bool:
    """Return whether the identity may read malicious versions of a skill. Models never get their texts."""
    return not is_model(identity) and (access.publishes(identity, name) or access.reviews(identity, name))


def require_readable(identity: Identity, row: VersionRow) -> None:
    """Raise PeopleOnly if a model asks for a version that only people may start. Raise the errors of
    `require_harmless`.
    """
    require_audience(identity, row.name, row.audience)
    require_harmless(identity, row)


def require_harmless(identity: Identity, row: VersionRow) -> None:
    """Raise VersionRevoked for a malicious version, unless the identity may read it."""
    revocation = revocation_of(row)
    if revocation is None or revocation["severity"] != "malicious" or reads_malicious(identity, row.name):
        return
    raise VersionRevoked(
        f"'{row.name}' {row.version} is malicious ({revocation['advisory']}): {revocation['reason']}",
        hint="Delete all copies of this version. list_versions shows the other versions.",
        name=row.name,
        version=row.version,
        digest=row.digest,
        advisory=revocation["advisory"],
        reason=revocation["reason"],
    )


def require_runnable(identity: Identity, row: VersionRow) -> None:
    """Raise RunRevoked if no run of the identity may use a version."""
    revocation = revocation_of(row)
    if revocation is None:
        return
    is_malicious = revocation["severity"] == "malicious"
    if not is_malicious and access.reviews(identity, row.name):
        return
    raise RunRevoked(
        f"'{row.name}' {row.version} is not run: it was yanked as {revocation['severity']} "
        f"({revocation['advisory']}): {revocation['reason']}",
        hint="Use another version: list_versions shows all versions."
        + ("" if is_malicious else " Reviewers of the skill may run it."),
        name=row.name,
        version=row.version,
        advisory=revocation["advisory"],
        severity=revocation["severity"],
    )


def version_purged(row: VersionRow) -> VersionPurged:
    """Return the error for a purged version. It has the reason, unless `row` was read before the purge."""
    purged = msgspec.json.decode(row.standing_json or "{}").get("purged")
    message = f"'{row.name}' {row.version} was purged"
    advisory = purged.get("advisory") if purged else None
    about = f" ({advisory})" if advisory else ""
    return VersionPurged(
        f"{message} at {purged['at']}{about}: {purged['reason']}" if purged else message,
        hint="The files of this version no longer exist. Use another version: list_versions shows all versions.",
        name=row.name,
        version=row.version,
        digest=row.digest,
        reason=purged and purged["reason"],
        **({"advisory": advisory} if advisory else {}),
    )
