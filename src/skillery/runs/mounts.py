"""The mounts of a run: skills, tools of sessions, and blobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from skillery.backends import BlobMount, Identity, SkillMount
from skillery.contents.blob_rows import BlobRow, find_blob
from skillery.database import Database
from skillery.errors import InvalidParams
from skillery.formats.names import import_name
from skillery.formats.version_spec import VersionSpec, parse_reference
from skillery.registry.version_rows import VersionRow
from skillery.runs.cache import Cache
from skillery.runs.declarations import Declarations
from skillery.runs.permissions import has_permissions
from skillery.runs.scripts import SESSION_SKILL, session_files
from skillery.tools.tool_lookup import FoundTool

MOST_MOUNTS = 100
MOST_BLOBS = 1_000


class Reference(NamedTuple):
    """A skill, and the version spec that selects one of its versions."""

    name: str
    spec: VersionSpec


def parse_mounts(texts: Sequence[str]) -> list[Reference]:
    """Return the references in `mount_skills`. Each text is `name` or `name@<version spec>`.

    Raise InvalidParams if there are too many texts, or the error of `parse_reference` if a text is invalid.
    """
    if len(texts) > MOST_MOUNTS:
        raise InvalidParams(
            f"'mount_skills' names {len(texts)} skills, at most {MOST_MOUNTS} are allowed", param="mount_skills"
        )
    return [Reference(*parse_reference(text)) for text in texts]


def check_mounts(versions: Sequence[VersionRow]) -> list[VersionRow]:
    """Return the versions without duplicates, in the given order.

    Raise InvalidParams if two of them are different versions of one skill, or if two skills have one import name.
    """
    by_import: dict[str, VersionRow] = {}
    for version in versions:
        mounted = by_import.setdefault(import_name(version.name), version)
        if mounted.name != version.name:
            raise InvalidParams(
                f"'{mounted.name}' and '{version.name}' would both be imported as {import_name(version.name)}",
                hint="Mount one of the two.",
            )
        if mounted.version_id != version.version_id:
            raise InvalidParams(
                f"'{version.name}' is mounted in two versions, {mounted.version} and {version.version}",
                hint="Mount one version of a skill.",
            )
    return list(by_import.values())


class Mounts:
    """Finds the skills, tools and blobs that a run mounts, and provides them as folders and files on this machine."""

    def __init__(self, database: Database, cache: Cache, declarations: Declarations) -> None:
        self._database = database
        self._cache = cache
        self._declarations = declarations

    async def find_blobs(self, identity: Identity, blob_ids: Sequence[str]) -> list[BlobRow]:
        """Return the blobs without duplicates. Raise BlobNotFound if the identity has no such blob, InvalidParams
        for too many ids.
        """
        wanted = list(dict.fromkeys(blob_ids))
        if len(wanted) > MOST_BLOBS:
            raise InvalidParams(f"a run was given {len(wanted)} blobs, at most {MOST_BLOBS} are allowed")

        def work(connection: Connection) -> list[BlobRow]:
            return [find_blob(connection, identity=identity, blob_id=blob_id) for blob_id in wanted]

        return await self._database.read(work) if wanted else []

    async def skills(self, versions: Sequence[VersionRow], *, stubs: bool = False) -> tuple[SkillMount, ...]:
        """Return the mounts of versions. With `stubs`, skills with permissions are mounted as stubs."""
        return tuple([await self._skill(version, stubs=stubs) for version in versions])

    async def tool(self, tool: FoundTool) -> SkillMount:
        """Return the mount of the tool's skill, or of the handler of a tool of a session."""
        if tool.version is not None:
            return await self._skill(tool.version, stubs=False)
        assert tool.session is not None, "a tool belongs to a version or to a session"
        return SkillMount(SESSION_SKILL, await asyncio.to_thread(self._cache.keep, session_files(tool.session)))

    async def blobs(self, rows: Sequence[BlobRow]) -> tuple[BlobMount, ...]:
        return tuple([BlobMount(row.id, await asyncio.to_thread(self._cache.blob, row)) for row in rows])

    async def _skill(self, version: VersionRow, *, stubs: bool) -> SkillMount:
        manifest = await self._declarations.manifest(version)
        runtime = manifest.called
        ready = self._cache.is_ready(version)
        folder = self._cache.bundle(version) if ready else await asyncio.to_thread(self._cache.bundle, version)
        if runtime is None:
            return SkillMount(version.name, folder)
        return SkillMount(version.name, folder, runtime.entrypoint, stub=stubs and has_permissions(manifest))
