"""The import of one archive. Each skill is imported completely or not at all, and a failed skill does not stop the
others.

Skills are read one after the other, because each may affect the name of the next; a few are published at a time. The
import therefore holds only those few in memory, however many the archive contains.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity
from skillery.database import Database
from skillery.errors import (
    Busy,
    InvalidBundle,
    InvalidParams,
    NameTaken,
    PackageIndexUnavailable,
    Refused,
    SkilleryError,
    StorageFull,
    Unavailable,
    VersionExists,
)
from skillery.formats.bundle import BundleFile, BundleLimits
from skillery.formats.foreign_requirements import LEFT_OUT, NO_PACKAGES
from skillery.formats.manifest import parse_manifest
from skillery.formats.names import is_within
from skillery.formats.repairs import Repair
from skillery.formats.requirements import LOCK
from skillery.formats.semver import Version
from skillery.identity import access
from skillery.importing.archives import open_archive
from skillery.importing.entries import Archive, ImportLimits, shown
from skillery.importing.finder import Finder, Found, FoundSkill, Merged
from skillery.importing.identity import UPLOADS, Aliases, Fingerprint, Source, adopted_aliases, tree_path
from skillery.importing.naming import NamedSkill, Naming
from skillery.importing.nested_skills import nested_in
from skillery.importing.preparation import PreparedSkill, SkillReader, same_files, with_packages
from skillery.importing.reports import Begun, SkillReport, Summary
from skillery.publishing import ImportScan, Mode, Publisher
from skillery.registry import (
    Alias,
    Imported,
    NewVersion,
    Removed,
    find_imported,
    is_owned,
    known_paths,
    known_without_path,
    mark_absent,
    note_removed,
    record_import,
    skills_with_index_name,
    taken_versions,
)

log = logging.getLogger(__name__)
AT_ONCE = 12
"""Limit on the skills that are published at a time."""
AT_ONCE_BYTES = 32 * 1024 * 1024
"""Limit on the bytes of their files. Above it, no further skill is read."""
TRIES = 3
RETRY_MS = 10_000
FIRST = Version(1, 0, 0)
MOST_NAMED = 10
"""Limit on the packages that a warning names."""
VERSIONS = "(a version of it)"
"""The path in the alias of versions uploaded into a named skill. No skill can have this name."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class ImportOptions(NamedTuple):
    """The parameters of an import."""

    namespace: str = ""
    """Namespace for all imported skills."""
    permissions: Mapping[str, Any] | None = None
    """`[permissions]` for skills without a skill.toml."""
    name: str = ""
    """Name of the archive, for a skill at its root that states no name."""
    source: str = ""
    """Source of the archive; "" if unknown."""
    is_default_source: bool = False
    """True if the caller did not state the source: it is the archive's name, or the remote of its repository."""
    take_over: frozenset[str] = frozenset()
    """Names of skills of other sources that become skills of this source."""
    prune: bool = False
    """True if the import yanks the skills that the source no longer contains."""
    dry_run: bool = False
    into: str = ""
    """Name of the skill that gets the archive's one skill as a version, whatever name that states."""
    packages: Mode | None = None
    """Handling of undeclared packages; None follows the server's setting."""
    split: bool = False
    """True if a SKILL.md below another skill's folder is a skill of its own."""
    is_new: bool = False
    """True if each skill must be new, or equal to the stored one."""

    @property
    def is_upload(self) -> bool:
        """True for one skill uploaded to /v1/skills, which has no source."""
        return self.is_new or bool(self.into)


class _ReadSkill(NamedTuple):
    """An already read skill, to compare others that state the same name."""

    root: str
    source_digest: str


class _StoredVersion(NamedTuple):
    """A version that already has the files of a skill."""

    name: str
    version: str
    digest: str
    status: str
    owns: bool | None
    """Whether the source owns the skill; None if no alias is recorded yet."""

    def shown(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "digest": self.digest, "status": self.status}


class _Bundle(NamedTuple):
    """The manifest and files to publish for a skill."""

    manifest: Mapping[str, Any]
    files: tuple[BundleFile, ...]
    repairs: tuple[Repair, ...]


