"""The gate of publishing together with the registry: grants, stored versions, waivers and records of runs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Finding, Identity, Publication, PublishedFile, Storage
from skillery.database import Database
from skillery.environments.definitions import check_python
from skillery.environments.dependency_locks import lock_of_version
from skillery.environments.store import Environments
from skillery.errors import InvalidVersion, Refused
from skillery.formats.agent_skill import agent_skill
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, Bundle, BundleFile
from skillery.formats.check_results import CheckedExample, CheckFinding, PermissionsDiff
from skillery.formats.foreign_requirements import Needs
from skillery.formats.names import index_name
from skillery.formats.npm import NPM_LOCK
from skillery.formats.requirements import LOCK
from skillery.formats.script_blocks import script_locks
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd
from skillery.formats.version_spec import Exact
from skillery.formats.wording import AGAIN
from skillery.identity import access
from skillery.publishing.example_runs import Subject, Tested, stored_examples
from skillery.publishing.gate import Gate, as_found, publication_of, published_files
from skillery.publishing.npm_locks import inferred_npm
from skillery.publishing.package_locks import ImportScan, locks_of
from skillery.publishing.required import required_by
from skillery.registry.development import KEPT_SECONDS, Overlays, is_development
from skillery.registry.requires import Required
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import Visibility
from skillery.skills.catalogue_order import look_alike_findings
from skillery.skills.files import files_of, read_file
from skillery.versions.checks import Checks, checks_of, with_examples
from skillery.versions.new_versions import NewVersion, diff_of, state_of
from skillery.versions.waivers import apply_waivers

MOST_FINDINGS = 500
"""Limit of the findings that are stored with a version. The findings that refuse a version come first in the list."""


class RegistryState(NamedTuple):
    """The registry's state before a bundle is stored. `taken` is the stored version with the same files, or None."""

    taken: NewVersion | None
    diff: PermissionsDiff
    scan: ImportScan | None
    """The undeclared packages of the bundle, or None if no scan was necessary for the lock of packages."""
    visibility: Visibility | None
    """The visibility of the skill, or None for a new skill."""
    requires: tuple[Required, ...]


