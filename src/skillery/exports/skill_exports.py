"""The export of a version as an Agent Skill: its archive and its files, with a SKILL.md that conforms."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec
from sqlalchemy import Connection, bindparam, select

from skillery.backends import Identity, Storage
from skillery.context.threads import Workers
from skillery.database import Database
from skillery.database.tables import skill_versions
from skillery.errors import FileNotInSkill, SkilleryError, Unavailable
from skillery.exports.facts import (
    MAKER,
    Contents,
    Facts,
    find_facts,
    find_many_facts,
    keep_facts,
    make_conform,
    make_facts,
    read_facts,
)
from skillery.formats.archives import ArchiveEntry, Form, archive, archive_size
from skillery.formats.bundle import SKILL_MD
from skillery.formats.names import index_name
from skillery.formats.version_spec import Latest, VersionSpec
from skillery.registry.index_names import Listed, find_in_index, list_index, list_unprepared
from skillery.registry.repositories import RepositoryVersion
from skillery.registry.resolution import resolve
from skillery.registry.revocations import require_harmless
from skillery.registry.version_rows import VersionRow
from skillery.skills.files import FileRow, files_of

# -- Indexes of Agent Skills: the format of discovery 0.2.0, and the older format that lists files ---------------------


Kind = Literal["agent-skills", "skills"]
KINDS: tuple[Kind, ...] = ("agent-skills", "skills")
SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
MOST_BYTES = 32 * 1024 * 1024
"""The maximum size of an index. Further skills are left out, and the index is marked as truncated."""

# The paths that the older format can list: clients put them unescaped into URLs, and refuse an index with a path "..".
_PLAIN_PATH = re.compile(r"[A-Za-z0-9 !$&'()*+,./:;=@_~-]+")


class Index(NamedTuple):
    """An index as JSON, and its SHA-256 in hex."""

    content: bytes
    sha256: str

    @classmethod
    def of(cls, kind: Kind, entries: Sequence[bytes], *, is_whole: bool) -> Index:
        """Return the index with these entries. Unless `is_whole`, it has the field `truncated`."""
        head = b'"$schema":' + msgspec.json.encode(SCHEMA) + b"," if kind == "agent-skills" else b""
        more = b"" if is_whole else b'"truncated":true,'
        content = b"{" + head + more + b'"skills":[' + b",".join(entries) + b"]}"
        return cls(content, hashlib.sha256(content).hexdigest())


def index_entry(kind: Kind, listed: Listed, facts: Facts) -> bytes:
    """Return the entry of a skill as JSON, or b"" if this kind of index cannot list the skill."""
    if kind == "agent-skills":
        return msgspec.json.encode(_entry(listed, facts))
    if not all(_PLAIN_PATH.fullmatch(path) and ".." not in path for path in facts.files):
        return b""
    files = [SKILL_MD, *(path for path in facts.files if path != SKILL_MD)]
    return msgspec.json.encode({"name": facts.name, "description": facts.description, "files": files})


def _entry(listed: Listed, facts: Facts) -> dict[str, str]:
    """Return the entry of a skill in an index of discovery 0.2.0."""
    version = f"/skills/{listed.name}/{quote(listed.version, safe='')}"
    if facts.is_lone:
        kind, url, digest = "skill-md", f"{version}/{SKILL_MD}", facts.skill_md
    else:
        kind, url, digest = "archive", f"{version}.{facts.form}", facts.archives[facts.form]
    return {
        "name": facts.name,
        "type": kind,
        "description": facts.description,
        "url": url,
        "digest": f"sha256:{digest}",
    }


log = logging.getLogger(__name__)
ROWS_AT_ONCE = 200
PREPARED_AT_ONCE = 20
"""The maximum number of versions in one batch of preparation. A reader of missing facts waits for the current batch."""
_MANIFEST = select(skill_versions.c.manifest_json).where(skill_versions.c.id == bindparam("version"))
# Computing the first index takes long, so exports have separate threads.
_WORKERS = Workers("exports", 2)


class Export(NamedTuple):
    """A version in its exported form, with functions for its archives and files."""

    row: VersionRow
    facts: Facts
    contents: Contents

    def archive_size(self, form: Form) -> int:
        return archive_size(form, self.contents.entries())

    def archive(self, form: Form) -> Iterator[bytes]:
        """Yield the archive of the version in pieces. Blocking."""
        return archive(form, self.contents.entries(), self.contents.read)

    def file(self, path: str) -> File:
        """Return one file of the version. Raise FileNotInSkill if there is no such file."""
        if path not in self.facts.files:
            raise FileNotInSkill(
                f"'{self.row.name}' {self.row.version} has no file '{path}'",
                hint="describe_skill with detail 'full' lists its files.",
                name=self.row.name,
                version=self.row.version,
                path=path,
            )
        size = self.contents.size(path)
        sha256 = self.facts.skill_md if path == SKILL_MD else self.contents.sha256(path)
        return File(path, size, sha256, self.contents.read(ArchiveEntry(path, size, executable=False)))


class File(NamedTuple):
    path: str
    size: int
    sha256: str
    pieces: Iterable[bytes]
    """The content in pieces. Iterating blocks."""


class Exports:
    """Exports the skills that an identity sees as Agent Skills."""

    def __init__(self, database: Database, storage: Storage, most_listed: int) -> None:
        self._database = database
        self._storage = storage
        self._most_listed = most_listed
        self._making = threading.Lock()

    async def find(self, identity: Identity, name: str, spec: VersionSpec) -> Export:
        """Return the export of a version.

        Raise SkillNotFound, VersionNotFound or LabelNotFound if the identity sees no such version.
        """
        return await asyncio.to_thread(self._find, identity, name, spec)

    async def find_in_index(self, identity: Identity, namespace: str, wanted: str) -> Export:
        """Return the export of the latest version of the skill with the index name `wanted` in the index of a
        namespace.

        Raise SkillNotFound if the index has no such skill.
        """
        find = partial(find_in_index, identity=identity, namespace=namespace, wanted=wanted)
        name = await self._database.read(find)
        return await self.find(identity, name, Latest())

    async def index(self, identity: Identity, namespace: str, kind: Kind) -> Index:
        """Return the index of the skills that the identity sees in a namespace.

        A `namespace` of "" means the index of the server.
        """
        return await _WORKERS.run(self._index, identity, namespace, kind)

    async def facts_of(
        self, look: Callable[[Connection], Sequence[RepositoryVersion]]
    ) -> tuple[Sequence[RepositoryVersion], dict[int, Facts]]:
        """Return the versions that `look` finds, and their facts by version id. Missing facts are computed.

        If a version cannot be read, its facts are missing and the reason is logged.
        """
        return await _WORKERS.run(self._look_with_facts, look)

    def _look_with_facts(
        self, look: Callable[[Connection], Sequence[RepositoryVersion]]
    ) -> tuple[Sequence[RepositoryVersion], dict[int, Facts]]:
        versions = self._database.read_now(look)
        facts: dict[int, Facts] = {}
        for start in range(0, len(versions), ROWS_AT_ONCE):
            batch = versions[start : start + ROWS_AT_ONCE]
            facts |= self._facts_or_made(batch)
        return versions, facts

    def _facts_or_made(self, versions: Sequence[RepositoryVersion]) -> dict[int, Facts]:
        """Return the facts of versions by version id. Compute and store missing facts."""
        find = partial(find_many_facts, version_ids=[version.version_id for version in versions])
        stored = self._database.read_now(find)
        if len(stored) < len(versions):
            with self._making:
                stored = self._database.read_now(find)
                missing = [version for version in versions if version.version_id not in stored]
                new_facts = {
                    version.version_id: facts
                    for version in missing
                    if (facts := self._facts_or_none(version)) is not None
                }
                if new_facts:
                    self._keep(new_facts)
                stored |= new_facts
        return stored

    async def prepare(self, after: str, names: Sequence[str] | None) -> str | None:
        """Compute the missing facts of the next batch of latest versions, by skill name, after the name `after`.

        If `names` is given, only these skills are included. Return the last skill name of the batch, or None if no
        version is left.
        """
        return await _WORKERS.run(self._prepare, after, names)

    def _prepare(self, after: str, names: Sequence[str] | None) -> str | None:
        look = partial(list_unprepared, maker=MAKER, after=after, limit=PREPARED_AT_ONCE, names=names)
        with self._making:
            page = self._database.read_now(look)
            new_facts = {
                version.version_id: facts for version in page if (facts := self._facts_or_none(version)) is not None
            }
            if new_facts:
                self._keep(new_facts)
        return page[-1].name if page else None

    def _keep(self, facts: Mapping[int, Facts]) -> None:
        """Store facts. If the database is unavailable, log it only."""
        try:
            self._database.write_now(partial(keep_facts, facts=facts))
        except Unavailable as error:  # a reader gets its answer: facts can be computed again
            log.warning("facts of exports could not be stored: %s", error.message)

    def _find(self, identity: Identity, name: str, spec: VersionSpec) -> Export:
        """Return the export of a version. Compute and store its facts if they are missing."""

        def look(connection: Connection) -> tuple[VersionRow, Facts | None, list[FileRow]]:
            row = resolve(connection, identity, name, spec, manages=True)
            require_harmless(identity, row)
            return row, find_facts(connection, row.version_id), files_of(connection, row.version_id)

        row, facts, files = self._database.read_now(look)
        contents = Contents(self._database, self._storage, files)
        if facts is not None:
            if facts.is_generated:
                contents.replace_beginning(SKILL_MD, facts.head.encode(), facts.skill_md_bytes)
            return Export(row, facts, contents)
        skill = make_conform(contents, SKILL_MD, row.name, row.manifest_json)
        facts = make_facts(index_name(row.name), skill, contents)
        self._keep({row.version_id: facts})
        return Export(row, facts, contents)

    # -- indexes -------------------------------------------------------------------------------------------------

    def _index(self, identity: Identity, namespace: str, kind: Kind) -> Index:
        """Return an index from pages of skills, up to its limits."""
        entries: list[bytes] = []
        size, after = 0, ""
        while True:
            page = self._page(identity, namespace, after)
            for listed, facts in page:
                entry = index_entry(kind, listed, facts)
                if len(entries) == self._most_listed or size + len(entry) > MOST_BYTES:
                    return Index.of(kind, entries, is_whole=False)
                if entry:
                    entries.append(entry)
                size += len(entry)
                after = listed.index_name
            if len(page) < ROWS_AT_ONCE:
                return Index.of(kind, entries, is_whole=True)

    def _page(self, identity: Identity, namespace: str, after: str) -> list[tuple[Listed, Facts]]:
        """Return the next page of an index with its facts. Compute and store missing facts."""
        look = partial(list_index, identity=identity, namespace=namespace, maker=MAKER, after=after, limit=ROWS_AT_ONCE)
        page = self._database.read_now(look)
        if any(listed.facts_json is None for listed in page):
            # Other readers of an index wait here, instead of computing the same facts.
            with self._making:
                page = self._database.read_now(look)
                new_facts = {listed.version_id: self._facts_of(listed) for listed in page if listed.facts_json is None}
                if new_facts:
                    self._keep(new_facts)
        else:
            new_facts = {}
        return [
            (listed, read_facts(listed.facts_json) if listed.facts_json else new_facts[listed.version_id])
            for listed in page
        ]

    def _facts_or_none(self, listed: Listed | RepositoryVersion) -> Facts | None:
        """Return the facts of a version, or None if the version cannot be read, which is logged."""
        try:
            return self._facts_of(listed)
        except SkilleryError as error:
            log.warning("%s %s is not prepared for the index: %s", listed.name, listed.version, error.message)
            return None

    def _facts_of(self, listed: Listed | RepositoryVersion) -> Facts:
        def look(connection: Connection) -> tuple[str, list[FileRow]]:
            manifest = connection.execute(_MANIFEST, {"version": listed.version_id}).scalar_one()
            return manifest, files_of(connection, listed.version_id)

        manifest_json, files = self._database.read_now(look)
        contents = Contents(self._database, self._storage, files)
        skill = make_conform(contents, SKILL_MD, listed.name, manifest_json)
        return make_facts(listed.index_name, skill, contents)
