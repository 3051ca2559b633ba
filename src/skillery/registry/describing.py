"""describe_skill: a version's manifest and documentation, mostly stored ready to send."""

from __future__ import annotations

from typing import Literal

import msgspec
from sqlalchemy import Connection

from skillery.backends import Storage
from skillery.formats.version_spec import VersionSpec
from skillery.registry.reading import files_of, read_file
from skillery.registry.resolving import resolve

Detail = Literal["manifest", "summary", "full"]


def describe_skill(
    connection: Connection, storage: Storage, *, name: str, spec: VersionSpec, detail: Detail
) -> msgspec.Raw:
    """`{"skill": {…}}` as JSON. Raises SkillNotFound, VersionNotFound."""
    row = resolve(connection, name, spec)
    parts = [
        f'"name":{_json(row.name)},"version":{_json(row.version)},"kind":"{row.kind}","digest":"{row.digest}",'
        f'"status":"{row.status}","warnings":{row.warnings_json},"manifest":{row.manifest_json}'
    ]
    if detail != "manifest":
        parts.append(f'"skill_md_frontmatter":{row.frontmatter_json}')
    if detail == "full":
        skill_md = read_file(connection, storage, row, "SKILL.md").decode()
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
