"""The import of one archive.

Each skill is imported completely or not at all. A refused skill does not stop the others; only a failure of the server
does.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from skillery.backends import Identity
from skillery.context.threads import IMPORTS
from skillery.database import Database
from skillery.errors import Busy, SkilleryError, StorageFull, is_disk_full
from skillery.formats.bundle import BundleLimits
from skillery.formats.manifest import parse_manifest
from skillery.identity import access
from skillery.importing.aliases import known_paths, known_without_path
from skillery.importing.archives import open_archive
from skillery.importing.entries import Archive, ImportLimits
from skillery.importing.finder import Finder, FoundSkills
from skillery.importing.identity import UPLOADS, Aliases, Fingerprint, Source, adopted_aliases
from skillery.importing.import_run import ImportRun, required_first
from skillery.importing.preparation import SkillReader
from skillery.importing.publication import ImportOptions
from skillery.importing.reports import Begun, SkillReport, Summary
from skillery.publishing.publisher import Publisher

RETRY_MS = 10_000


class Importer:
    """Imports archives into the registry."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        bundles: BundleLimits,
        limits: ImportLimits,
        at_once: int,
        folder: Path,
    ) -> None:
        """`at_once` is the maximum number of imports at the same time. `folder` is for the temporary files of
        archives.
        """
        self._database = database
        self._publisher = publisher
        self.bundles = bundles
        self.limits = limits
        self._free_slots = at_once
        self._folder = folder

    @contextmanager
    def receive(self) -> Iterator[BinaryIO]:
        """Context manager that takes one of the import slots and yields a temporary file for the archive.

        Raise Busy if all slots are taken, and StorageFull if the disk is full while the context is open.
        """
        if not self._free_slots:
            raise Busy(
                "the maximum number of imports is already running",
                retry_after_ms=RETRY_MS,
                hint="Try again when one of them has ended, or ask an admin to raise the setting imports.at_once.",
            )
        self._free_slots -= 1
        try:
            with self.temporary_file() as file:
                yield file
        finally:
            self._free_slots += 1

    @contextmanager
    def temporary_file(self) -> Iterator[BinaryIO]:
        """Context manager that yields a file without a name. Raise StorageFull if the disk is full while it is open."""
        try:
            with TemporaryFile(dir=self._folder) as file:
                yield cast(BinaryIO, file)
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise StorageFull(hint="Nothing more was imported. Free space on the server.") from error

    @asynccontextmanager
    async def opened(
        self, file: BinaryIO, limits: ImportLimits | None = None, names: str = ""
    ) -> AsyncIterator[Archive]:
        """Context manager that opens an archive in a thread of IMPORTS, so that the event loop does not wait for it.

        Raise InvalidArchive or ArchiveTooLarge. Without `limits`, those of imports apply. `names` is the
        encoding of names in a zip that are not UTF-8.
        """
        opening = open_archive(file, limits or self.limits, self._folder, names)
        archive = await IMPORTS.run(opening.__enter__)
        try:
            yield archive
        finally:
            await IMPORTS.run(opening.__exit__, None, None, None)

    async def import_archive(
        self, identity: Identity, file: BinaryIO, options: ImportOptions
    ) -> AsyncGenerator[Begun | SkillReport | Summary, None]:
        """Yield Begun, a report for each skill, and then Summary.

        If the caller stops iterating early, the skills that are being published are finished, and no others begin. The
        same import, started again, continues with the others. Before any skill is published, raise InvalidArchive or
        ArchiveTooLarge if the archive cannot be opened, InvalidManifest if the permissions are invalid, and
        SourceUnclear if the default source may be the wrong one.
        """
        check_permissions(options.permissions)
        async with AsyncExitStack() as stack:
            archive = await stack.enter_async_context(self.opened(file, names=options.names))
            finder, located = await IMPORTS.run(_find_skills, archive, options)
            skill_reader = SkillReader(
                archive,
                self.bundles,
                options.namespace,
                options.permissions,
                options.name,
                located.roots,
                options.keep_bytes,
                options.commit_dates,
            )
            aliases = await self._aliases(identity, options, located.roots, finder, skill_reader)
            roots, required = await IMPORTS.run(required_first, archive, aliases.known_first(located.roots))
            skills = len(located.roots) + len(located.merged)
            yield Begun(skills, located.left_out, located.other_files, len(located.merged), located.searched)
            run = ImportRun(self._database, self._publisher, identity, options, finder, skill_reader, aliases, required)
            reports = run.reports(roots, located.merged)
            stack.push_async_callback(reports.aclose)
            async for report in reports:
                yield report
            yield await run.summary()

    async def _aliases(
        self, identity: Identity, options: ImportOptions, roots: list[str], finder: Finder, skill_reader: SkillReader
    ) -> Aliases:
        """Return the aliases that earlier imports of the source recorded. Raise SourceUnclear if the default source
        may be the wrong one.
        """
        source = Source(options.namespace, options.source, options.is_default_source)
        if options.is_upload:
            return Aliases(source._replace(name=UPLOADS), (), ())
        known = await self._database.read(partial(known_paths, namespace=options.namespace, source=options.source))
        aliases = Aliases(source, roots, known)
        if roots or options.prune:
            aliases.check_source(partial(access.covers, identity))
        if aliases.is_new and options.source:
            older = await self._database.read(partial(known_without_path, namespace=options.namespace))
            prints = await IMPORTS.run(_fingerprints, roots, finder, skill_reader) if older else []
            aliases.adopt(adopted_aliases(prints, older))
        return aliases


def _fingerprints(roots: list[str], finder: Finder, skill_reader: SkillReader) -> list[Fingerprint]:
    """Read every skill once. Only the first import of a source after an upgrade from an early release needs this."""
    prints = []
    for root in roots:
        with contextlib.suppress(SkilleryError):
            prepared = skill_reader.prepare(finder.skill(root))
            prints.append(Fingerprint(root, prepared.key, prepared.source_digest))
    return prints


def _find_skills(archive: Archive, options: ImportOptions) -> tuple[Finder, FoundSkills]:
    finder = Finder(archive.entries, nested=options.nested, read=archive.read)
    return finder, finder.skills()


def check_permissions(permissions: Mapping[str, Any] | None) -> None:
    """Raise InvalidManifest if the permissions would not be valid in a skill.toml."""
    if permissions is not None:
        parse_manifest({"name": "x", "version": "1.0.0", "description": "x", "permissions": permissions})
