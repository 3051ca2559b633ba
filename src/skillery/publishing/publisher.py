"""create_skill; approve_version, which publishes a draft; check_skill, which checks without publishing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Events, Finding, Identity, Publication, PublishedFile, Storage
from skillery.contents.store import is_inline, put_large
from skillery.contents.uploads import Uploading
from skillery.database import Database
from skillery.environments import Environments, Locks, check_python
from skillery.errors import NotFound, Refused, SkilleryError
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, begin_bundle
from skillery.formats.examples import read_examples
from skillery.formats.manifest import parse_manifest
from skillery.formats.permissions import PermissionsDiff
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd
from skillery.formats.version_spec import Exact, Latest
from skillery.identity import access
from skillery.identity.quotas import Quotas
from skillery.publishing.compile_pool import CompilePool
from skillery.publishing.example_runs import ExampleRuns, Subject
from skillery.publishing.file_matches import holds
from skillery.publishing.package_locks import dependencies_of, lock_of, with_lock, with_toml_lines
from skillery.publishing.rules import PublishingRules
from skillery.publishing.undeclared import Undeclared
from skillery.publishing.undeclared_findings import ImportScan
from skillery.registry import (
    CheckedExample,
    CheckFinding,
    Checks,
    NewVersion,
    VersionRow,
    apply_waivers,
    approve_version,
    checks_of,
    compare_permissions,
    files_of,
    find_approvable,
    insert_version,
    resolve,
    version_if_taken,
    with_examples,
)
from skillery.registry.files import read_file
from skillery.registry.index_names import index_name_warning

log = logging.getLogger(__name__)

MOST_FINDINGS = 500
"""Limit on the findings stored with a version. Errors without a waiver come first."""


class CheckedSkill(msgspec.Struct, frozen=True):
    """The answer of `check_skill`. `status` is the first status that the version would have."""

    ok: bool
    name: str
    version: str
    digest: str
    status: str
    warnings: tuple[str, ...]
    findings: tuple[CheckFinding, ...]
    examples: tuple[CheckedExample, ...]
    permissions_diff: PermissionsDiff


Also = Callable[[Connection, NewVersion], None]
"""Function that records more in the transaction that adds a version."""


class Published(NamedTuple):
    """The result of publishing a bundle, with its warnings and findings."""

    created: NewVersion
    warnings: tuple[str, ...]
    findings: tuple[CheckFinding, ...] = ()
    examples: tuple[CheckedExample, ...] = ()


class _RegistryState(NamedTuple):
    """The registry's state before a version is added."""

    taken: NewVersion | None
    diff: PermissionsDiff
    scan: ImportScan | None
    """The result about undeclared packages, if the lock needed one."""