class BundleChecks:
    """Checks bundles, without storing them. Runs of examples leave records."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        gate: Gate,
        pythons: Callable[[], Collection[str]],
        archive_date: Callable[[], str],
    ) -> None:
        """`pythons` returns the versions of the other Pythons that scripts can have, and `archive_date` the date of the
        archive of known vulnerabilities, or "".
        """
        self.pythons = pythons
        self.archive_date = archive_date
        self.undeclared = gate.undeclared
        self.examples = gate.trials.examples
        self._database = database
        self._storage = storage
        self._gate = gate

    async def check(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        scan: ImportScan | None,
        visibility: Visibility = "public",
    ) -> tuple[Bundle, RegistryState]:
        """Return the checked bundle with its lock, and the state of the registry for it. `visibility` is the one of a
        new skill. Raise the errors of `Gate.bundle`, `Gate.locked` and `required_by`, and NotAllowed without a grant.
        """
        bundle = await self._gate.bundle(identity.name, manifest, skill_md, files)
        # Check the grant first: a caller without a grant must not learn which versions exist.
        access.require_namespace(identity, "publish", bundle.manifest.name)
        lenient = isinstance(skill_md, SkillMd)
        bundle, scan = await self._gate.locked(identity.name, bundle, files, scan, self._stored_lock, lenient=lenient)

        def look(connection: Connection) -> RegistryState:
            taken, stored = state_of(connection, bundle, identity)
            about = (identity, self._storage, bundle, stored or visibility)
            requires = () if taken else required_by(connection, *about)
            diff = diff_of(connection, bundle, requires, is_new=stored is None)
            return RegistryState(taken, diff, scan, stored, requires)

        if bundle.manifest.requires:  # the choice takes up to MOST_SECONDS, and reads locks of packages in the storage
            return bundle, await asyncio.to_thread(self._database.read_now, look)
        return bundle, await self._database.read(look)

    async def parse(
        self, caller: str, manifest: Mapping[str, Any], skill_md: str, files: Sequence[BundleFile]
    ) -> Bundle:
        """Return the bundle of these parts. Raise the errors of `Gate.bundle`."""
        return await self._gate.bundle(caller, manifest, skill_md, files)

    async def _stored_lock(self, name: str, version: Version, path: str = LOCK) -> tuple[str, bytes | None]:
        """Return the digest of a stored version, and its lock of packages, the file `path`."""
        find = partial(lock_of_version, storage=self._storage, name=name, version=version, path=path)
        return await asyncio.to_thread(self._database.read_now, find)

    async def check_needs(self, identity: Identity, needs: Needs, lock: bytes | None, cut_off: str) -> None:
        """Raise the error that publishing a version with these packages would raise.

        `lock` is the lock of packages in the bundle, or None. `cut_off` is that of `Locks.make`. The results are
        cached, so that publishing the version is faster.
        """
        check_python(needs.requires_python)
        if needs.dependencies and lock is not None:
            await self._gate.locks.verify(needs.dependencies, lock, identity.name)
        elif needs.dependencies:
            await self._gate.locks.make(needs.dependencies, identity.name, cut_off=cut_off)

    async def script_lock(self, identity: Identity, needs: Needs, python: str, cut_off: str) -> bytes:
        """Return a lock for one script. `python` and `cut_off` are those of `Locks.make`, which raises its errors."""
        return await self._gate.locks.make(needs.dependencies, identity.name, cut_off=cut_off, python=python)

    async def inferred_npm(self, files: Sequence[BundleFile], declared: Sequence[str]) -> tuple[str, ...]:
        """See `npm_locks.inferred_npm`."""
        return await inferred_npm(self._gate.locks, files, declared)

    async def findings(
        self, publication: Publication, bundle: Bundle, scan: ImportScan | None, identity: Identity, *, trials: bool
    ) -> tuple[CheckFinding, ...]:
        """Return the findings of `Gate.findings`, with their waivers."""
        manifest, alike = bundle.manifest, list[Finding]()
        if trials:  # skills of one source are copies by right, and an import does not know its source yet
            look = partial(
                look_alike_findings, name=manifest.name, description=manifest.description, publisher=identity.name
            )
            alike += await self._database.read(look)

        async def judge(findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
            findings = [*findings, *alike]
            alike.clear()
            if not findings:
                return ()
            work = partial(apply_waivers, name=manifest.name, version=manifest.version, findings=findings)
            return tuple(await self._database.read(work))

        return await self._gate.findings(publication, bundle, scan, identity, judge, trials=trials)

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
        tested = await self._gate.trials.examples.test(identity, subject, bundle.examples, permitted=permitted)
        refuse(manifest.name, str(manifest.version), as_found(tested.findings), tested.examples)
        return with_examples(checks, tested.examples)

    async def test_examples(self, identity: Identity, bundle: Bundle) -> Tested:
        """Run the examples that need no permissions, and return their results. Raise Busy or Unavailable if they
        cannot be run.
        """
        subject = Subject(bundle.manifest, bundle.digest, published_files(bundle.files))
        return await self._gate.trials.examples.test(identity, subject, bundle.examples, permitted=False)

    async def run_waiting_examples(self, identity: Identity, row: VersionRow) -> Checks:
        """Run the examples of a stored version that wait for an approval. Return the checks of the version with the
        results.

        The runs belong to the approving reviewer, `identity`. Raise Refused if an example fails.
        """
        stored = partial(self.stored_publication, identity=identity, name=row.name, version=Version.parse(row.version))
        publication = await asyncio.to_thread(self._database.read_now, stored)
        stored_skill, checks = stored_examples(publication, row.kind), checks_of(row.checks_json)
        tested = await self._gate.trials.examples.test(
            identity, stored_skill.subject, stored_skill.examples, permitted=True, known=checks.examples
        )
        refuse(row.name, row.version, as_found(tested.findings), tested.examples)
        return with_examples(checks, tested.examples)

    def stored_publication(
        self, connection: Connection, identity: Identity, name: str, version: Version
    ) -> Publication:
        """Return a stored version as a Publication, with the contents of its files, for hooks."""
        row = resolve(connection, identity, name, Exact(version), manages=True)
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


def refuse(name: str, version: str, findings: Sequence[CheckFinding], examples: Sequence[CheckedExample]) -> None:
    """Raise Refused if a finding of severity error is not waived."""
    refusing = [finding for finding in findings if finding.refuses]
    if not refusing:
        return
    more_text = f" (and {len(refusing) - 1} more)" if len(refusing) > 1 else ""
    raise Refused(
        f"'{name}' {version} is refused: {refusing[0].message}{more_text}",
        hint=f"Fix the findings{AGAIN}",
        findings=findings[:MOST_FINDINGS],
        **({"examples": examples} if examples else {}),
    )


def _audit_permitted_examples(connection: Connection, identity: Identity, bundle: Bundle) -> None:
    """Record in the audit trail that examples run with permissions, so that the entry exists even if the version is
    then refused.
    """
    manifest = bundle.manifest
    network = [pattern.text for pattern in manifest.permissions.network]
    after = {"digest": bundle.digest, "network": network, "secrets": list(manifest.permissions.secrets)}
    audit.record(connection, identity, "run_examples", f"{manifest.name}@{manifest.version}", after=after)


def holds(connection: Connection, storage: Storage, row: VersionRow, files: Sequence[BundleFile]) -> bool:
    """Return whether the given files are the files of a version.

    File modes do not matter, because clients that install a skill lose them. skill.toml and locks may be missing,
    because the server adds them. SKILL.md may be the stored file, or the file that an export contains.
    """
    stored = {file.path: file.sha256 for file in files_of(connection, row.version_id)}
    values = {file.path: file.sha256 for file in files}
    for added in (SKILL_TOML, LOCK, NPM_LOCK, *script_locks(stored)):
        if added not in values:
            stored.pop(added, None)
    skill_md, stored_md = values.pop(SKILL_MD, ""), stored.pop(SKILL_MD, None)
    return values == stored and (skill_md == stored_md or skill_md == _exported(connection, storage, row))


def _exported(connection: Connection, storage: Storage, row: VersionRow) -> str:
    """Return the SHA-256 of the SKILL.md that an export of the version contains."""
    description: str = msgspec.json.decode(row.manifest_json)["description"]
    content = read_file(connection, storage, row, SKILL_MD)
    exported = agent_skill(content, name=index_name(row.name), description=description)
    return hashlib.sha256(exported.content).hexdigest()


# Development versions: checked like published versions, but without examples, and served to their author from
# memory.


class DevelopedSkill(msgspec.Struct, frozen=True):
    """A development version, which only its caller sees."""

    name: str
    version: str
    digest: str
    warnings: tuple[str, ...]
    findings: tuple[CheckFinding, ...]
    kept_ms: Annotated[int, msgspec.Meta(description="Time until the version ends, unless it is kept")]


class KeptSkills(msgspec.Struct, frozen=True):
    """Skills whose development versions the call kept or ended."""

    names: Annotated[tuple[str, ...], msgspec.Meta(description="Without the skills that have no development version")]
    kept_ms: Annotated[int, msgspec.Meta(description="Time until the versions end, unless they are kept; 0 if ended")]


class Developer:
    """Checks bundles and serves them to their authors."""

    def __init__(self, checks: BundleChecks, overlays: Overlays, environments: Environments) -> None:
        self.overlays = overlays
        self._checks = checks
        self._environments = environments

    async def develop_skill(
        self, identity: Identity, manifest: Mapping[str, Any], skill_md: str, files: Sequence[BundleFile]
    ) -> DevelopedSkill:
        """Serve a bundle to the identity as a development version, in place of the skill's earlier one.

        Raise the errors of `Publisher.create_skill` for a bundle that is not valid. Findings do not prevent that the
        version is served. Raise InvalidVersion if the version is not a development version, for example `1.2.0-dev.3`.
        """
        _check_version(str(manifest.get("version", "")))
        bundle, state = await self._checks.check(identity, manifest, skill_md, files, None)
        row = self.overlays.put(identity, bundle, bundle.warnings)
        for lock in locks_of(bundle):
            self._environments.begin(lock)  # install the packages early, so that the first run waits less
        publication = publication_of(bundle, identity)
        findings = await self._checks.findings(publication, bundle, state.scan, identity, trials=True)
        return DevelopedSkill(
            name=row.name,
            version=row.version,
            digest=row.digest,
            warnings=bundle.warnings,
            findings=findings[:MOST_FINDINGS],
            kept_ms=int(KEPT_SECONDS * 1000),
        )

    def keep(self, identity: Identity, names: Sequence[str]) -> KeptSkills:
        return KeptSkills(tuple(self.overlays.renew(identity, names)), int(KEPT_SECONDS * 1000))

    def end(self, identity: Identity, names: Sequence[str]) -> KeptSkills:
        return KeptSkills(tuple(self.overlays.remove(identity, names)), 0)


def _check_version(text: str) -> None:
    """Raise InvalidVersion for a valid version that is not a development version. Other texts pass: the bundle's check
    refuses them.
    """
    try:
        version = Version.parse(text)
    except InvalidVersion:
        return  # the check of the bundle reports it with all other problems
    if not is_development(version.prerelease):
        raise InvalidVersion(
            f"'{text}' is not a development version",
            hint=f"Write {version.major}.{version.minor}.{version.patch}-dev.1, or publish it with create_skill.",
        )
