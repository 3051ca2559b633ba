"""The checks of a bundle before it is published: its files, its lock, the findings of plugins, and its examples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Events, Finding, Identity, Publication, PublishedFile, Storage
from skillery.database import Database
from skillery.environments import Locks, check_python
from skillery.errors import Refused
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits
from skillery.formats.examples import read_examples
from skillery.formats.manifest import parse_manifest
from skillery.formats.permissions import PermissionsDiff
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd
from skillery.formats.unfinished_bundle import begin_bundle
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.publishing.compile_pool import CompilePool
from skillery.publishing.example_runs import ExampleRuns, Subject, Tested
from skillery.publishing.import_check import ImportCheck
from skillery.publishing.package_locks import dependencies_of, lock_of, with_lock, with_toml_lines
from skillery.publishing.undeclared import Undeclared
from skillery.publishing.undeclared_findings import UNDECLARED, ImportScan
from skillery.registry import (
    CheckedExample,
    CheckFinding,
    Checks,
    NewVersion,
    VersionRow,
    apply_waivers,
    checks_of,
    compare_permissions,
    files_of,
    resolve,
    version_if_taken,
    with_examples,
)
from skillery.registry.files import read_file

MOST_FINDINGS = 500
"""Limit on the findings stored with a version. Errors without a waiver come first."""


class RegistryState(NamedTuple):
    """The registry's state before a version is added."""

    taken: NewVersion | None
    diff: PermissionsDiff
    scan: ImportScan | None
    """The result about undeclared packages, if the lock needed one."""


class Trials(NamedTuple):
    """The checks that run code of a bundle in the sandbox."""

    imports: ImportCheck
    examples: ExampleRuns


