"""The checks of a bundle before it is published: its files, its lock of packages, the findings of plugins, and its
examples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from skillery.formats.unfinished_bundle import UnfinishedBundle, begin_bundle
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
    files_of,
    resolve,
    state_of,
    with_examples,
)
from skillery.registry.files import read_file

MOST_FINDINGS = 500
"""Limit of the findings that are stored with a version. The findings that refuse a version come first in the list."""


class RegistryState(NamedTuple):
    """The registry's state before a bundle is stored. `taken` is the stored version with the same files, or None."""

    taken: NewVersion | None
    diff: PermissionsDiff
    scan: ImportScan | None
    """The undeclared packages of the bundle, or None if no scan was necessary for the lock of packages."""


class Trials(NamedTuple):
    """The checks that run code of a bundle in the sandbox."""

    imports: ImportCheck
    examples: ExampleRuns


class BundleChecks:
    """Checks bundles, without storing them. Runs of examples leave records."""

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
        """Store the parts. `most_of` maps each limit that a skill can request to the maximum of this server."""
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
        begin = partial(begin_bundle, manifest, skill_md, files, self._limits, skip_broken_tools=lenient)
        begun, finished = await asyncio.to_thread(_begin, begin)
        if finished is None:
            problems = await self._compilers.check(identity.name, begun.sources)
            finished = await asyncio.to_thread(begun.finish, problems)
        bundle = finished
        bundle = msgspec.structs.replace(bundle, warnings=(*bundle.warnings, *self._limit_warnings(bundle)))
        # Check the grant first: a caller without a grant must not learn which versions exist.
        access.require_namespace(identity, "publish", bundle.manifest.name)
        infer = partial(self._infer, identity, bundle, scan)
        with with_toml_lines(files):
            bundle, found = await with_lock(
                self._database, self._storage, self._locks, self._limits, bundle, identity.name, infer
            )

        def look(connection: Connection) -> RegistryState:
            return RegistryState(*state_of(connection, bundle, identity), found or scan)

        return bundle, await self._database.read(look)

    async def check_needs(
        self, identity: Identity, dependencies: Sequence[str], requires_python: str, lock: bytes | None
    ) -> None:
        """Check the packages of a version: raise the error that publishing the version would raise.

        `lock` is the lock of packages in the bundle, or None. The results are cached, so that publishing the version is
        faster.
        """
        check_python(requires_python)
        if dependencies and lock is not None:
            await self._locks.verify(dependencies, lock, identity.name)
        elif dependencies:
            await self._locks.make(dependencies, identity.name)

    async def findings(
        self, publication: Publication, bundle: Bundle, scan: ImportScan | None, identity: Identity, *, trials: bool
    ) -> tuple[CheckFinding, ...]:
        """Return the findings of plugins, the findings about undeclared packages and, with `trials`, the findings of
        the import check. Waivers are applied.

        Findings that refuse the version come first. If there is one before the import check, the code is not imported.
        """
        scan = scan or await self.undeclared.scan(identity.name, bundle.files)
        called = bundle.manifest.called
        undeclared = await self.undeclared.findings(scan, called.entrypoint if called else "", lock_of(bundle))
        judged = await self._judged(bundle, (*await self._events.before_publish(publication), *undeclared))
        if trials and not any(finding.refuses for finding in judged):
            found = await self._judged(bundle, await self._trials.imports.findings(identity, bundle))
            # An import proves what the scan can only suspect: at the same place, its finding replaces that of the scan.
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
        """Run the examples of a bundle, and return `checks` with their results. With `permitted`, examples that need
        permissions run too.

        Raise Refused if an example fails. Raise Busy or Unavailable if the examples cannot be run.
        """
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
        """Run the examples that need no permissions, and return their results. Raise Busy or Unavailable if they
        cannot be run.
        """
        subject = Subject(bundle.manifest, bundle.digest, published_files(bundle.files))
        return await self._trials.examples.test(identity, subject, bundle.examples, permitted=False)

    async def run_waiting_examples(self, identity: Identity, row: VersionRow) -> Checks:
        """Run the examples of a stored version that wait for an approval. Return the checks of the version with the
        results.

        The runs belong to the approving reviewer, `identity`. Raise Refused if an example fails.
        """
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
            manifest=msgspec.json.decode(row.whole_manifest_json),
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


def _begin(begin: Callable[[], UnfinishedBundle]) -> tuple[UnfinishedBundle, Bundle | None]:
    """Return the unfinished bundle, and the finished one if it has nothing to compile: one switch of the thread
    instead of two.
    """
    begun = begin()
    return begun, None if begun.sources else begun.finish({})


def refuse(name: str, version: str, findings: Sequence[CheckFinding], examples: Sequence[CheckedExample]) -> None:
    """Raise Refused if a finding of severity error is not waived."""
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
    """Record in the audit trail that examples run with permissions, so that the entry exists even if the version is
    then refused.
    """
    manifest = bundle.manifest
    network = [pattern.text for pattern in manifest.permissions.network]
    after = {"digest": bundle.digest, "network": network, "secrets": list(manifest.permissions.secrets)}
    audit.record(connection, identity, "run_examples", f"{manifest.name}@{manifest.version}", after=after)