class Publisher:
    """Publishes bundles into the registry."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        events: Events,
        limits: BundleLimits,
        rules: PublishingRules,
        most_of: Mapping[str, float],
        examples: ExampleRuns,
        quotas: Quotas,
        locks: Locks,
        environments: Environments,
        compilers: CompilePool,
        undeclared: Undeclared,
    ) -> None:
        """`most_of` is the server's maximum of each limit that a skill can request."""
        self.undeclared = undeclared
        self._database = database
        self._storage = storage
        self._events = events
        self._limits = limits
        self._rules = rules
        self._most_of = most_of
        self._examples = examples
        self._quotas = quotas
        self._locks = locks
        self._environments = environments
        self._compilers = compilers

    async def create_skill(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str,
        files: Sequence[BundleFile],
        rules: PublishingRules | None = None,
        quotas: Quotas | None = None,
        *,
        made_by: str | None = None,
    ) -> NewVersion:
        """Publish a bundle completely or not at all.

        Raises InvalidManifest, InvalidBundle, InvalidPath, BundleTooLarge, NotAllowed (no grant covers the name),
        NameTaken, VersionExists, Refused, QuotaExceeded; Busy, RateLimited and Unavailable if its examples cannot be
        run; the errors of `Locks.make` if its dependencies cannot be locked.

        `rules` and `quotas` replace those of the publisher. Only the author and reviewers see a draft. The same bundle
        again returns the stored version. `made_by` is the method that generated the bundle.
        """
        published = await self.publish(identity, manifest, skill_md, files, rules, quotas, made_by=made_by)
        return published.created

    async def publish(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        rules: PublishingRules | None = None,
        quotas: Quotas | None = None,
        *,
        made_by: str | None = None,
        also: Also | None = None,
        scan: ImportScan | None = None,
    ) -> Published:
        """Publish as create_skill does, and return warnings and findings too.

        `scan` is the caller's result about undeclared packages. `also` runs in the transaction that adds the version,
        or in its own if the version exists. If `skill_md` is already parsed, the bundle is imported: tools that break a
        rule are skipped.
        """
        rules = rules or self._rules
        bundle, state = await self._check_bundle(identity, manifest, skill_md, files, scan)
        if state.taken is not None:
            if also is not None:
                await self._database.write(partial(_record_also, also, state.taken))
            return Published(state.taken, bundle.warnings)
        publication = _publication(bundle, identity)
        findings = await self._findings(publication, bundle, state.scan, identity)
        _refuse(publication.name, publication.version, findings, ())
        checks = Checks(False, findings=findings[:MOST_FINDINGS])
        if rules.examples:
            permitted = rules.status_for(identity, state.diff) == "published"
            checks = await self._run_examples(identity, bundle, checks, permitted)
        quotas = quotas or self._quotas
        insert = partial(
            self._insert,
            bundle=bundle,
            identity=identity,
            rules=rules,
            quotas=quotas,
            checks=checks,
            made_by=made_by,
            also=also,
        )
        created = await self._store(bundle, insert)
        if (lock := lock_of(bundle)) is not None:
            self._environments.begin(lock)  # so that the first run need not wait for all of it
        if created.status == "published":
            await self._events.after_publish(publication)
        return Published(created, bundle.warnings, checks.findings, checks.examples)

    async def check_skill(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        scan: ImportScan | None = None,
    ) -> CheckedSkill:
        """Run all checks of create_skill without publishing.

        Findings are returned; other errors are raised as in create_skill. Only the runs of the examples are stored. For
        an existing version, its examples run again.
        """
        bundle, state = await self._check_bundle(identity, manifest, skill_md, files, scan)
        publication = _publication(bundle, identity)
        findings = await self._findings(publication, bundle, state.scan, identity)
        status = state.taken.status if state.taken else self._rules.status_for(identity, state.diff)
        # Nothing is published, so no run gets the permissions of a published version.
        subject = Subject(bundle.manifest, bundle.digest, publication.files)
        tested = await self._examples.test(identity, subject, bundle.examples, permitted=False)
        findings = (*findings, *_as_found(tested.findings))
        shared = await self._database.read(partial(index_name_warning, identity=identity, name=publication.name))
        return CheckedSkill(
            ok=not any(finding.refuses for finding in findings),
            name=publication.name,
            version=publication.version,
            digest=bundle.digest,
            status=status,
            warnings=(*bundle.warnings, *([shared] if shared else ())),
            findings=findings,
            examples=tested.examples,
            permissions_diff=state.diff,
        )

    async def check_needs(
        self, identity: Identity, dependencies: Sequence[str], requires_python: str, lock: bytes | None
    ) -> None:
        """Raise the errors that a version with these needs and its own lock would get.

        The results are cached for publishing.
        """
        check_python(requires_python)
        if dependencies and lock is not None:
            await self._locks.verify(dependencies, lock, identity.name)
        elif dependencies:
            await self._locks.make(dependencies, identity.name)

    async def find_stored(
        self, identity: Identity, name: str, version: Version | None, files: Sequence[BundleFile]
    ) -> VersionRow | None:
        """Return the version (default: the latest) if the identity sees it and it has the files; else None."""

        def look(connection: Connection) -> VersionRow | None:
            try:
                row = resolve(connection, identity, name, Exact(version) if version is not None else Latest())
            except NotFound:
                return None
            return row if holds(connection, self._storage, row, files) else None

        return await asyncio.to_thread(self._database.read_now, look)

    async def approve_version(
        self, identity: Identity, name: str, version: Version, digest: str | None, note: str
    ) -> NewVersion:
        """Approve a version as the registry does, then report the publication to the `after_publish` hooks."""
        look = partial(find_approvable, identity=identity, name=name, version=version, digest=digest)
        row = await self._database.read(look)
        checks = await self._run_waiting_examples(identity, row) if checks_of(row.checks_json).waiting else None
        work = partial(
            approve_version, identity=identity, name=name, version=version, digest=digest, note=note, checks=checks
        )
        approved = await self._database.write(work)
        stored = partial(self._stored_publication, identity=identity, name=name, version=version)
        try:
            publication = await asyncio.to_thread(self._database.read_now, stored)
        except SkilleryError:
            # The version stays published even if the storage fails now.
            log.exception("the after_publish hooks were not called for %s %s", name, approved.version)
        else:
            await self._events.after_publish(publication)
        return approved

    # -- looking -------------------------------------------------------------------------------------------------

    async def _check_bundle(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        scan: ImportScan | None,
    ) -> tuple[Bundle, _RegistryState]:
        lenient = isinstance(skill_md, SkillMd)
        begun = await asyncio.to_thread(
            begin_bundle, manifest, skill_md, files, self._limits, skip_broken_tools=lenient
        )
        problems = await self._compilers.check(identity.name, begun.sources)
        bundle = await asyncio.to_thread(begun.finish, problems)
        bundle = msgspec.structs.replace(bundle, warnings=(*bundle.warnings, *self._limit_warnings(bundle)))
        # Checked first: the answer about existing versions depends on it.
        access.require_namespace(identity, "publish", bundle.manifest.name)
        infer = partial(self._infer, identity, bundle, scan)
        with with_toml_lines(files):
            bundle, found = await with_lock(
                self._database, self._storage, self._locks, self._limits, bundle, identity.name, infer
            )

        def look(connection: Connection) -> _RegistryState:
            taken = version_if_taken(connection, bundle=bundle, identity=identity)
            return _RegistryState(taken, compare_permissions(connection, bundle.manifest), found or scan)

        return bundle, await self._database.read(look)

    async def _infer(self, identity: Identity, bundle: Bundle, scan: ImportScan | None) -> ImportScan:
        if scan is not None:
            return scan
        return await self.undeclared.infer(identity.name, bundle.files, dependencies_of(bundle))

    async def _findings(
        self, publication: Publication, bundle: Bundle, scan: ImportScan | None, identity: Identity
    ) -> tuple[CheckFinding, ...]:
        """Return the findings of plugins and about undeclared packages, waivers applied, refusing ones first."""
        scan = scan or await self.undeclared.scan(identity.name, bundle.files)
        called = bundle.manifest.called
        undeclared = await self.undeclared.findings(scan, called.entrypoint if called else "", lock_of(bundle))
        findings = (*await self._events.before_publish(publication), *undeclared)
        if not findings:
            return ()
        version = bundle.manifest.version
        judged = await self._database.read(
            partial(apply_waivers, name=publication.name, version=version, findings=findings)
        )
        return tuple(sorted(judged, key=lambda finding: not finding.refuses))

    async def _run_examples(self, identity: Identity, bundle: Bundle, checks: Checks, permitted: bool) -> Checks:
        """Return the checks with the results of the examples. Raise Refused, Busy, Unavailable."""
        if not bundle.examples.read:
            return checks
        manifest = bundle.manifest
        subject = Subject(manifest, bundle.digest, _published(bundle.files))
        if permitted and any(example.needs_permissions for example in bundle.examples.read):
            await self._database.write(partial(_audit_permitted_examples, identity=identity, bundle=bundle))
        tested = await self._examples.test(identity, subject, bundle.examples, permitted=permitted)
        _refuse(manifest.name, str(manifest.version), _as_found(tested.findings), tested.examples)
        return with_examples(checks, tested.examples)

    async def _run_waiting_examples(self, identity: Identity, row: VersionRow) -> Checks:
        """Run the examples that need permissions, as the approving reviewer, and return the checks."""
        stored = partial(self._stored_publication, identity=identity, name=row.name, version=Version.parse(row.version))
        publication = await asyncio.to_thread(self._database.read_now, stored)
        toml = next(file.content.decode("utf-8", "replace") for file in publication.files if file.path == "skill.toml")
        manifest = parse_manifest(publication.manifest, has_tools=row.kind == "action")
        examples = read_examples(manifest, frozenset(file.path for file in publication.files), toml)
        checks = checks_of(row.checks_json)
        subject = Subject(manifest, row.digest, publication.files)
        tested = await self._examples.test(identity, subject, examples, permitted=True, known=checks.examples)
        _refuse(row.name, row.version, _as_found(tested.findings), tested.examples)
        return with_examples(checks, tested.examples)

    def _stored_publication(
        self, connection: Connection, identity: Identity, name: str, version: Version
    ) -> Publication:
        row = resolve(connection, identity, name, Exact(version))
        return Publication(
            name=row.name,
            version=row.version,
            digest=row.digest,
            manifest=msgspec.json.decode(row.manifest_json),
            files=tuple(
                PublishedFile(file.path, read_file(connection, self._storage, row, file.path), file.executable)
                for file in files_of(connection, row.version_id)
            ),
            identity=Identity(row.publisher, row.publisher_kind),
        )

    def _limit_warnings(self, bundle: Bundle) -> Iterator[str]:
        runtime = bundle.manifest.runtime
        for key, value in (runtime.limits if runtime else {}).items():
            if value > self._most_of[key]:
                yield (
                    f"runtime.limits.{key} is {value}, above this server's maximum of {self._most_of[key]} "
                    f"(max_limits.{key}): its runs get {self._most_of[key]}"
                )

    async def _store(self, bundle: Bundle, insert: Callable[[Connection], NewVersion]) -> NewVersion:
        """Store large files first and rows last: a crash leaves an unused file, never a version without its files."""
        large = {file.sha256: file.content for file in bundle.files if not is_inline(file.size)}
        if not large:
            return await self._database.write_together(insert)
        upload = await asyncio.to_thread(Uploading, self._database, self._storage, large)

        def settle(connection: Connection) -> NewVersion:
            upload.settle(connection)
            return insert(connection)

        try:
            for sha256, content in large.items():
                await asyncio.to_thread(put_large, self._storage, sha256, content)
            return await self._database.write_together(settle)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(upload.give_up))
            raise

    def _insert(
        self,
        connection: Connection,
        bundle: Bundle,
        identity: Identity,
        rules: PublishingRules,
        quotas: Quotas,
        checks: Checks,
        made_by: str | None,
        also: Also | None,
    ) -> NewVersion:
        def landing(diff: PermissionsDiff) -> str:
            # An approval runs the waiting examples, so the version is not published before.
            return "draft" if checks.waiting else rules.status_for(identity, diff)

        inline = {file.sha256: file.content for file in bundle.files if is_inline(file.size)}
        created = insert_version(
            connection,
            bundle,
            identity,
            inline,
            quotas=quotas,
            landing=landing,
            visibility=rules.visibility,
            checks=checks,
            made_by=made_by,
        )
        if also is not None:
            also(connection, created)
        return created