class BundleChecks:
    """Checks bundles. Stores nothing but the runs of their examples."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        events: Events,
        limits: BundleLimits,
        most_of: Mapping[str, float],
        trials: Trials,
        locks: Locks,
        compilers: CompilePool,
        undeclared: Undeclared,
    ) -> None:
        """`most_of` is the server's maximum of each limit that a skill can request."""
        self.undeclared = undeclared
        self._database = database
        self._storage = storage
        self._events = events
        self._limits = limits
        self._most_of = most_of
        self._trials = trials
        self._locks = locks
        self._compilers = compilers

    async def check(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        scan: ImportScan | None,
    ) -> tuple[Bundle, RegistryState]:
        lenient = isinstance(skill_md, SkillMd)
        begun = await asyncio.to_thread(
            begin_bundle, manifest, skill_md, files, self._limits, skip_broken_tools=lenient
        )
        problems = await self._compilers.check(identity.name, begun.sources)
        bundle = await asyncio.to_thread(begun.finish, problems)
        bundle = msgspec.structs.replace(bundle, warnings=(*bundle.warnings, *self._limit_warnings(bundle)))
        # The grant is checked first: without it, the caller must not learn which versions exist.
        access.require_namespace(identity, "publish", bundle.manifest.name)
        infer = partial(self._infer, identity, bundle, scan)
        with with_toml_lines(files):
            bundle, found = await with_lock(
                self._database, self._storage, self._locks, self._limits, bundle, identity.name, infer
            )

        def look(connection: Connection) -> RegistryState:
            taken = version_if_taken(connection, bundle=bundle, identity=identity)
            return RegistryState(taken, compare_permissions(connection, bundle.manifest), found or scan)

        return bundle, await self._database.read(look)

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

    async def findings(
        self, publication: Publication, bundle: Bundle, scan: ImportScan | None, identity: Identity, *, trials: bool
    ) -> tuple[CheckFinding, ...]:
        """Return the findings of plugins, about undeclared packages and, with `trials`, of the import check.

        Waivers are applied, and refusing findings come first. Code that they refuse is not imported.
        """
        scan = scan or await self.undeclared.scan(identity.name, bundle.files)
        called = bundle.manifest.called
        undeclared = await self.undeclared.findings(scan, called.entrypoint if called else "", lock_of(bundle))
        judged = await self._judged(bundle, (*await self._events.before_publish(publication), *undeclared))
        if trials and not any(finding.refuses for finding in judged):
            found = await self._judged(bundle, await self._trials.imports.findings(identity, bundle))
            # The import found out for certain what the look at the imports could only suspect.
            places = {(one.file, one.line) for one in found}
            judged = (*found, *(one for one in judged if one.rule != UNDECLARED or (one.file, one.line) not in places))
        return tuple(sorted(judged, key=lambda finding: not finding.refuses))

    async def _judged(self, bundle: Bundle, findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
        """Return the findings with their waivers."""
        if not findings:
            return ()
        manifest = bundle.manifest
        judge = partial(apply_waivers, name=manifest.name, version=manifest.version, findings=findings)
        return tuple(await self._database.read(judge))

    async def run_examples(self, identity: Identity, bundle: Bundle, checks: Checks, permitted: bool) -> Checks:
        """Return the checks with the results of the examples. Raise Refused, Busy, Unavailable."""
        if not bundle.examples.read:
            return checks
        manifest = bundle.manifest
        subject = Subject(manifest, bundle.digest, published_files(bundle.files))
        if permitted and any(example.needs_permissions for example in bundle.examples.read):
            await self._database.write(partial(_audit_permitted_examples, identity=identity, bundle=bundle))
        tested = await self._trials.examples.test(identity, subject, bundle.examples, permitted=permitted)
        refuse(manifest.name, str(manifest.version), as_found(tested.findings), tested.examples)
        return with_examples(checks, tested.examples)

    async def test_examples(self, identity: Identity, bundle: Bundle) -> Tested:
        """Run the examples that need no permissions, and return their results. Raise Busy, Unavailable."""
        subject = Subject(bundle.manifest, bundle.digest, published_files(bundle.files))
        return await self._trials.examples.test(identity, subject, bundle.examples, permitted=False)

    async def run_waiting_examples(self, identity: Identity, row: VersionRow) -> Checks:
        """Run the examples that need permissions, as the approving reviewer, and return the checks."""
        stored = partial(self.stored_publication, identity=identity, name=row.name, version=Version.parse(row.version))
        publication = await asyncio.to_thread(self._database.read_now, stored)
        toml = next(file.content.decode("utf-8", "replace") for file in publication.files if file.path == "skill.toml")
        manifest = parse_manifest(publication.manifest, has_tools=row.kind == "action")
        examples = read_examples(manifest, frozenset(file.path for file in publication.files), toml)
        checks = checks_of(row.checks_json)
        subject = Subject(manifest, row.digest, publication.files)
        tested = await self._trials.examples.test(identity, subject, examples, permitted=True, known=checks.examples)
        refuse(row.name, row.version, as_found(tested.findings), tested.examples)
        return with_examples(checks, tested.examples)

    def stored_publication(
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

    async def _infer(self, identity: Identity, bundle: Bundle, scan: ImportScan | None) -> ImportScan:
        if scan is not None:
            return scan
        return await self.undeclared.infer(identity.name, bundle.files, dependencies_of(bundle))

    def _limit_warnings(self, bundle: Bundle) -> Iterator[str]:
        runtime = bundle.manifest.runtime
        for key, value in (runtime.limits if runtime else {}).items():
            if value > self._most_of[key]:
                yield (
                    f"runtime.limits.{key} is {value}, above this server's maximum of {self._most_of[key]} "
                    f"(max_limits.{key}): its runs get {self._most_of[key]}"
                )


def refuse(name: str, version: str, findings: Sequence[CheckFinding], examples: Sequence[CheckedExample]) -> None:
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


def as_found(findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
    return tuple(CheckFinding(one.rule, one.message, one.severity, one.file, one.line) for one in findings)


def published_files(files: Sequence[BundleFile]) -> tuple[PublishedFile, ...]:
    return tuple(PublishedFile(file.path, file.content, file.executable) for file in files)


def publication_of(bundle: Bundle, identity: Identity) -> Publication:
    return Publication(
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        manifest=bundle.manifest.raw,
        files=published_files(bundle.files),
        identity=identity,
    )


def _audit_permitted_examples(connection: Connection, identity: Identity, bundle: Bundle) -> None:
    """Record the run of examples with permissions before it starts: a refused version leaves no other trace."""
    manifest = bundle.manifest
    network = [pattern.text for pattern in manifest.permissions.network]
    after = {"digest": bundle.digest, "network": network, "secrets": list(manifest.permissions.secrets)}
    audit.record(connection, identity, "run_examples", f"{manifest.name}@{manifest.version}", after=after)
