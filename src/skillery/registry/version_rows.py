"""The values of one version, as resolution returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from skillery.errors import VersionPurged
from skillery.formats.bundle import BundleFile
from skillery.formats.names import namespace_of
from skillery.formats.wording import one_line


class Unstored(NamedTuple):
    """The files and tools of a development version, which has no rows in the database."""

    files: Mapping[str, BundleFile]
    """The files by path, sorted by path."""
    tools: Mapping[str, tuple[str | None, str]]
    """For each tool, sorted by name: the path of its handler, and its item in list_tools as JSON text."""


class _Stated(msgspec.Struct):
    kind: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    namespace: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_stated = msgspec.json.Decoder(_Stated)


MOST_REASON = 300
"""Limit of the characters of a reason in a warning."""


def standing_warnings(standing_json: str | None) -> list[str]:
    """Return a line for the deprecation, yank and rejection of a version. describe_skill has the whole texts."""
    standing: dict[str, Any] = msgspec.json.decode(standing_json) if standing_json else {}
    found = []
    if deprecated := standing.get("deprecated"):
        instead = f" Use '{deprecated['successor']}' instead." if deprecated["successor"] else ""
        message = one_line(deprecated["message"], MOST_REASON)
        found.append(f"deprecated: {message}{instead if message.endswith(('.', '!', '?')) else f'.{instead}'}")
    stated = (one for one in ("yanked", "rejected") if one in standing)
    return [*found, *(f"{one}: {one_line(standing[one]['reason'], MOST_REASON)}" for one in stated)]


def with_warnings(item_json: str, warnings: list[str]) -> str:
    """Return the JSON text of an item of a listing with its warnings, if there are any."""
    return f'{item_json[:-1]},"warnings":{msgspec.json.encode(warnings).decode()}}}' if warnings else item_json


class VersionRow(NamedTuple):
    """A version. Its immutable parts are JSON text that answers contain unchanged."""

    version_id: int
    """The id of the row. A development version has a negative number that no other version has."""
    name: str
    version: str
    digest: str
    kind: str
    status: str
    manifest_json: str
    frontmatter_json: str
    warnings_json: str
    skill_id: int
    visibility: str
    publisher: str
    publisher_kind: Literal["person", "agent"]
    standing_json: str | None
    labels_text: str | None
    """The labels that point to the version, separated by commas."""
    checks_json: str | None
    provenance_json: str | None
    """The CI job that published the version, or None."""
    unstored: Unstored | None = None
    """The files and tools of a development version. None for a stored version."""

    @property
    def whole_manifest_json(self) -> str:
        """The manifest as JSON, with `kind` and `namespace` even if the author left them out."""
        stated = _stated.decode(self.manifest_json)
        if stated.kind is not msgspec.UNSET and stated.namespace is not msgspec.UNSET:
            return self.manifest_json
        inferred = {"kind": self.kind, "namespace": namespace_of(self.name)}
        more = {key: value for key, value in inferred.items() if getattr(stated, key) is msgspec.UNSET}
        comma = "," if len(self.manifest_json) > len("{}") else ""
        return f"{self.manifest_json[:-1]}{comma}{msgspec.json.encode(more)[1:].decode()}"

    @property
    def stored_ids(self) -> tuple[int | None, int | None]:
        """The ids of the rows of the version and of its skill. A development version has none."""
        return (self.version_id, self.skill_id) if self.unstored is None else (None, None)


def version_purged(row: VersionRow) -> VersionPurged:
    """Return the error for a purged version, with the reason if `row` was read after the purge."""
    purged = msgspec.json.decode(row.standing_json or "{}").get("purged")
    what = f"'{row.name}' {row.version} was purged"
    return VersionPurged(
        f"{what} at {purged['at']}: {purged['reason']}" if purged else what,
        hint="The files of this version no longer exist. Use another version: list_versions shows all versions.",
        name=row.name,
        version=row.version,
        digest=row.digest,
        reason=purged and purged["reason"],
    )
