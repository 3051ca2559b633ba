"""Facts of a version as an Agent Skill. They are computed once from the files of the version, and stored."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, dropwhile
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Storage
from skillery.contents.store import CHUNK_BYTES, inline_data, is_inline, open_content
from skillery.database import Database
from skillery.database.tables import exports, skill_versions
from skillery.errors import SkilleryError
from skillery.formats.agent_skill import MAX_DESCRIPTION, AgentSkill, agent_skill, cut
from skillery.formats.archives import FORMS, ArchiveEntry, Form, archive, fits_plain_tar
from skillery.formats.bundle import SKILL_MD, SKILL_TOML
from skillery.formats.names import index_name
from skillery.skills.files import FileRow

if TYPE_CHECKING:
    from skillery.exports.skill_exports import Exports

# -- A reader for the contents of a version's files. The files are read one after another, with constant memory --------


WINDOW_BYTES = 1024 * 1024
"""One query reads small files from the database until they have at least this many bytes together."""


class Contents:
    """Reads stored files with constant memory. Reading them in the order of their paths is the fastest. Blocking."""

    def __init__(self, database: Database, storage: Storage, files: Sequence[FileRow]) -> None:
        self._database = database
        self._storage = storage
        self._files = {file.path: file for file in files}
        self._heads: dict[str, tuple[bytes, int]] = {}
        """The new start and the new size of each file whose start is replaced, by path."""
        self._window: dict[str, bytes] = {}
        """The contents of the last query, by digest."""

    def replace_beginning(self, path: str, head: bytes, size: int) -> None:
        """Replace the start of a file by `head`. The new content has `size` bytes, and the stored end."""
        self._heads[path] = head, size

    def entries(self) -> list[ArchiveEntry]:
        return [ArchiveEntry(path, self.size(path), file.executable) for path, file in self._files.items()]

    def size(self, path: str) -> int:
        return self._heads[path][1] if path in self._heads else self._files[path].size_bytes

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of the stored content of a file."""
        return self._files[path].sha256

    def read(self, entry: ArchiveEntry) -> Iterable[bytes]:
        """Return the content of a file in pieces. Iterating raises ContentMissing if the storage does not have it."""
        file = self._files[entry.path]
        if entry.path not in self._heads:
            return self._stored(file)
        head, size = self._heads[entry.path]
        return chain([head], _behind(self._stored(file), file.size_bytes - (size - len(head))))

    def _stored(self, file: FileRow) -> Iterable[bytes]:
        """Return the stored content of a file in pieces."""
        if is_inline(file.size_bytes):
            data = self._small(file)
            if data is not None:
                return [data]
        return self._pieces(file.sha256)

    def whole(self, path: str) -> bytes:
        """Return the complete content of a file."""
        return b"".join(self.read(ArchiveEntry(path, self.size(path), executable=False)))

    def _small(self, wanted: FileRow) -> bytes | None:
        """Return the content of a small file, or None if it is not in the database.

        The query also reads the small files that follow, so that a bundle of many small files needs few queries.
        """
        if wanted.sha256 not in self._window:
            digests, size = [], 0
            for file in dropwhile(lambda file: file.path != wanted.path, self._files.values()):
                if is_inline(file.size_bytes):
                    digests.append(file.sha256)
                    size += file.size_bytes
                if size >= WINDOW_BYTES:
                    break
            self._window = self._database.read_now(partial(inline_data, digests=digests))
        return self._window.get(wanted.sha256)

    def _pieces(self, sha256: str) -> Iterator[bytes]:
        with self._database.read_now(partial(open_content, storage=self._storage, sha256=sha256)) as stream:
            while piece := stream.read(CHUNK_BYTES):
                yield piece


def _behind(pieces: Iterable[bytes], skipped: int) -> Iterator[bytes]:
    """Yield the pieces without their first `skipped` bytes."""
    for piece in pieces:
        if skipped < len(piece):
            yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def make_conform(contents: Contents, skill_md: str, name: str, manifest_json: str) -> AgentSkill:
    """Return the skill `name` as an Agent Skill. Change `contents` so that its file `skill_md` conforms too."""
    manifest: dict[str, Any] = msgspec.json.decode(manifest_json)
    skill = agent_skill(contents.whole(skill_md), name=index_name(name), description=manifest["description"])
    if skill.is_generated:
        contents.replace_beginning(skill_md, skill.head, len(skill.content))
    return skill


MAKER = 2
"""The version of the code that computes facts. Increase it if formats.agent_skill or formats.archives give other
output.
"""

_FACTS = select(exports.c.facts_json).where(
    exports.c.version_id == bindparam("version"), exports.c.maker == bindparam("made_by")
)

_MANY_FACTS = select(exports.c.version_id, exports.c.facts_json).where(
    exports.c.version_id.in_(bindparam("versions", expanding=True)), exports.c.maker == bindparam("made_by")
)


