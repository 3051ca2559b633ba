"""The publisher: it publishes bundles, or runs all checks without publishing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery.attestations.evidence import evidence_of, read_former_signer, stated_evidence
from skillery.attestations.policies import Policy, judge
from skillery.attestations.predicates import (
    ci_provenance,
    import_provenance,
    publication_predicate,
    scan_predicate,
    tests_predicate,
)
from skillery.backends import Events, Identity, Storage
from skillery.contents.store import Uploading, is_inline, put_large
from skillery.database import Database
from skillery.environments.store import Environments
from skillery.errors import NotFound
from skillery.exports.sbom import licences_of
from skillery.formats.bundle import Bundle, BundleFile
from skillery.formats.check_results import CheckedExample, CheckFinding, PermissionsDiff
from skillery.formats.licences import Origin
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd
from skillery.formats.version_spec import Exact, Latest
from skillery.identity.quotas import Quotas
from skillery.publishing.bundle_checks import MOST_FINDINGS, BundleChecks, holds, refuse
from skillery.publishing.gate import PublishingRules, as_found, publication_of
from skillery.publishing.package_locks import ImportScan, locks_of
from skillery.publishing.passing import Passing, rules_under
from skillery.registry.index_names import index_name_warning
from skillery.registry.requires import digests_of, seen_calls
from skillery.registry.resolution import resolve, version_if_there
from skillery.registry.version_rows import VersionRow
from skillery.versions.checks import Checks, checks_of, with_examples
from skillery.versions.new_versions import NewVersion, insert_version


class CreatedSkill(NewVersion, frozen=True):
    """The answer of `create_skill`. `warnings` are the warnings of `check_skill`, with its findings."""

    warnings: tuple[str, ...] = ()


class CheckedSkill(msgspec.Struct, frozen=True):
    """The result of `check_skill`. `ok`: the version could be published, and would get the status `status`."""

    ok: bool
    name: str
    version: str
    digest: str
    status: str
    warnings: tuple[str, ...]
    findings: tuple[CheckFinding, ...]
    examples: tuple[CheckedExample, ...]
    permissions_diff: PermissionsDiff
    unchanged: Annotated[bool, Meta(description="Whether the version is already stored with these bytes")]


Also = Callable[[Connection, NewVersion], None]
"""Function that stores additional rows, in the transaction that adds a version."""


class Published(NamedTuple):
    """The result of publishing a bundle: the version, and warnings, findings and examples."""

    created: NewVersion
    warnings: tuple[str, ...]
    findings: tuple[CheckFinding, ...] = ()
    examples: tuple[CheckedExample, ...] = ()


def _stored_warnings(connection: Connection, identity: Identity, created: NewVersion) -> list[str]:
    """Return the warning about the index name, and the messages of the stored findings of a version. They are stored,
    so a repeated call returns the same.
    """
    warning = index_name_warning(connection, identity, created.name)
    row = version_if_there(connection, identity, created.name, Version.parse(created.version))
    findings = checks_of(row.checks_json).findings if row else ()
    return [*([warning] if warning else ()), *(finding.message for finding in findings)]


class Publisher:
    """Publishes bundles as versions in the registry."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        events: Events,
        checks: BundleChecks,
        rules: PublishingRules,
        quotas: Quotas,
        environments: Environments,
        passing: Passing,
    ) -> None:
        self.checks = checks
        self.passing = passing
        self._database = database
        self._storage = storage
        self._events = events
        self._rules = rules
        self.visibility = rules.visibility
        """The visibility of new skills."""
        self.quotas = quotas
        self._environments = environments
        self._signing = passing.signing

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
        submit: bool | None = None,
    ) -> CreatedSkill:
        """Publish a bundle completely or not at all, and return the version. If the same bundle is already stored,
        return its version.

        `rules` and `quotas` replace the publisher's own. `made_by` is the name of the method that generated the bundle.
        `submit` decides for this version, in place of the rules: True submits it for review if it would be a draft,
        False makes it a draft. Only its author and reviewers see a version that is not published.

        Raise InvalidManifest, InvalidBundle, InvalidPath or BundleTooLarge if the bundle is not valid. Raise NotAllowed
        if no namespace grant covers the name. Raise NameTaken or VersionExists if the name or the version belongs to
        another skill or bundle. Raise Refused if a finding or an example refuses the version. Raise QuotaExceeded if a
        quota is used up. Raise Busy, RateLimited or Unavailable if the examples cannot be run. Raise the errors of
        `Locks.make` if the dependencies cannot be locked.
        """
        rules = (rules or self._rules)._replace(submit=submit)
        published = await self.publish(identity, manifest, skill_md, files, rules, quotas, made_by=made_by)
        created = published.created
        stored_warnings = await self._database.read(partial(_stored_warnings, identity=identity, created=created))
        warnings = (*published.warnings, *stored_warnings)
        return CreatedSkill(**msgspec.structs.asdict(created), warnings=warnings)

    def rules_with_review(self) -> PublishingRules:
        """Return the rules of the server, with a review for each version."""
        return self._rules._replace(people="review", agents="review", reviewed="review")

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
        origin: Origin | None = None,
    ) -> Published:
        """Publish a bundle like `create_skill`, and return warnings and findings too.

        `origin` is that of an import. `scan` is an earlier result about undeclared packages. `also` is called in the
        transaction that adds the version; if the version exists, in a separate transaction. A parsed `skill_md` means
        that the bundle is imported: tools that are not valid are then skipped.
        """
        visibility = (rules or self._rules).visibility
        bundle, state = await self.checks.check(identity, manifest, skill_md, files, scan, visibility)
        if (taken := state.taken) is not None:
            if also is not None:
                await self._database.write(lambda connection: also(connection, taken))
            return Published(taken, bundle.warnings)
        publication = publication_of(bundle, identity)
        policy = self.passing.policies.of(publication.name)
        rules = rules_under(rules or self._rules, policy)
        # An import of thousands of skills does not import their code: it stores what others have published.
        trials = rules.trials and not isinstance(skill_md, SkillMd)
        findings = await self.checks.findings(publication, bundle, state.scan, identity, trials=trials)
        refuse(publication.name, publication.version, findings, ())
        described = bundle.manifest, bundle.files, bundle.tools, state.scan
        scripts = await self.checks.undeclared.scripts(identity.name, *described)
        checks = Checks(False, findings=findings[:MOST_FINDINGS], scripts=scripts, origin=origin)
        if rules.trials:
            # If the policy needs reviews, the examples run with permissions when the last reviewer approves.
            permitted = rules.status_for(identity, state.diff) == "published" and "review" not in policy.rules.needs
            checks = await self.checks.run_examples(identity, bundle, checks, permitted)
        elif bundle.digest in rules.passed:
            checks = with_examples(checks, [CheckedExample(example.name, "passed") for example in bundle.examples.read])
        visibility = state.visibility or rules.visibility
        expected = rules.status_for(identity, state.diff, is_unproven=bool(checks.waiting))
        asks_review = expected != "published" and not policy.is_default
        hashes = {file.path: file.sha256 for file in bundle.files}
        predicates = {
            "publication": publication_predicate(
                hashes, identity, made_by, visibility, digests_of(state.requires), asks_review=asks_review
            ),
            **self._provenance(identity, origin),
            **await self._results(policy, bundle, checks.findings, checks.examples),
        }
        about = (identity, publication.name, publication.version, bundle.digest)
        statements = await self._signing.attest(*about, predicates)
        situation_of = partial(self.passing.situation, identity=identity, name=publication.name, closure=state.requires)
        situation = await self._database.read(partial(situation_of, asks_review=asks_review))
        verdict = judge(policy, situation, evidence_of(statements))
        passed = await self.passing.passed(*about, verdict)
        inline = {file.sha256: file.content for file in bundle.files if is_inline(file.size)}

        def landing(connection: Connection, diff: PermissionsDiff) -> str:
            status = rules.status_for(identity, diff, is_unproven=bool(checks.waiting))
            if status != "published" or policy.is_default:
                return status
            is_same = situation.former_signer == read_former_signer(connection, publication.name, self._signing.keyid)
            return status if passed and is_same else "in_review"

        def insert(connection: Connection) -> NewVersion:
            created = insert_version(
                connection,
                bundle,
                identity,
                inline,
                quotas=quotas or self.quotas,
                landing=partial(landing, connection),
                visibility=rules.visibility,
                checks=checks,
                made_by=made_by,
                statements=(*statements, *passed),
                requires=state.requires,
            )
            if also is not None:
                also(connection, created)
            return created

        created = await self._store(bundle, insert)
        for lock in locks_of(bundle):
            self._environments.begin(lock)  # install the packages early, so that the first run waits less
        if created.status == "published":
            await self._events.after_publish(publication)
        waits = verdict.missing if created.status == "in_review" and not policy.is_default else ()
        warnings = (*bundle.warnings, *(f"needs {missing}" for missing in waits))
        return Published(created, warnings, checks.findings, checks.examples)

    async def check_skill(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str | SkillMd,
        files: Sequence[BundleFile],
        scan: ImportScan | None = None,
        *,
        submit: bool | None = None,
    ) -> CheckedSkill:
        """Run the checks of `create_skill` without publishing, and return the findings. Examples that need permissions
        do not run.

        Raise the errors of `create_skill`, except for findings and failed examples. Only the records of the runs of
        examples and cached locks are stored. If the version exists, its examples run again.
        """
        bundle, state = await self.checks.check(identity, manifest, skill_md, files, scan)
        publication = publication_of(bundle, identity)
        trials = not isinstance(skill_md, SkillMd)
        findings = await self.checks.findings(publication, bundle, state.scan, identity, trials=trials)
        policy = self.passing.policies.of(publication.name)
        rules = rules_under(self._rules._replace(submit=submit), policy)
        status = state.taken.status if state.taken else rules.status_for(identity, state.diff)
        # Nothing is published, so no run gets the permissions of a published version.
        tested = await self.checks.test_examples(identity, bundle)
        findings = (*findings, *as_found(tested.findings))
        if status == "published" and not state.taken and not policy.is_default:
            results = await self._results(policy, bundle, findings, tested.examples)
            predicates = {**self._provenance(identity, None), **results}
            situation_of = partial(self.passing.situation, identity=identity, name=publication.name)
            situation = await self._database.read(partial(situation_of, closure=state.requires, asks_review=False))
            verdict = judge(policy, situation, stated_evidence(identity, {"publication": {}, **predicates}))
            status = "in_review" if verdict.missing else status
        warning = await self._database.read(partial(index_name_warning, identity=identity, name=publication.name))
        return CheckedSkill(
            ok=not any(finding.refuses for finding in findings),
            name=publication.name,
            version=publication.version,
            digest=bundle.digest,
            status=status,
            warnings=(*bundle.warnings, *([warning] if warning else ())),
            findings=findings,
            examples=tested.examples,
            permissions_diff=await self._database.read(partial(seen_calls, identity=identity, diff=state.diff)),
            unchanged=state.taken is not None,
        )

    async def find_stored(
        self, identity: Identity, name: str, version: Version | None, files: Sequence[BundleFile]
    ) -> VersionRow | None:
        """Return the version if the identity sees it and it has the given files. Otherwise, return None.

        If `version` is None, compare the files with the latest version.
        """

        def look(connection: Connection) -> VersionRow | None:
            try:
                spec = Exact(version) if version is not None else Latest()
                row = resolve(connection, identity, name, spec, manages=True)
            except NotFound:
                return None
            return row if holds(connection, self._storage, row, files) else None

        return await asyncio.to_thread(self._database.read_now, look)

    async def _results(
        self, policy: Policy, bundle: Bundle, findings: Sequence[CheckFinding], examples: Sequence[CheckedExample]
    ) -> dict[str, Any]:
        """Return the predicates about the results of the checks, by word."""
        reads = bool(policy.rules.licences)
        licences = await licences_of(bundle, locks_of(bundle), self._environments) if reads else None
        tests = {"tests": tests_predicate(examples)} if examples else {}
        scan = scan_predicate(findings, self._signing.release, licences, self.checks.archive_date())
        return {"scan": scan, **tests}

    def _provenance(self, identity: Identity, origin: Origin | None) -> dict[str, Any]:
        """Return the predicate of a CI job or of an import, by its word."""
        if identity.provenance is not None:
            return {"provenance": ci_provenance(identity.provenance, self._signing.builder)}
        return {"provenance": import_provenance(origin, identity.name, self._signing.builder)} if origin else {}

    async def _store(self, bundle: Bundle, insert: Callable[[Connection], NewVersion]) -> NewVersion:
        """Store the large files of a bundle, then call `insert` in a transaction. After a crash, a file may be unused,
        but no version is without its files.
        """
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
