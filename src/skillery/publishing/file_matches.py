"""Comparison of files with the files of a version: the stored files, or the files of its export."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from skillery.backends import Storage
from skillery.formats.agent_skill import agent_skill, index_name
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, BundleFile
from skillery.formats.requirements import LOCK
from skillery.registry.version_rows import VersionRow
from skillery.skills.files import files_of, read_file


def holds(connection: Connection, storage: Storage, row: VersionRow, files: Sequence[BundleFile]) -> bool:
    """Return whether the given files are the files of a version.

    File modes do not matter, because clients that install a skill lose them. skill.toml and requirements.lock may be
    missing, because the server adds them. SKILL.md may be the stored file, or the file that an export contains.
    """
    stored = {file.path: file.sha256 for file in files_of(connection, row.version_id)}
    given = {file.path: file.sha256 for file in files}
    for added in (SKILL_TOML, LOCK):
        if added not in given:
            stored.pop(added, None)
    skill_md, stored_md = given.pop(SKILL_MD, ""), stored.pop(SKILL_MD, None)
    return given == stored and (skill_md == stored_md or skill_md == _exported(connection, storage, row))


def _exported(connection: Connection, storage: Storage, row: VersionRow) -> str:
    """Return the SHA-256 of the SKILL.md that an export of the version contains."""
    description: str = msgspec.json.decode(row.manifest_json)["description"]
    content = read_file(connection, storage, row, SKILL_MD)
    made = agent_skill(content, name=index_name(row.name), description=description)
    return hashlib.sha256(made.content).hexdigest()