class Facts(msgspec.Struct, frozen=True):
    """Facts of one version. `name` is the index name. Digests are SHA-256 in hex."""

    name: str
    description: str
    skill_md: str
    skill_md_bytes: int
    is_generated: bool
    """Whether the exported SKILL.md is generated, because the stored one does not conform."""
    archives: dict[Form, str]
    files: tuple[str, ...]
    head: str = ""
    """If the file is generated, the start of the exported SKILL.md, in place of the stored start."""

    @property
    def is_lone(self) -> bool:
        """Whether the skill has only SKILL.md and skill.toml. Only registries read skill.toml."""
        return set(self.files) <= {SKILL_MD, SKILL_TOML}

    @property
    def form(self) -> Form:
        """The archive format of the skill in indexes: `tar.gz`, or `zip` if a path is too long for a plain tar."""
        return "tar.gz" if all(fits_plain_tar(path) for path in self.files) else "zip"


def make_facts(name: str, skill: AgentSkill, contents: Contents) -> Facts:
    """Return the facts of a skill. All its files are read. Blocking."""
    entries = contents.entries()
    digests = {form: _digest(archive(form, entries, contents.read)) for form in FORMS}
    return Facts(
        name,
        # Clients count UTF-16 units, and drop longer descriptions from an index.
        cut(skill.description, MAX_DESCRIPTION),
        hashlib.sha256(skill.content).hexdigest(),
        len(skill.content),
        skill.is_generated,
        digests,
        tuple(entry.path for entry in entries),
        skill.head.decode(),
    )


def find_facts(connection: Connection, version_id: int) -> Facts | None:
    """Return the stored facts of a version by this MAKER, or None."""
    value = connection.scalar(_FACTS, {"version": version_id, "made_by": MAKER})
    return read_facts(value) if value else None


def find_many_facts(connection: Connection, *, version_ids: Sequence[int]) -> dict[int, Facts]:
    """Return the stored facts of versions, by version id."""
    rows = connection.execute(_MANY_FACTS, {"versions": version_ids, "made_by": MAKER})
    return {row.version_id: read_facts(row.facts_json) for row in rows}


def read_facts(text: str) -> Facts:
    return msgspec.json.decode(text, type=Facts)


def keep_facts(connection: Connection, facts: Mapping[int, Facts]) -> None:
    """Store facts by version id, except for versions that were purged in the meantime.

    The rows are sorted by id, so that two servers do not deadlock.
    """
    columns = skill_versions.c
    not_purged = select(columns.id).where(columns.id.in_(facts), columns.status != "purged").order_by(columns.id)
    alive = set(connection.scalars(not_purged.with_for_update(read=True)))
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    insertion = dialect.insert(exports)
    updated_columns = {"maker": insertion.excluded.maker, "facts_json": insertion.excluded.facts_json}
    rows = [
        {"version_id": version_id, "maker": MAKER, "facts_json": msgspec.json.encode(entry).decode()}
        for version_id, entry in sorted(facts.items())
        if version_id in alive
    ]
    if rows:
        connection.execute(insertion.on_conflict_do_update(index_elements=["version_id"], set_=updated_columns), rows)


def _digest(pieces: Iterable[bytes]) -> str:
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


# -- Facts that are computed in the background, before a client requests an index --------------------------------------


log = logging.getLogger(__name__)
QUIET_SECONDS = 1.0
"""The computation starts this long after the last publishing, so that it does not slow down an import."""
REST_SECONDS = 0.05
"""Seconds between two batches, in which the processor is free for requests."""
MOST_NAMES = 5_000
"""The maximum number of remembered skill names. After more publishings, all skills are checked."""


class FactsPreparation:
    """Computes the facts of latest versions in the background: of all skills at start, then of newly published ones."""

    def __init__(self, exports: Exports) -> None:
        self._exports = exports
        self._names: set[str] | None = None
        """The names of the skills to check, or None for all skills."""
        self._changed = asyncio.Event()
        self._changed.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def note(self, name: str) -> None:
        """Remember that a version of the skill `name` was published."""
        if self._names is not None:
            self._names.add(name)
            if len(self._names) > MOST_NAMES:
                self._names = None
        self._changed.set()

    async def _go_on(self) -> None:
        """Compute facts whenever versions were published and then no further ones for QUIET_SECONDS."""
        while True:
            await self._changed.wait()
            await self._wait_for_quiet()
            names, self._names = self._names, set()
            try:
                await self._prepare(None if names is None else sorted(names))
            except SkilleryError as error:
                log.warning("the index of Agent Skills is not prepared, so its first reader waits: %s", error.message)
            except Exception:
                log.exception("the index of Agent Skills could not be prepared")

    async def _wait_for_quiet(self) -> None:
        while self._changed.is_set():
            self._changed.clear()
            await asyncio.sleep(QUIET_SECONDS)

    async def _prepare(self, names: Sequence[str] | None) -> None:
        after: str | None = ""
        while after is not None:
            after = await self._exports.prepare(after, names)
            await asyncio.sleep(REST_SECONDS)