class Importer:
    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        bundles: BundleLimits,
        limits: ImportLimits,
        at_once: int,
        folder: Path,
    ) -> None:
        """`at_once` limits the imports that run at a time. `folder` gets the nameless files of archives."""
        self._database = database
        self._publisher = publisher
        self._bundles = bundles
        self.limits = limits
        self._free_slots = at_once
        self._folder = folder

    @contextmanager
    def receive(self) -> Iterator[BinaryIO]:
        """Reserve one of the import slots, and yield a nameless file for the archive. Raise Busy, StorageFull."""
        if not self._free_slots:
            raise Busy(
                "the allowed number of imports are already running",
                retry_after_ms=RETRY_MS,
                hint="Try again when one of them has ended, or ask an admin to raise the setting imports.at_once.",
            )
        self._free_slots -= 1
        try:
            with TemporaryFile(dir=self._folder) as file:
                yield cast(BinaryIO, file)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise StorageFull(hint="Nothing more was imported. Free space on the server.") from error
        finally:
            self._free_slots += 1

    async def import_archive(
        self, identity: Identity, file: BinaryIO, options: ImportOptions
    ) -> AsyncGenerator[Begun | SkillReport | Summary, None]:
        """Yield Begun, a report for each skill, then Summary.

        If the caller stops reading early, skills under way are finished and no others begin. The same import again
        continues there. Raises InvalidArchive, ArchiveTooLarge, InvalidManifest (permissions) and SourceUnclear before
        any skill is published.
        """
        check_permissions(options.permissions)
        async with AsyncExitStack() as stack:
            opening = open_archive(file, self.limits, self._folder)
            archive = await asyncio.to_thread(opening.__enter__)
            stack.push_async_callback(asyncio.to_thread, opening.__exit__, None, None, None)
            finder, found = await asyncio.to_thread(_find_skills, archive, options)
            folders = frozenset(root.rpartition("/")[2] for root in found.roots)
            skill_reader = SkillReader(
                archive, self._bundles, options.namespace, options.permissions, options.name, folders
            )
            aliases = await self._aliases(identity, options, found.roots, finder, skill_reader)
            skills = len(found.roots) + len(found.merged)
            yield Begun(skills, found.left_out, found.other_files, len(found.merged), found.searched)
            one = _Import(self._database, self._publisher, identity, options, finder, skill_reader, aliases)
            reports = one.reports(found.roots, found.merged)
            stack.push_async_callback(reports.aclose)
            async for report in reports:
                yield report
            yield await one.summary()

    async def _aliases(
        self, identity: Identity, options: ImportOptions, roots: list[str], finder: Finder, skill_reader: SkillReader
    ) -> Aliases:
        """Return the aliases that earlier imports of the source recorded. Raise SourceUnclear."""
        source = Source(options.namespace, options.source, options.is_default_source)
        if options.is_upload:
            return Aliases(source._replace(name=UPLOADS), (), ())
        known = await self._database.read(partial(known_paths, namespace=options.namespace, source=options.source))
        aliases = Aliases(source, roots, known)
        if roots or options.prune:
            aliases.check_source(partial(access.covers, identity))
        if aliases.is_new and options.source:
            older = await self._database.read(partial(known_without_path, namespace=options.namespace))
            prints = await asyncio.to_thread(_fingerprints, roots, finder, skill_reader) if older else []
            aliases.adopt(adopted_aliases(prints, older))
        return aliases


def _fingerprints(roots: list[str], finder: Finder, skill_reader: SkillReader) -> list[Fingerprint]:
    """Read every skill once. Only the first import of a source after an upgrade needs this."""
    prints = []
    for root in roots:
        with contextlib.suppress(SkilleryError):
            prepared = skill_reader.prepare(finder.skill(root))
            prints.append(Fingerprint(root, prepared.key, prepared.source_digest))
    return prints


def _find_skills(archive: Archive, options: ImportOptions) -> tuple[Finder, Found]:
    finder = Finder(archive.entries, split=options.split)
    return finder, finder.found()


def check_permissions(permissions: Mapping[str, Any] | None) -> None:
    """Check permissions as in a skill.toml. Raise InvalidManifest."""
    if permissions is not None:
        parse_manifest({"name": "x", "version": "1.0.0", "description": "x", "permissions": permissions})


