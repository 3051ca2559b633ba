"""The values of one version, as resolution returns them."""

from __future__ import annotations

from typing import Literal, NamedTuple


class VersionRow(NamedTuple):
    """A version. Its immutable parts are JSON text that answers contain unchanged."""

    version_id: int
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
