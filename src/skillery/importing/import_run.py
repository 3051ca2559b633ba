"""The run of one import.

Skills are read one after another, because each can affect the name of the next skill. A few skills are published at the
same time. Therefore only these few are in memory, even if the archive contains many skills.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from sqlalchemy import Connection

from skillery.backends import Identity
from skillery.context.threads import IMPORTS
from skillery.database import Database
from skillery.errors import PackageIndexUnavailable, SkilleryError, Unavailable
from skillery.formats.foreign_skill import REQUIRES, required_names
from skillery.formats.lenient_skill_md import read_skill_md
from skillery.formats.origins import check_document
from skillery.formats.repairs import Repair
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.formats.skill_toml import MAX_BYTES, toml_manifest
from skillery.importing.aliases import Removed, find_imported, mark_absent, note_removed
from skillery.importing.entries import Archive, shown
from skillery.importing.finder import Finder, LocatedSkill, Merged
from skillery.importing.free_names import Alias
from skillery.importing.identity import UPLOADS, Aliases, tree_path
from skillery.importing.preparation import PreparedSkill, SkillReader
from skillery.importing.publication import ImportOptions, SkillPublication
from skillery.importing.reports import SkillReport, Summary, refusal_of, report_of
from skillery.importing.roots import SKILL_TOML
from skillery.importing.skill_names import NamedSkill, Naming
from skillery.proof.dsse import ProofError
from skillery.publishing.publisher import Publisher

AT_ONCE = 12
"""The maximum number of skills that are published at the same time."""
AT_ONCE_BYTES = 32 * 1024 * 1024
"""If the files of these skills have more bytes than this together, no further skill is read."""
VERSIONS = "(a version of it)"
"""The path in the alias of versions that are uploaded for a named skill. No skill can have this path."""


def required_first(archive: Archive, roots: list[str]) -> tuple[list[str], frozenset[str]]:
    """Return the roots, each after those of the skills that its skill.toml or SKILL.md requires, and the names of all
    required skills. Blocking.
    """
    files = {each.path: each for each in archive.entries if each.path.rpartition("/")[2] in (SKILL_TOML, SKILL_MD)}
    requires, names = dict[str, Collection[str]](), dict[str, str]()
    for root in roots:
        toml, skill_md = (files.get(f"{root}/{name}".lstrip("/")) for name in (SKILL_TOML, SKILL_MD))
        with suppress(SkilleryError, OSError):  # the import of the skill reports the problem
            if toml is not None:
                manifest = toml_manifest(archive.read(toml)) if toml.size <= MAX_BYTES else {}
                names[root] = str(manifest.get("name"))
                requires[names[root]] = _required_by(manifest)
            elif skill_md is not None and skill_md.size <= MAX_BYTES:
                # Reading YAML is slow, and few skills have the key. Most skills are named as their folder.
                has_key, names[root] = REQUIRES.encode() in (content := archive.read(skill_md)), root.rpartition("/")[2]
                frontmatter = read_skill_md(content).skill_md.frontmatter if has_key else {}
                requires[names[root]] = required_names(frontmatter)
    required = frozenset(itertools.chain.from_iterable(requires.values()))
    if not required & requires.keys():
        return roots, frozenset()
    depths = dict[str, int]()
    with suppress(CycleError):  # publishing refuses these skills
        for name in TopologicalSorter(requires).static_order():
            depths[name] = 1 + max((depths[each] for each in requires.get(name, ())), default=0)
    return sorted(roots, key=lambda root: depths.get(names.get(root, ""), 0)), required


def _required_by(manifest: Mapping[str, Any] | None) -> Collection[str]:
    """Return the names of the skills that a manifest requires. Its values may have any type."""
    table = (manifest or {}).get("requires")
    skills = table.get("skills") if isinstance(table, Mapping) else None
    return skills.keys() if isinstance(skills, Mapping) else ()


class _ReadSkill(NamedTuple):
    """A skill that was already read. Later skills that state the same name are compared with it."""

    root: str
    source_digest: str


class ImportRun:
    """One import: reads and names the skills in order, and publishes a few at the same time."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        identity: Identity,
        options: ImportOptions,
        finder: Finder,
        skill_reader: SkillReader,
        aliases: Aliases,
        required: Collection[str] = (),
    ) -> None:
        """`required` are the names of skills that other skills of the import require."""
        self._required = required
        self._tasks: dict[str, asyncio.Task[SkillReport]] = {}
        """The tasks that publish the required skills, by name."""
        self._database = database
        self._identity = identity
        self._options = options
        self._finder = finder
        self._skill_reader = skill_reader
        self._aliases = aliases
        self._naming = Naming(identity, skill_reader, options.take_over)
        self._publication = SkillPublication(database, publisher, identity, options, self._naming)
        self._read_skills: dict[str, list[_ReadSkill]] = {}
        self._kept_paths: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._repaired = 0
        self._stopped = False
        self._unread = 0
        self._held_bytes = 0

    async def reports(self, roots: list[str], merged: Iterable[Merged] = ()) -> AsyncGenerator[SkillReport, None]:
        """Yield the reports of the skills in the order of `roots`, then those of the links to skills."""
        under_way: deque[asyncio.Task[SkillReport]] = deque()
        try:
            for root in roots:
                if self._stopped:
                    break
                under_way.append(await self._start_skill(root))
                while under_way and (self._is_full(len(under_way)) or under_way[0].done()):
                    yield self._count(await under_way.popleft())
            while under_way:
                yield self._count(await under_way.popleft())
            for link in merged if not self._stopped else ():
                yield self._count(SkillReport(path=shown(link.path), outcome="merged", by=shown(link.by)))
        finally:
            # Skills under way are finished even if the client has disconnected.
            await asyncio.gather(*under_way, return_exceptions=True)

    async def summary(self) -> Summary:
        removed: tuple[Removed, ...] = ()
        # A skill that could not be read may be one of those that seem missing. So no skill counts as removed then.
        if not (self._stopped or self._unread or self._options.is_upload):
            removed = await self._removed()
        missed = tuple(sorted(self._options.take_over - self._naming.taken_over))
        return Summary(
            dict(self._counts), self._repaired, removed, self._unread, self._stopped, self._aliases.source.name, missed
        )

    async def _removed(self) -> tuple[Removed, ...]:
        source, paths = self._aliases.source, self._aliases.paths
        if not source.name or (source.is_default and not paths):
            return ()

        def work(connection: Connection) -> tuple[Removed, ...]:
            prune = self._options.prune and not self._options.dry_run
            removed = note_removed(
                connection, self._identity, source.namespace, source.name, self._kept_paths, prune=prune
            )
            if not self._options.dry_run:
                mark_absent(connection, source.namespace, source.name, lambda path: tree_path(path) in paths)
            return tuple(removed)

        return await self._database.write(work)

    def _is_full(self, under_way: int) -> bool:
        return under_way >= AT_ONCE or self._held_bytes > AT_ONCE_BYTES

    def _count(self, report: SkillReport) -> SkillReport:
        self._counts[report.outcome] += 1
        self._repaired += any(not repair.harmless for repair in report.repairs)
        return report

    # -- one skill ---------------------------------------------------------------------------------------------------

    async def _start_skill(self, root: str) -> asyncio.Task[SkillReport]:
        """Read a skill and determine its name. Return the task that publishes the skill.

        If the skill cannot be read, or is a copy of an earlier skill, return a finished task with its report.
        """
        located, prepared = await IMPORTS.run(self._read, root)
        if isinstance(prepared, PreparedSkill):
            return await self._name_and_import(prepared)
        self._unread += 1
        return _ready(refusal_of(located, None, prepared))

    def _read(self, root: str) -> tuple[LocatedSkill, PreparedSkill | Exception]:
        skill = LocatedSkill(root, {}, None, (), None)
        try:
            skill = self._finder.skill(root)
            return skill, _with_checked_origin(self._skill_reader.prepare(skill))
        except Exception as error:  # noqa: BLE001 - reported and logged: a failed skill does not stop the others
            return skill, error

    async def _name_and_import(self, prepared: PreparedSkill) -> asyncio.Task[SkillReport]:
        same_named = self._read_skills.setdefault(prepared.key, [])
        same = next((skill for skill in same_named if skill.source_digest == prepared.source_digest), None)
        if same is not None:
            return _ready(report_of(prepared, "merged", by=shown(same.root)))
        first = same_named[0] if same_named else None
        same_named.append(_ReadSkill(prepared.located.root, prepared.source_digest))
        if first is not None:
            prepared = _with_path_in_alias(prepared, first)
        self._kept_paths.add(self._aliases.alias_of(prepared.located.root, prepared.key).path)
        task = asyncio.create_task(self._import(prepared, await self._name(prepared)))
        if prepared.stated in self._required:
            self._tasks[prepared.stated] = task
        # Let the task start now, because reading the next skill takes time.
        await asyncio.sleep(0)
        return task

    async def _name(self, prepared: PreparedSkill) -> NamedSkill | SkilleryError:
        try:
            named = await self._database.read(partial(self._find_name, prepared=prepared))
        except SkilleryError as error:
            return error
        self._kept_paths.update({named.before.path} if named.before else ())
        return named

    def _find_name(self, connection: Connection, prepared: PreparedSkill) -> NamedSkill:
        root, options = prepared.located.root, self._options
        if options.into:
            alias = Alias(options.into, UPLOADS, VERSIONS)
            return NamedSkill(
                options.into, alias, alias, find_imported(connection, self._identity, alias), owns=False, is_known=True
            )
        if options.is_new:
            alias = Alias(options.namespace, UPLOADS, prepared.key)
            return self._naming.name(connection, prepared, alias, alias)
        before = self._aliases.recorded(root, prepared.key, prepared.source_digest)
        return self._naming.name(connection, prepared, self._aliases.alias_of(root, prepared.key), before)

    async def _import(self, prepared: PreparedSkill, named: NamedSkill | SkilleryError) -> SkillReport:
        self._held_bytes += prepared.size_bytes
        try:
            if isinstance(named, SkilleryError):
                raise named
            # They have begun before: `required_first`.
            leaves = [name.rpartition(".")[2] for name in prepared.requires]
            names = [*_required_by(prepared.manifest), *leaves]
            # A skill that requires itself does not wait for itself.
            if tasks := {self._tasks[name] for name in names if name in self._tasks} - {asyncio.current_task()}:
                await asyncio.wait(tasks)
            return await self._publication.import_skill(prepared, named)
        except Exception as error:  # noqa: BLE001 - as above
            is_of_all = isinstance(error, Unavailable) and not isinstance(error, PackageIndexUnavailable)
            self._stopped = self._stopped or is_of_all
            name = prepared.wanted if isinstance(named, SkilleryError) else named.name
            return refusal_of(prepared.located, prepared, error, name)
        finally:
            self._held_bytes -= prepared.size_bytes


def _with_checked_origin(prepared: PreparedSkill) -> PreparedSkill:
    """Return the skill without the document of its origin, and with a repair, if it is not about these files."""
    entry = prepared.located.origin
    if entry is None:
        return prepared
    try:
        check_document(prepared.origin, prepared.files)
    except ProofError as error:
        message = f"the statements of the origin are not kept: the document {error}"
        repairs = (*prepared.repairs, Repair("origin_statements", message, file=entry.path))
        return prepared._replace(origin=b"", repairs=repairs)
    return prepared


def _with_path_in_alias(prepared: PreparedSkill, first: _ReadSkill) -> PreparedSkill:
    """Return the skill with a repair about its name: an earlier skill of the import states the same name."""
    message = f"{first.root or 'the root'!r} has the name {prepared.stated!r} too; this skill gets another name"
    return prepared._replace(
        is_name_repaired=True, repairs=(*prepared.repairs, Repair("name_of_another", shown(message)))
    )


def _ready(report: SkillReport) -> asyncio.Task[SkillReport]:
    """Return a finished task with a report, for the queue of tasks in the order of the reports."""

    async def finished() -> SkillReport:
        return report

    return asyncio.create_task(finished())