class _Import:
    """One import under way."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        identity: Identity,
        options: ImportOptions,
        finder: Finder,
        skill_reader: SkillReader,
        aliases: Aliases,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._identity = identity
        self._options = options
        self._finder = finder
        self._skill_reader = skill_reader
        self._aliases = aliases
        self._naming = Naming(identity, skill_reader, options.take_over)
        self._read_skills: dict[str, list[_ReadSkill]] = {}
        self._kept_paths: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._repaired = 0
        self._stopped = False
        self._unread = 0
        self._held_bytes = 0

    async def reports(self, roots: list[str], merged: Iterable[Merged] = ()) -> AsyncGenerator[SkillReport, None]:
        """Yield the reports in the order of `roots`, then those of the links to them."""
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
        # A skill that could not be read may be one that seems missing: then no skill counts as removed.
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
        """Read a skill and determine its name. Return the task that publishes it."""
        found, prepared = await asyncio.to_thread(self._read, root)
        if isinstance(prepared, PreparedSkill):
            return await self._name_and_import(prepared)
        self._unread += 1
        return _ready(self._refused(found, None, prepared))

    def _read(self, root: str) -> tuple[FoundSkill, PreparedSkill | Exception]:
        found = FoundSkill(root, {}, None, (), None)
        try:
            found = self._finder.skill(root)
            return found, self._skill_reader.prepare(found)
        except Exception as error:  # noqa: BLE001 - reported and logged: a failed skill does not stop the others
            return found, error

    async def _name_and_import(self, prepared: PreparedSkill) -> asyncio.Task[SkillReport]:
        same_named = self._read_skills.setdefault(prepared.key, [])
        same = next(
            (
                same_named_skill
                for same_named_skill in same_named
                if same_named_skill.source_digest == prepared.source_digest
            ),
            None,
        )
        if same is not None:
            return _ready(_report(prepared, "merged", by=shown(same.root)))
        first = same_named[0] if same_named else None
        same_named.append(_ReadSkill(prepared.found.root, prepared.source_digest))
        if first is not None:
            prepared = _with_path_in_alias(prepared, first)
        self._kept_paths.add(self._aliases.alias_of(prepared.found.root, prepared.key).path)
        task = asyncio.create_task(self._import(prepared, await self._name(prepared)))
        # Let the task start: reading the next skill keeps this thread busy.
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
        root, options = prepared.found.root, self._options
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
            return await self._import_as(prepared, named)
        except Exception as error:  # noqa: BLE001 - as above
            is_of_all = isinstance(error, Unavailable) and not isinstance(error, PackageIndexUnavailable)
            self._stopped = self._stopped or is_of_all
            name = prepared.wanted if isinstance(named, SkilleryError) else named.name
            return self._refused(prepared.found, prepared, error, name)
        finally:
            self._held_bytes -= prepared.size_bytes

    async def _import_as(self, prepared: PreparedSkill, named: NamedSkill) -> SkillReport:
        # Checked first: the answer about existing skills depends on it.
        access.require_namespace(self._identity, "publish", named.name)
        mode = self._options.packages or self._publisher.undeclared.mode
        if mode != "lock" and (same := await self._stored(prepared, named)) is not None:
            return await self._unchanged(prepared, named, same)
        runtime, prepared = await self._runtime(prepared)
        scan, prepared = await self._scan_imports(prepared, runtime)
        if mode == "lock" and (same := await self._stored(prepared, named)) is not None:
            return await self._unchanged(prepared, named, same)
        for number in range(1, TRIES + 1):
            bundle = await self._bundle(prepared, named, runtime)
            try:
                return await self._publish(prepared, named, bundle, scan)
            except (VersionExists, NameTaken) as error:
                # Another import has just taken the name or the version.
                if self._options.is_upload or number == TRIES:
                    raise
                if isinstance(error, NameTaken):
                    if named.imported is not None:
                        raise
                    again = partial(self._naming.name_again, prepared=prepared, alias=named.alias)
                    named = await self._database.read(again)
        raise AssertionError("the last try returns or raises")

    async def _unchanged(self, prepared: PreparedSkill, named: NamedSkill, same: _StoredVersion) -> SkillReport:
        await self._claim(prepared, named, same)
        repairs = (*prepared.repairs, *(named.notes if same.name == named.name else ()))
        return _report(prepared, "unchanged", repairs=repairs, **same.shown())

    async def _stored(self, prepared: PreparedSkill, named: NamedSkill) -> _StoredVersion | None:
        """Return the version that already has the same files."""
        imported = named.imported
        # A copy of another source's skill stays unchanged, whatever packages are inferred for it.
        packages = (self._options.packages or self._publisher.undeclared.mode) if named.owns else None
        if imported is not None and _is_unchanged(prepared, imported, packages):
            return _StoredVersion(
                imported.name, imported.version, imported.digest or "", imported.status or "", named.owns
            )
        if self._options.is_upload or named.takes_over or (imported is not None and imported.is_removed):
            return None
        for name, version, files in await self._exports(prepared, named):
            row = await self._publisher.find_stored(self._identity, name, version, files)
            if row is not None:
                return _StoredVersion(row.name, row.version, row.digest, row.status, owns=None)
        return None

    async def _exports(
        self, prepared: PreparedSkill, named: NamedSkill
    ) -> list[tuple[str, Version | None, tuple[BundleFile, ...]]]:
        """Return the stored versions that the files may be an export of: name, version and files."""
        if prepared.manifest is None:
            if named.imported is not None or self._options.permissions is not None:
                return []
            stored = await self._database.read(partial(skills_with_index_name, wanted=prepared.stated))
            return [(name, None, prepared.files) for name in stored if self._may_publish(name)]
        names = dict.fromkeys((named.name, prepared.wanted, prepared.stated))
        version = str(prepared.declared)
        return [
            (name, prepared.declared, prepared.files_as(name, version)[1]) for name in names if self._may_publish(name)
        ]

    def _may_publish(self, name: str) -> bool:
        return is_within(name, self._options.namespace) and access.covers(self._identity, name)

    async def _scan_imports(
        self, prepared: PreparedSkill, runtime: Mapping[str, object]
    ) -> tuple[ImportScan, PreparedSkill]:
        """Return the undeclared packages, and the skill with a source digest that includes the inferred packages."""
        table = (prepared.manifest or {}).get("runtime", runtime)
        declared = cast(Sequence[str], table.get("dependencies", ()))
        undeclared = self._publisher.undeclared
        scan = await undeclared.infer(self._identity.name, prepared.files, declared, self._options.packages)
        return scan, prepared._replace(source_digest=with_packages(prepared.source_digest, scan.packages))

    async def _runtime(self, prepared: PreparedSkill) -> tuple[dict[str, object], PreparedSkill]:
        """Return `[runtime]` for the packages of the skill's scripts. Raise PackageIndexUnavailable.

        If this server cannot install them, return {} and note a repair: the skill is imported without them.
        """
        needs = prepared.needs
        runtime = needs.runtime()
        if not runtime:
            return {}, _with_warnings(prepared)
        given = next((file.content for file in prepared.files if file.path == LOCK), None)
        try:
            await self._publisher.check_needs(self._identity, needs.dependencies, needs.requires_python, given)
        except (InvalidParams, Refused) as error:
            what = ", ".join(
                [*needs.dependencies[:MOST_NAMED], *(["…"] if len(needs.dependencies) > MOST_NAMED else [])]
            )
            asked = what or f"Python {needs.requires_python}"
            message = f"it needs {asked}, and its scripts run without: {error.message.rstrip('.')}"
            lacking = Repair(NO_PACKAGES, message)
            return {}, _with_warnings(prepared._replace(repairs=(*prepared.repairs, lacking)))
        return runtime, _with_warnings(prepared)

    async def _publish(
        self, prepared: PreparedSkill, named: NamedSkill, bundle: _Bundle, scan: ImportScan
    ) -> SkillReport:
        manifest, files, repairs = bundle
        if self._options.dry_run:
            checked = await self._publisher.check_skill(self._identity, manifest, prepared.skill_md, files, scan)
            return _report(
                prepared,
                "checked" if checked.ok else "refused",
                repairs=repairs,
                name=checked.name,
                version=checked.version,
                digest=checked.digest,
                status=checked.status,
                warnings=checked.warnings,
                findings=checked.findings,
                examples=checked.examples,
            )
        note = partial(record_import, identity=self._identity, recorded=named.recorded(prepared))
        published = await self._publisher.publish(
            self._identity, manifest, prepared.skill_md, files, also=note, scan=scan
        )
        created = published.created
        return _report(
            prepared,
            "draft" if created.status == "draft" else "published",
            repairs=repairs,
            name=created.name,
            version=created.version,
            digest=created.digest,
            status=created.status,
            warnings=published.warnings,
            findings=published.findings,
            examples=published.examples,
        )

    async def _bundle(self, prepared: PreparedSkill, named: NamedSkill, runtime: Mapping[str, object]) -> _Bundle:
        name = named.name
        taken = await self._database.read(partial(taken_versions, name=name))
        if self._options.is_new and taken:
            raise NameTaken(
                f"the name '{name}' is taken", hint="Make a new version of it, or choose another name.", name=name
            )
        if prepared.manifest is not None and self._options.is_upload:
            self._check_own_name(prepared, name)
            return _Bundle(prepared.manifest, prepared.files, prepared.repairs)
        version = next_version(prepared.declared, taken)
        repairs = prepared.repairs
        if prepared.declared is not None and version != prepared.declared:
            message = f"the version {prepared.declared} is taken; {version} is used"
            repairs = (*repairs, Repair("version_taken", message))
        repairs = (*repairs, *named.notes)
        if prepared.manifest is not None:
            manifest, files = prepared.files_as(name, str(version))
            return _Bundle(manifest, files, repairs)
        made: dict[str, Any] = {"name": name, "version": str(version), "description": prepared.description}
        if runtime:
            made["runtime"] = runtime
        if self._options.permissions is not None:
            made["permissions"] = self._options.permissions
        return _Bundle(made, prepared.files, repairs)

    def _check_own_name(self, prepared: PreparedSkill, name: str) -> None:
        if self._options.into and prepared.stated != name:
            raise InvalidBundle(
                f"skill.toml says '{prepared.stated}', but the import adds a version of '{name}'",
                hint="Change the name in skill.toml, or import it as a separate skill.",
                file="skill.toml",
            )

    async def _claim(self, prepared: PreparedSkill, named: NamedSkill, same: _StoredVersion) -> None:
        """Record the alias of a skill that is already stored."""
        is_recorded = named.is_known and named.before == named.alias
        keeps = is_recorded and (same.owns is not None or named.owns)
        if keeps or self._options.is_upload or self._options.dry_run:
            return

        def work(connection: Connection) -> None:
            owns = same.owns if same.owns is not None else not is_owned(connection, same.name)
            recorded = named.recorded(prepared)._replace(owns=owns)
            created = NewVersion(same.name, same.version, same.digest, same.status)
            record_import(connection, created, self._identity, recorded)

        await self._database.write(work)

    def _refused(
        self, found: FoundSkill, prepared: PreparedSkill | None, error: Exception, name: str = ""
    ) -> SkillReport:
        if not isinstance(error, SkilleryError):
            log.error("a skill could not be imported", exc_info=error)
        if prepared is not None:
            return _report(prepared, "refused", name=name, error=error)
        return SkillReport(
            path=shown(found.root), outcome="refused", left_out=found.left_out, error=error, **nested_in(found)
        )


def _with_warnings(prepared: PreparedSkill) -> PreparedSkill:
    """Return the skill with warnings about omitted requirements: users of its scripts need to know."""
    said = [one for one in prepared.repairs if one.code in {NO_PACKAGES, LEFT_OUT}]
    warnings = [f"{one.file}:{one.line}: {one.message}" if one.file and one.line else one.message for one in said]
    read = prepared.skill_md
    return prepared._replace(skill_md=msgspec.structs.replace(read, warnings=(*read.warnings, *warnings)))


def _is_unchanged(prepared: PreparedSkill, imported: Imported, packages: Mode | None) -> bool:
    """Return whether the same files were imported, and with the same inferred packages if `packages` asks for that.

    A version that the identity may not see counts as absent.
    """
    source, earlier = prepared.source_digest, imported.source_digest
    is_same = source == earlier if packages in {"lock", "off"} else same_files(source, earlier)
    return is_same and imported.is_seen and not imported.is_removed


def next_version(declared: Version | None, taken: list[Version]) -> Version:
    """Return the declared version if it is free; else the lowest free patch after it, or after all taken versions."""
    precedences = {version.precedence for version in taken}
    if declared is not None and declared.precedence not in precedences:
        return declared
    if not taken:
        return FIRST
    version = declared.next_patch() if declared is not None else taken[-1].next_patch()
    while version.precedence in precedences:
        version = version.next_patch()
    return version


def _with_path_in_alias(prepared: PreparedSkill, same_named_skill: _ReadSkill) -> PreparedSkill:
    """Return the second of two skills with one stated name. Its path becomes part of its alias."""
    message = (
        f"{same_named_skill.root or 'the root'!r} has the name {prepared.stated!r} too; this skill gets another name"
    )
    return prepared._replace(
        is_name_repaired=True, repairs=(*prepared.repairs, Repair("name_of_another", shown(message)))
    )


def _report(prepared: PreparedSkill, outcome: Any, **more: Any) -> SkillReport:
    return SkillReport(
        **{
            "path": shown(prepared.found.root),
            "outcome": outcome,
            "stated": shown(prepared.stated),
            "files": len(prepared.files),
            "size_bytes": prepared.size_bytes,
            "repairs": prepared.repairs,
            "left_out": prepared.found.left_out,
            **nested_in(prepared.found, prepared.skill_md.body),
            **more,
        }
    )


def _ready(report: SkillReport) -> asyncio.Task[SkillReport]:
    async def said() -> SkillReport:
        return report

    return asyncio.create_task(said())
