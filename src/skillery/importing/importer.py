"""The import of one archive: skill by skill, each whole or not at all, and none in the way of the others.

Skills are read one after the other, because each may bear on the name of the next; a few are published at a time. So an
import holds no more of an archive than those few, however many there are in it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
from sqlalchemy import Connection

from skillery import access
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
from skillery.formats.bundle import BundleLimits
from skillery.formats.foreign_requirements import LEFT_OUT, NO_PACKAGES
from skillery.formats.manifest import parse_manifest
from skillery.formats.repairs import Repair
from skillery.formats.requirements import LOCK
from skillery.formats.semver import Version
from skillery.importing.archives import open_archive
from skillery.importing.entries import Archive, ImportLimits, shown
from skillery.importing.finding import Finder, Found, FoundSkill, Merged
from skillery.importing.nesting import nested_in
from skillery.importing.preparing import Prepared, Preparing
from skillery.importing.reports import Begun, SkillReport, Summary
from skillery.publishing import Publisher
from skillery.registry import (
    Alias,
    Imported,
    Removed,
    claim_import,
    find_imported,
    name_for,
    note_removed,
    record_import,
    taken_versions,
)

log = logging.getLogger(__name__)
AT_ONCE = 12
"""Skills that are being published."""
AT_ONCE_BYTES = 32 * 1024 * 1024
"""Of their files: past that no other is read meanwhile."""
TRIES = 3
RETRY_MS = 10_000
FIRST = Version(1, 0, 0)
MOST_NAMED = 10
"""Packages in a warning."""
VERSIONS = "(a version of it)"
"""What is found again of skills that were sent as versions of this one; nothing is called so."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Wish(NamedTuple):
    """How an archive is to be imported."""

    namespace: str = ""
    """What all its skills are put below."""
    permissions: Mapping[str, Any] | None = None
    """`[permissions]` of skills without a skill.toml."""
    name: str = ""
    """Of the archive, for a skill at its root that says no other."""
    source: str = ""
    """The label of a folder that is kept in step."""
    prune: bool = False
    """Whether what it does not hold any more is yanked."""
    dry_run: bool = False
    into: str = ""
    """The skill that its one skill becomes a version of, whatever it calls itself."""
    split: bool = False
    """Whether a SKILL.md below another skill's folder is a skill of its own."""
    is_new: bool = False
    """Whether its skills must be ones that there are not yet, or just as they are there."""


class _Twin(NamedTuple):
    """What is kept of a skill, for another that states the same name."""

    root: str
    source_digest: str


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
        """`at_once` is how many imports may be under way; `folder` is where archives lie meanwhile, without a name."""
        self._database = database
        self._publisher = publisher
        self._bundles = bundles
        self.limits = limits
        self._places = at_once
        self._folder = folder

    @contextmanager
    def receive(self) -> Iterator[BinaryIO]:
        """A place for an import, and a file without a name for its archive. Raises Busy, StorageFull."""
        if not self._places:
            raise Busy(
                "as many imports as may be are under way",
                retry_after_ms=RETRY_MS,
                hint="Try again when one has ended, or ask an admin to raise the setting imports.at_once.",
            )
        self._places -= 1
        try:
            with TemporaryFile(dir=self._folder) as file:
                yield cast(BinaryIO, file)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise StorageFull(hint="Nothing more was imported. Free space on the server.") from error
        finally:
            self._places += 1

    async def import_archive(
        self, identity: Identity, file: BinaryIO, wish: Wish
    ) -> AsyncGenerator[Begun | SkillReport | Summary, None]:
        """Begun, a report for each skill, Summary. Where it is not read to its end, what is under way is finished and
        nothing more begun: the same import again goes on there.

        Raises InvalidArchive, ArchiveTooLarge and InvalidManifest (permissions) before anything is published.
        """
        check_permissions(wish.permissions)
        async with AsyncExitStack() as stack:
            opening = open_archive(file, self.limits, self._folder)
            archive = await asyncio.to_thread(opening.__enter__)
            stack.push_async_callback(asyncio.to_thread, opening.__exit__, None, None, None)
            finder, found = await asyncio.to_thread(_look_through, archive, wish)
            skills = len(found.roots) + len(found.merged)
            yield Begun(skills, found.left_out, found.other_files, len(found.merged), found.searched)
            folders = frozenset(root.rpartition("/")[2] for root in found.roots)
            preparing = Preparing(archive, self._bundles, wish.namespace, wish.permissions, wish.name, folders)
            one = _Import(self._database, self._publisher, identity, wish, finder, preparing)
            reports = one.reports(found.roots, found.merged)
            stack.push_async_callback(reports.aclose)
            async for report in reports:
                yield report
            yield await one.summary()


