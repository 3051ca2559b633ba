"""The values of one version, as a look-up returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection

from skillery import events
from skillery.backends import EventType, Identity
from skillery.contents.store import is_inline
from skillery.formats.bundle import Bundle, BundleFile
from skillery.formats.check_results import CheckFinding
from skillery.formats.foreign_skill import Audience, audience_of, title_of
from skillery.formats.names import namespace_of
from skillery.formats.search_fields import MAX_BODY
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.formats.wording import one_line

Object = dict[str, Any]


class Unstored(NamedTuple):
    """The files and tools of a development version, whose rows are not in the database."""

    files: Mapping[str, BundleFile]
    """The files by path, sorted by path."""
    tools: Mapping[str, tuple[str | None, str]]
    """The path of the handler (or None) and the JSON item in list_tools of each tool, sorted by name."""


class _Stated(msgspec.Struct):
    """The fields of a manifest that an author may leave out."""

    kind: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    namespace: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_stated = msgspec.json.Decoder(_Stated)


MOST_REASON = 300
"""The maximum number of characters of a reason in a warning."""


def standing_warnings(standing_json: str | None) -> list[str]:
    """Return a line for each deprecation, yank and rejection of a version.

    describe_skill has the complete texts.
    """
    standing: dict[str, Any] = msgspec.json.decode(standing_json) if standing_json else {}
    warnings = []
    if deprecated := standing.get("deprecated"):
        instead = f" Use '{deprecated['successor']}' instead." if deprecated["successor"] else ""
        message = one_line(deprecated["message"], MOST_REASON)
        end = "" if message.endswith((".", "!", "?")) else "."
        warnings.append(f"deprecated: {message}{end}{instead}")
    withdrawals = (status for status in ("yanked", "rejected") if status in standing)
    return [*warnings, *(_withdrawn(status, standing[status]) for status in withdrawals)]


def _withdrawn(status: str, standing: Mapping[str, Any]) -> str:
    about = f" ({standing['severity']}, {standing['advisory']})" if is_severe(standing) else ""
    return f"{status}{about}: {one_line(standing['reason'], MOST_REASON)}"


def yank_of(standing_json: str | None) -> dict[str, Any]:
    """Return the yank in the standing of a version, or {} if there is none. Its members are those of Objection.
    Automatic yanks, and those of earlier releases, have no severity: they count as `broken`.
    """
    standing: dict[str, dict[str, Any]] = msgspec.json.decode(standing_json or "{}")
    return standing.get("yanked", {})


def is_severe(yank: Mapping[str, Any]) -> bool:
    """Return whether a version was yanked as `security` or `malicious`."""
    return yank.get("severity") in ("security", "malicious")


def with_warnings(item_json: str, warnings: list[str]) -> str:
    """Return the JSON of an item in a list, with `warnings` if there are any."""
    return f'{item_json[:-1]},"warnings":{msgspec.json.encode(warnings).decode()}}}' if warnings else item_json


class VersionRow(NamedTuple):
    """A version. Its immutable parts are JSON texts, which answers contain unchanged."""

    version_id: int
    """The id of the row. For a development version, a negative number that is unique in this process."""
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
    """The CI job that published the version as JSON, or None."""
    audience: Audience | None = None
    """For whom the author made the version, or None for all."""
    unstored: Unstored | None = None
    """The files and tools of a development version, or None for a stored version."""

    @property
    def whole_manifest_json(self) -> str:
        """The manifest as JSON, with `kind` and `namespace` added if the author left them out."""
        stated = _stated.decode(self.manifest_json)
        if stated.kind is not msgspec.UNSET and stated.namespace is not msgspec.UNSET:
            return self.manifest_json
        inferred = {"kind": self.kind, "namespace": namespace_of(self.name)}
        missing = {key: value for key, value in inferred.items() if getattr(stated, key) is msgspec.UNSET}
        comma = "," if len(self.manifest_json) > len("{}") else ""
        return f"{self.manifest_json[:-1]}{comma}{msgspec.json.encode(missing)[1:].decode()}"

    @property
    def stored_ids(self) -> tuple[int | None, int | None]:
        """The ids of the version's and of the skill's row. (None, None) for a development version."""
        return (self.version_id, self.skill_id) if self.unstored is None else (None, None)


# -- The JSON texts of a version that answers contain unchanged --------------------------------------------------------


def item_texts(bundle: Bundle) -> tuple[str, str]:
    """Return two JSON items of the version in list_skills: for the detail `names` and for the detail `summary`."""
    manifest = bundle.manifest
    names = {
        "name": manifest.name,
        "version": str(manifest.version),
        "description": manifest.description,
        "namespace": manifest.namespace,
        "kind": manifest.kind,
    }
    if title := title_of(bundle.skill_md.typed, bundle.skill_md.body, manifest.name):
        names["title"] = title
    summary = names | {
        "tags": list(manifest.tags),
        "inputs": manifest.raw.get("inputs", {}),
        "tools": [tool.name for tool in bundle.tools],
    }
    return text_of(names), text_of(summary)


def text_of(value: object) -> str:
    return msgspec.json.encode(value).decode()


# -- The columns of a new version --------------------------------------------------------------------------------------


class VersionValues(NamedTuple):
    """The columns of `skill_versions` for a new version."""

    skill_id: int
    version: str
    precedence: bytes
    is_release: bool
    status: str
    kind: str
    namespace: str
    digest: str
    size_bytes: int
    manifest_json: str
    frontmatter_json: str
    warnings_json: str
    names_json: str
    summary_json: str
    publisher: str
    publisher_kind: str
    created_at: datetime
    skill_md_start: str | None
    """The start of SKILL.md for the search, or None if the database stores the whole SKILL.md.

    A large SKILL.md is in the storage, and no transaction waits for the storage.
    """
    checks_json: str | None
    made_by: str | None
    provenance_json: str | None
    audience: Audience | None


def values_of(
    bundle: Bundle, identity: Identity, skill_id: int, status: str, checks_json: str | None, made_by: str | None
) -> VersionValues:
    """Return the columns of a new version. `made_by` is the method that generated the bundle, or None."""
    manifest = bundle.manifest
    names, summary = item_texts(bundle)
    skill_md_size = next(file.size for file in bundle.files if file.path == SKILL_MD)
    return VersionValues(
        skill_id=skill_id,
        version=str(manifest.version),
        precedence=manifest.version.precedence,
        is_release=manifest.version.is_release,
        status=status,
        kind=manifest.kind,
        namespace=manifest.namespace,
        digest=bundle.digest,
        size_bytes=bundle.size_bytes,
        manifest_json=text_of(manifest.raw),
        frontmatter_json=text_of(bundle.skill_md.typed),
        warnings_json=text_of(bundle.warnings),
        names_json=names,
        summary_json=summary,
        publisher=identity.name,
        publisher_kind=identity.kind,
        created_at=datetime.now(UTC),
        skill_md_start=None if is_inline(skill_md_size) else bundle.skill_md.body[:MAX_BODY],
        checks_json=checks_json,
        made_by=made_by,
        provenance_json=text_of(identity.provenance) if identity.provenance else None,
        audience=audience_of(bundle.skill_md.typed),
    )


# -- The events of versions: each is recorded in the transaction that changes the version ------------------------------


_OF_STEP: Mapping[str, tuple[EventType, ...]] = {
    "submit": ("submitted",),
    "approve": ("approved", "published"),
    "publish": ("published",),
    "reject": ("rejected",),
    "yank": ("yanked",),
}
_OF_STATUS: Mapping[str, EventType] = {"in_review": "submitted", "published": "published"}


def record_step(
    connection: Connection,
    identity: Identity,
    step: str,
    name: str,
    *,
    note: str,
    dependents: int | None = None,
    **version: str,
) -> None:
    """Record the events of a step of one version. `version` are its number, digest, status and publisher, and the
    severity and the advisory of a revocation. `dependents` is the number of versions that require a revoked version,
    or None for other steps. Their names are not told: not all readers of the event see them.
    """
    about = {**_about(identity, name), **version, "note": note}
    for kind in _OF_STEP.get(step, ()):
        events.record(connection, kind, skill=name, **about)
    if dependents is not None:
        events.record(connection, "revoked", skill=name, **about, dependents=dependents)


def record_deprecation(
    connection: Connection, identity: Identity, name: str, versions: Sequence[str], deprecated: Mapping[str, Any]
) -> None:
    """Record the event that `versions` of a skill are deprecated."""
    events.record(connection, "deprecated", skill=name, **_about(identity, name), versions=versions, **deprecated)


def record_new_version(
    connection: Connection,
    identity: Identity,
    name: str,
    findings: Sequence[CheckFinding],
    **version: str,
) -> None:
    """Record the events of a new version: submitted or published, and its findings."""
    about = _about(identity, name) | version
    if version["status"] in _OF_STATUS:
        events.record(connection, _OF_STATUS[version["status"]], skill=name, **about, note="")
    if findings:
        record_findings(connection, name, findings, **about)


def record_findings(connection: Connection, name: str, findings: Sequence[CheckFinding], /, **about: str) -> None:
    """Record the event that a stored version has findings. `about` has at least its `version`."""
    builtins = msgspec.to_builtins(list(findings))
    values = {"name": name, "namespace": namespace_of(name), **about}
    events.record(connection, "finding", skill=name, **values, findings=builtins)


def _about(identity: Identity, name: str) -> dict[str, str]:
    """Return the data of an event that all events of versions have."""
    return {"name": name, "namespace": namespace_of(name), "by": identity.name, "by_kind": identity.kind}


class Approval(Struct, frozen=True):
    """The reviewer who approved a version."""

    by: str
    kind: str
    at: str
    digest: str
    note: str


Severity = Literal["broken", "security", "malicious"]


class Objection(Struct, frozen=True):
    """The identity that rejected or yanked a version, and the reason."""

    by: str
    kind: str
    at: str
    reason: str
    severity: Severity | UnsetType = UNSET
    advisory: Annotated[str | UnsetType, Meta(description="Id of the advisory about a yank")] = UNSET
    fixed: Annotated[str | UnsetType, Meta(description="The version without the problem")] = UNSET


Status = Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]