def _record_also(also: Also, created: NewVersion, connection: Connection) -> None:
    also(connection, created)


def _audit_permitted_examples(connection: Connection, identity: Identity, bundle: Bundle) -> None:
    """Record the run of examples with permissions before it starts: a refused version leaves no other trace."""
    manifest = bundle.manifest
    network = [pattern.text for pattern in manifest.permissions.network]
    after = {"digest": bundle.digest, "network": network, "secrets": list(manifest.permissions.secrets)}
    audit.record(connection, identity, "run_examples", f"{manifest.name}@{manifest.version}", after=after)


def _refuse(name: str, version: str, findings: Sequence[CheckFinding], examples: Sequence[CheckedExample]) -> None:
    """Raise Refused if a finding refuses the version."""
    refusing = [finding for finding in findings if finding.refuses]
    if not refusing:
        return
    more = f" (and {len(refusing) - 1} more)" if len(refusing) > 1 else ""
    raise Refused(
        f"'{name}' {version} is refused: {refusing[0].message}{more}",
        hint="Fix the findings and publish again; nothing was stored.",
        findings=findings[:MOST_FINDINGS],
        **({"examples": examples} if examples else {}),
    )


def _as_found(findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
    return tuple(CheckFinding(one.rule, one.message, one.severity, one.file, one.line) for one in findings)


def _published(files: Sequence[BundleFile]) -> tuple[PublishedFile, ...]:
    return tuple(PublishedFile(file.path, file.content, file.executable) for file in files)


def _publication(bundle: Bundle, identity: Identity) -> Publication:
    return Publication(
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        manifest=bundle.manifest.raw,
        files=_published(bundle.files),
        identity=identity,
    )