def _look_through(archive: Archive, wish: Wish) -> tuple[Finder, Found]:
    finder = Finder(archive.entries, split=wish.split)
    return finder, finder.found()


def check_permissions(permissions: Mapping[str, Any] | None) -> None:
    """Raises InvalidManifest, as for a skill.toml with these."""
    if permissions is not None:
        parse_manifest({"name": "x", "version": "1.0.0", "description": "x", "permissions": permissions})


class _Import:
    """One import under way."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        identity: Identity,
        wish: Wish,
        finder: Finder,
        preparing: Preparing,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._identity = identity
        self._wish = wish
        self._finder = finder
        self._preparing = preparing
        self._seen: dict[Alias, _Twin] = {}
        self._claimed: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._repaired = 0
        self._stopped = False
        self._unread = 0
        self._held = 0

    async def reports(self, roots: list[str], merged: Iterable[Merged] = ()) -> AsyncGenerator[SkillReport, None]:
        """In the order of `roots`, then the links to them."""
        under_way: deque[asyncio.Task[SkillReport]] = deque()
        try:
            for root in roots:
                if self._stopped:
                    break
                under_way.append(await self._begin(root))
                while under_way and (self._is_full(len(under_way)) or under_way[0].done()):
                    yield self._counted(await under_way.popleft())
            while under_way:
                yield self._counted(await under_way.popleft())
            for link in merged if not self._stopped else ():
                yield self._counted(SkillReport(path=shown(link.path), outcome="merged", by=shown(link.by)))
        finally:
            # What has begun is finished, whoever has gone.
            await asyncio.gather(*under_way, return_exceptions=True)

    async def summary(self) -> Summary:
        removed: tuple[Removed, ...] = ()
        # What could not be read may be what is looked for: nothing is taken for removed then.
        if self._wish.source and not self._stopped and not self._unread:
            prune = self._wish.prune and not self._wish.dry_run
            work = partial(
                note_removed, identity=self._identity, source=self._wish.source, kept=self._seen.keys(), prune=prune
            )
            removed = tuple(await self._database.write(work))
        return Summary(dict(self._counts), self._repaired, removed, self._unread, self._stopped)

    def _is_full(self, under_way: int) -> bool:
        return under_way >= AT_ONCE or self._held > AT_ONCE_BYTES

    def _counted(self, report: SkillReport) -> SkillReport:
        self._counts[report.outcome] += 1
        self._repaired += any(not repair.harmless for repair in report.repairs)
        return report

    # -- one skill ---------------------------------------------------------------------------------------------------

    async def _begin(self, root: str) -> asyncio.Task[SkillReport]:
        """Read it and say what it is called; the rest is a task."""
        found, prepared = await asyncio.to_thread(self._read, root)
        if isinstance(prepared, Prepared):
            return await self._named(prepared)
        self._unread += 1
        return _ready(self._refused(found, None, prepared))

    def _read(self, root: str) -> tuple[FoundSkill, Prepared | Exception]:
        found = FoundSkill(root, {}, None, (), None)
        try:
            found = self._finder.skill(root)
            return found, self._preparing.prepare(found)
        except Exception as error:  # noqa: BLE001 - told and logged: one skill is in no other's way
            return found, error

    async def _named(self, prepared: Prepared) -> asyncio.Task[SkillReport]:
        alias = Alias(self._wish.namespace, prepared.key)
        twin = self._seen.get(alias)
        if twin is not None:
            if twin.source_digest == prepared.source_digest:
                return _ready(_report(prepared, "merged", by=shown(twin.root)))
            prepared = _told_apart(prepared, twin)
            alias = Alias(self._wish.namespace, prepared.key)
        if self._wish.into:
            alias = Alias(self._wish.into, VERSIONS)
        self._seen[alias] = _Twin(prepared.found.root, prepared.source_digest)
        task = asyncio.create_task(self._import(prepared, alias, await self._name(prepared, alias)))
        # Let it begin: reading the next keeps this thread busy.
        await asyncio.sleep(0)
        return task

    async def _name(self, prepared: Prepared, alias: Alias) -> tuple[str, Imported | None] | SkilleryError:
        def look(connection: Connection) -> tuple[str, Imported | None]:
            imported = self._imported(connection, prepared, alias)
            if imported is not None:
                return imported.name, imported
            if self._wish.into:  # for the first time
                return self._wish.into, None
            # A name that is made up says which there are: nobody is told where they may not publish.
            access.require_namespace(self._identity, "publish", prepared.wanted)
            is_claimed = partial(self._is_claimed, prepared)
            return name_for(connection, alias, prepared.wanted, is_claimed, is_mended=prepared.is_mended), None

        try:
            name, imported = await self._database.read(look)
        except SkilleryError as error:
            return error
        self._claimed.add(name)
        return name, imported

    def _is_claimed(self, prepared: Prepared, name: str) -> bool:
        """A name that had to be mended does not take that of a folder whose turn comes later."""
        return name in self._claimed or (prepared.is_mended and self._preparing.is_beside(prepared.found, name))

    def _imported(self, connection: Connection, prepared: Prepared, alias: Alias) -> Imported | None:
        try:
            return find_imported(connection, self._identity, alias)
        except NameTaken:
            access.require_namespace(self._identity, "publish", prepared.wanted)
            raise

    async def _import(
        self, prepared: Prepared, alias: Alias, named: tuple[str, Imported | None] | SkilleryError
    ) -> SkillReport:
        self._held += prepared.size_bytes
        try:
            if isinstance(named, SkilleryError):
                raise named
            name, imported = named
            return await self._import_as(prepared, alias, name, imported)
        except Exception as error:  # noqa: BLE001 - as above
            is_of_all = isinstance(error, Unavailable) and not isinstance(error, PackageIndexUnavailable)
            self._stopped = self._stopped or is_of_all
            name = prepared.wanted if isinstance(named, SkilleryError) else named[0]
            return self._refused(prepared.found, prepared, error, name)
        finally:
            self._held -= prepared.size_bytes

    async def _import_as(self, prepared: Prepared, alias: Alias, name: str, imported: Imported | None) -> SkillReport:
        # Before anything is said of what is there already.
        access.require_namespace(self._identity, "publish", name)
        if imported is not None and _is_unchanged(prepared, imported):
            await self._claim(alias, imported)
            return _report(
                prepared,
                "unchanged",
                name=name,
                version=imported.version,
                digest=imported.digest or "",
                status=imported.status or "",
            )
        runtime, prepared = await self._runtime(prepared)
        for number in range(1, TRIES + 1):
            manifest, repairs = await self._manifest(prepared, name, runtime)
            try:
                return await self._publish(prepared, alias, manifest, repairs)
            except (VersionExists, NameTaken):
                # Of its own choice: somebody else has just taken it.
                if prepared.manifest is not None or number == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _runtime(self, prepared: Prepared) -> tuple[dict[str, object], Prepared]:
        """`[runtime]` for what its scripts need, {} where that cannot be had here: then it comes in without, and says
        so. Raises PackageIndexUnavailable."""
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
        self, prepared: Prepared, alias: Alias, manifest: Mapping[str, Any], repairs: tuple[Repair, ...]
    ) -> SkillReport:
        if self._wish.dry_run:
            checked = await self._publisher.check_skill(self._identity, manifest, prepared.skill_md, prepared.files)
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
        note = partial(
            record_import,
            identity=self._identity,
            alias=alias,
            source_digest=prepared.source_digest,
            source=self._wish.source or None,
        )
        published = await self._publisher.publish(
            self._identity, manifest, prepared.skill_md, prepared.files, also=note
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

    async def _manifest(
        self, prepared: Prepared, name: str, runtime: Mapping[str, object]
    ) -> tuple[Mapping[str, Any], tuple[Repair, ...]]:
        taken = await self._database.read(partial(taken_versions, name=name))
        if self._wish.is_new and taken:
            raise NameTaken(
                f"the name '{name}' is taken", hint="Make a new version of it, or choose another name.", name=name
            )
        if prepared.manifest is not None:
            self._check_own_name(prepared, name)
            return prepared.manifest, prepared.repairs
        version = next_version(prepared.declared, taken)
        repairs = prepared.repairs
        if prepared.declared is not None and version != prepared.declared:
            message = f"the version {prepared.declared} is taken; this is {version}"
            repairs = (*repairs, Repair("version_taken", message))
        if name != (prepared.stated if prepared.is_mended else prepared.wanted):
            repairs = (*repairs, Repair("name", f"in the registry it is called '{name}'"))
        manifest: dict[str, Any] = {"name": name, "version": str(version), "description": prepared.description}
        if runtime:
            manifest["runtime"] = runtime
        if self._wish.permissions is not None:
            manifest["permissions"] = self._wish.permissions
        return manifest, repairs

    def _check_own_name(self, prepared: Prepared, name: str) -> None:
        if self._wish.into and prepared.stated != name:
            raise InvalidBundle(
                f"skill.toml says '{prepared.stated}', and this is to be a version of '{name}'",
                hint="Change the name there, or make it a skill of its own.",
                file="skill.toml",
            )

    async def _claim(self, alias: Alias, imported: Imported) -> None:
        source = self._wish.source
        if source and source != imported.source and not self._wish.dry_run:
            await self._database.write(partial(claim_import, alias=alias, source=source))

    def _refused(self, found: FoundSkill, prepared: Prepared | None, error: Exception, name: str = "") -> SkillReport:
        if not isinstance(error, SkilleryError):
            log.error("a skill could not be imported", exc_info=error)
        if prepared is not None:
            return _report(prepared, "refused", name=name, error=error)
        return SkillReport(
            path=shown(found.root), outcome="refused", left_out=found.left_out, error=error, **nested_in(found)
        )


def _with_warnings(prepared: Prepared) -> Prepared:
    """What was left out of what it needs is for whoever runs its scripts, too."""
    said = [one for one in prepared.repairs if one.code in {NO_PACKAGES, LEFT_OUT}]
    warnings = [f"{one.file}:{one.line}: {one.message}" if one.file and one.line else one.message for one in said]
    read = prepared.skill_md
    return prepared._replace(skill_md=msgspec.structs.replace(read, warnings=(*read.warnings, *warnings)))


def _is_unchanged(prepared: Prepared, imported: Imported) -> bool:
    """What the identity may not see is not there: it publishes its own."""
    is_same = imported.source_digest == prepared.source_digest
    return is_same and imported.is_seen and not imported.is_removed


def next_version(declared: Version | None, taken: list[Version]) -> Version:
    """What is declared where nobody has it; else the lowest free patch behind it, or behind all there are."""
    precedences = {version.precedence for version in taken}
    if declared is not None and declared.precedence not in precedences:
        return declared
    if not taken:
        return FIRST
    version = declared.next_patch() if declared is not None else taken[-1].next_patch()
    while version.precedence in precedences:
        version = version.next_patch()
    return version


def _told_apart(prepared: Prepared, twin: _Twin) -> Prepared:
    """Two folders of one import that state one name: the second is known by its path, too."""
    message = f"{twin.root or 'the root'!r} is called {prepared.stated!r} too; this one gets a name of its own"
    key = f"{prepared.key[:200]} ({hashlib.sha256(shown(prepared.found.root).encode()).hexdigest()[:16]})"
    return prepared._replace(
        key=key, is_mended=True, repairs=(*prepared.repairs, Repair("name_of_another", shown(message)))
    )


def _report(prepared: Prepared, outcome: Any, **more: Any) -> SkillReport:
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
