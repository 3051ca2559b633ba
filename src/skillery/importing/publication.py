"""The publishing step of an import: a skill that is read and named is published as a version, or stays unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection

from skillery.attestations.origins import keep_origin
from skillery.backends import Identity
from skillery.database import Database
from skillery.errors import InvalidBundle, NameTaken, VersionExists
from skillery.formats.bundle import SKILL_MD, BundleFile
from skillery.formats.licences import Origin
from skillery.formats.names import index_name, is_within
from skillery.formats.repairs import Repair
from skillery.formats.semver import Version
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.identity.quotas import check_bundle
from skillery.importing.aliases import Imported, record_import, taken_versions
from skillery.importing.finder import Nested
from skillery.importing.free_names import Alias, is_owned
from skillery.importing.needed_packages import NeededPackages
from skillery.importing.preparation import PreparedSkill, same_files
from skillery.importing.reports import SkillReport, report_of
from skillery.importing.skill_names import NamedSkill, Naming, next_version
from skillery.publishing.package_locks import ImportScan, Mode
from skillery.publishing.publisher import Publisher
from skillery.registry.index_names import skills_with_index_name
from skillery.registry.required_choice import choose_possible
from skillery.versions.new_versions import NewVersion

# -- The options of one import -----------------------------------------------------------------------------------------


class ImportOptions(NamedTuple):
    """The options of one import."""

    namespace: str = ""
    """The namespace for all imported skills. "" means none."""
    permissions: Mapping[str, Any] | None = None
    """`[permissions]` for skills without a skill.toml."""
    name: str = ""
    """The name of the archive, for a skill at its root that does not state a name."""
    source: str = ""
    """The source of the archive, or "" if unknown."""
    is_default_source: bool = False
    """True if the caller did not state the source. The source is then the archive's name, or the remote of its
    repository.
    """
    take_over: frozenset[str] = frozenset()
    """Names of skills of other sources that this import takes over for its source."""
    prune: bool = False
    """True if the import yanks the versions of skills that are no longer in the tree of the source."""
    dry_run: bool = False
    review: bool = False
    """True if each new version waits for a review, also if the importer may publish."""
    into: str = ""
    """The name of a skill, or "". The only skill of the archive becomes a version of this skill. The name in SKILL.md
    is ignored; a skill.toml must have this name.
    """
    keeps_name: bool = False
    """True if the SKILL.md must state the name of the skill `into`, with or without its namespace."""
    packages: Mode | None = None
    """The handling of undeclared packages. None means the setting of the server."""
    newest: bool = False
    """True if packages are locked in their newest versions, also for old commits."""
    commit_dates: bool = False
    """True if the times of the files are times of commits."""
    commit: str = ""
    """The hash of the git commit with the files, or ""."""
    nested: Nested = "keep"
    names: str = ""
    """The encoding of names in a zip that are not UTF-8, or "" to find it."""
    keep_bytes: bool = False
    """True if scripts keep CR LF at the ends of their lines."""
    is_new: bool = False
    """True if each skill must be new, or the same as the stored skill."""

    @property
    def is_upload(self) -> bool:
        """True for a single skill that is uploaded to /v1/skills. It has no source."""
        return self.is_new or bool(self.into)


TRIES = 3


class _StoredVersion(NamedTuple):
    """A stored version with the same files as a skill of the import."""

    name: str
    version: str
    digest: str
    status: str
    owns: bool | None
    """Whether the source owns the skill, or None if no alias is recorded."""

    def shown(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "digest": self.digest, "status": self.status}


class _Bundle(NamedTuple):
    """The manifest and files for publishing a skill."""

    manifest: Mapping[str, Any]
    files: tuple[BundleFile, ...]
    repairs: tuple[Repair, ...]


class SkillPublication:
    """Publishes the skills of one import."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        identity: Identity,
        options: ImportOptions,
        naming: Naming,
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._identity = identity
        self._options = options
        self._naming = naming
        self._needed = NeededPackages(publisher.checks, identity, options.packages, options.newest)

    async def import_skill(self, prepared: PreparedSkill, named: NamedSkill) -> SkillReport:
        """Publish a skill if it has changed, or only check the skill in a dry run. Return its report. Raise the errors
        of `Publisher.publish`.
        """
        # The grant is checked first: without it, the caller must not learn which skills exist.
        access.require_namespace(self._identity, "publish", named.name)
        mode = self._options.packages or self._publisher.checks.undeclared.mode
        if mode != "lock" and (same := await self._stored(prepared, named)) is not None:
            return await self._unchanged(prepared, named, same)
        runtime, prepared = await self._needed.runtime(prepared)
        scan, prepared = await self._needed.scan_imports(prepared, runtime)
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
        return report_of(prepared, "unchanged", repairs=repairs, **same.shown())

    async def _stored(self, prepared: PreparedSkill, named: NamedSkill) -> _StoredVersion | None:
        """Return the stored version with the same files, or None if there is none."""
        imported = named.imported
        # A copy of another source's skill stays unchanged, even if other packages are inferred for it.
        packages = (self._options.packages or self._publisher.checks.undeclared.mode) if named.owns else None
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
        """Return the versions of which the files of the skill may be an export: name, version (None for the latest) and
        the files to compare.
        """
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

    async def _publish(
        self, prepared: PreparedSkill, named: NamedSkill, bundle: _Bundle, scan: ImportScan
    ) -> SkillReport:
        manifest, files, repairs = bundle
        if self._options.dry_run:
            checked = await self._publisher.check_skill(self._identity, manifest, prepared.skill_md, files, scan)
            return report_of(
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

        def note(connection: Connection, created: NewVersion) -> None:
            record_import(connection, created, self._identity, named.recorded(prepared))
            if prepared.origin and not self._options.is_upload:
                keep_origin(connection, created.name, created.version, named.alias.source, prepared.origin)
                check_bundle(connection, self._publisher.quotas, created.name, 0)

        published = await self._publisher.publish(
            self._identity,
            manifest,
            prepared.skill_md,
            files,
            self._publisher.rules_with_review() if self._options.review else None,
            also=note,
            scan=scan,
            origin=self._origin(prepared, named.alias),
        )
        created = published.created
        return report_of(
            prepared,
            "published" if created.status == "published" else "draft",
            repairs=repairs,
            name=created.name,
            version=created.version,
            digest=created.digest,
            status=created.status,
            warnings=published.warnings,
            findings=published.findings,
            examples=published.examples,
        )

    def _origin(self, prepared: PreparedSkill, alias: Alias) -> Origin | None:
        """Return the origin of a skill. With times of commits, files without a time are not those of the commit."""
        if not alias.source or self._options.is_upload:
            return None
        is_committed = prepared.committed_at is not None or not self._options.commit_dates
        return Origin(
            alias.source,
            alias.path,
            self._options.commit if is_committed else "",
            prepared.committed_at,
            prepared.licence,
            prepared.licence_path,
        )

    async def _bundle(self, prepared: PreparedSkill, named: NamedSkill, runtime: Mapping[str, object]) -> _Bundle:
        name = named.name
        taken = await self._database.read(partial(taken_versions, name=name))
        if self._options.is_new and taken:
            raise NameTaken(
                f"the name '{name}' is taken", hint="Make a new version of it, or choose another name.", name=name
            )
        if self._options.keeps_name:
            _check_same_name(prepared, name)
        if prepared.manifest is not None and self._options.is_upload:
            self._check_own_name(prepared, name)
            return _Bundle(prepared.manifest, prepared.files, prepared.repairs)
        version = next_version(prepared.declared, taken)
        repairs = prepared.repairs
        if prepared.declared not in {None, version}:
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
        requires, left_out = await self._required(name, prepared.requires)
        if requires:
            made["requires"] = {"skills": requires}
        return _Bundle(made, prepared.files, (*repairs, *left_out))

    async def _required(self, name: str, names: Sequence[str]) -> tuple[dict[str, str], list[Repair]]:
        """Return the required skills that this registry has, each with a range, and a repair for each other one."""
        choosing = partial(choose_possible, name=name, names=names, visibility=self._publisher.visibility)
        work = partial(choosing, identity=self._identity)
        chosen, errors = await asyncio.to_thread(self._database.read_now, work) if names else ([], {})
        messages = [f"the skill '{each}' is left out of the required skills: {errors[each].message}" for each in errors]
        return dict.fromkeys(chosen, "*"), [Repair("left_out_skill", text, file=SKILL_MD) for text in messages]

    def _check_own_name(self, prepared: PreparedSkill, name: str) -> None:
        if self._options.into and prepared.stated != name:
            raise InvalidBundle(
                f"skill.toml says '{prepared.stated}', but the import adds a version of '{name}'",
                hint="Change the name in skill.toml, or import it as a separate skill.",
                file="skill.toml",
            )

    async def _claim(self, prepared: PreparedSkill, named: NamedSkill, same: _StoredVersion) -> None:
        """Record the alias of a skill that is already stored, unless the alias exists. Uploads and dry runs record
        nothing.
        """
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


def _check_same_name(prepared: PreparedSkill, name: str) -> None:
    """Raise InvalidBundle if the stated name is not the name of the skill, with or without its namespace."""
    segments = name.split(".")
    if index_name(prepared.stated) not in {index_name(".".join(segments[at:])) for at in range(len(segments))}:
        raise InvalidBundle(
            f"SKILL.md has the name {quoted(prepared.stated)}, but the upload is a version of '{name}'",
            hint="Change the name in SKILL.md, or upload it as a new skill.",
            file="SKILL.md",
        )


def _is_unchanged(prepared: PreparedSkill, imported: Imported, packages: Mode | None) -> bool:
    """Return whether the same files were imported before.

    If `packages` is `lock` or `off`, the inferred packages must be the same too. A version that the identity may not
    see counts as absent.
    """
    source, earlier = prepared.source_digest, imported.source_digest
    is_same = source == earlier if packages in {"lock", "off"} else same_files(source, earlier)
    return is_same and imported.is_seen and not imported.is_removed
