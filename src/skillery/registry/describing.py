"""describe_skill: a version's manifest and documentation, mostly stored ready to send."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.formats.skill_md import text_of
from skillery.formats.version_spec import VersionSpec
from skillery.registry.index_names import index_name_warning
from skillery.registry.locked import lock_json
from skillery.registry.reading import files_of, read_file
from skillery.registry.resolving import VersionRow, resolve
from skillery.registry.usage import usage_of

Detail = Literal["manifest", "summary", "full"]


def describe_skill(
    connection: Connection, identity: Identity, storage: Storage, *, name: str, spec: VersionSpec, detail: Detail
) -> msgspec.Raw:
    """`{"skill": {…}}` as JSON. Raises SkillNotFound, VersionNotFound, LabelNotFound."""
    row = resolve(connection, identity, name, spec)
    shared_name = index_name_warning(connection, identity, name)
    parts = [
        f'"name":{_json(row.name)},"version":{_json(row.version)},"kind":"{row.kind}","digest":"{row.digest}",'
        f'"status":"{row.status}","visibility":"{row.visibility}","warnings":{row.warnings_json},'
        f'"manifest":{row.manifest_json}'
        if row.standing_json is None and shared_name is None
        else _with_more_warnings(row, shared_name)
    ]
    parts[0] += lock_json(connection, storage, row, blocking=detail == "full")
    if detail != "manifest":
        usage = usage_of(connection, row.version_id)
        labels = sorted(row.labels_text.split(",")) if row.labels_text else []
        parts.append(f'"labels":{_json(labels)},"skill_md_frontmatter":{row.frontmatter_json},"usage":{_json(usage)}')
        # As it is stored, `verified` first; most versions have nothing to say.
        parts.append(row.checks_json[1:-1] if row.checks_json else '"verified":false')
    if detail == "full":
        skill_md = text_of(read_file(connection, storage, row, "SKILL.md"))
        files = [
            {
                "path": file.path,
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
                "executable": file.executable,
            }
            for file in files_of(connection, row.version_id)
        ]
        parts.append(f'"skill_md":{_json(skill_md)},"files":{_json(files)}')
    return msgspec.Raw(f'{{"skill":{{{",".join(parts)}}}}}'.encode())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _with_more_warnings(row: VersionRow, more: str | None) -> str:
    """The same for a version with more to say of: each of it as a field, and a warning for whoever uses it."""
    standing: dict[str, Any] = msgspec.json.decode(row.standing_json) if row.standing_json else {}
    warnings = [*msgspec.json.decode(row.warnings_json), *_warnings(standing), *([more] if more else [])]
    fields = {
        "name": row.name,
        "version": row.version,
        "kind": row.kind,
        "digest": row.digest,
        "status": row.status,
        "visibility": row.visibility,
        "warnings": warnings,
        **standing,
        "manifest": msgspec.Raw(row.manifest_json.encode()),
    }
    return _json(fields)[1:-1]


def _warnings(standing: dict[str, Any]) -> list[str]:
    found = []
    if deprecated := standing.get("deprecated"):
        instead = f" Use '{deprecated['successor']}' instead." if deprecated["successor"] else ""
        found.append(f"deprecated: {deprecated['message']}{instead}")
    found += [f"{status}: {standing[status]['reason']}" for status in ("yanked", "rejected") if status in standing]
    return found
