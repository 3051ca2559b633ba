"""The decisions of reviewers: approve_version and reject_version. Old evaluations make versions wait again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Connection, Row, exists, select

from skillery import audit
from skillery.attestations.attestations import end_attestations
from skillery.attestations.evaluations import is_old, judge_evaluation
from skillery.attestations.evidence import MOST_AT_ONCE, WITH_VERSIONS, is_approval_old, read_evidence
from skillery.attestations.policies import Policies, Policy
from skillery.attestations.predicates import review_predicate, tests_predicate
from skillery.attestations.signing import SignedStatement, insert_attestations
from skillery.backends import Identity
from skillery.database import Database
from skillery.database.registry import lock_skill_row
from skillery.database.tables import RESOLVABLE, attestations, skill_versions, skills
from skillery.formats.check_results import PermissionsDiff
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_sentence
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.method import ExactVersion, Given, Method, Params, Sentence, SkillName, about
from skillery.publishing.bundle_checks import BundleChecks
from skillery.publishing.passing import Judged, Passing, policy_of, step_if_met
from skillery.registry.requires import seen_calls
from skillery.settings.versions import EvaluationRules
from skillery.versions.checks import Checks, checks_of, set_checks
from skillery.versions.lifecycle_steps import find_for_step, step_one
from skillery.versions.new_versions import NewVersion


class ApprovedVersion(NewVersion, frozen=True):
    """An approved version. `missing` says what the version still needs. It is absent if the version is published."""

    missing: tuple[str, ...] | UnsetType = UNSET


class Reviews:
    """Stores the decisions of reviewers, each with a signed statement in the same transaction."""

    def __init__(self, database: Database, checks: BundleChecks, passing: Passing) -> None:
        self._database = database
        self._checks = checks
        self._passing = passing

    async def approve_version(
        self, identity: Identity, name: str, version: Version, digest: str | None, note: str, accepts: str = ""
    ) -> ApprovedVersion:
        """Add an approval to a version. If the version meets its policy then, publish it, and call the `after_publish`
        hooks. Before the last approval, run the examples that wait for it.

        `digest` is the digest that the reviewer approves, or None. `accepts` is the id of an unclear evaluation. A
        repeated approval of a reviewer adds nothing, unless the approvals are old, or it accepts an evaluation.
        Raise NotAllowed, the errors of `step_one`, Refused if an example fails, and Busy if the signer cannot be
        reached.
        """
        rules = self._passing.policies.of(name).approval
        access.require_namespace(identity, "review", name)
        find = partial(
            find_for_step, identity=identity, name=name, version=version, step="approve", digest=digest, rules=rules
        )
        row = await self._database.read(find)
        judged = await self._database.read(
            partial(self._passing.read, identity=identity, name=name, spec=Exact(version))
        )
        is_old = await self._database.read(partial(is_approval_old, version_id=row.version_id))
        is_repeated = judged.is_approved_by(identity) and not is_old and not accepts
        statements, checks = await self._statements(identity, judged, note, accepts, is_repeated=is_repeated)

        def store(connection: Connection, *, meets: bool) -> NewVersion:
            if is_repeated:
                find(connection)
                stepped = step_if_met(connection, identity, name, version, meets=meets)
            else:
                # The approval counts for this digest. Without the last need, the version stays in review.
                stepped = step_one(
                    connection, identity, name, version, "approve",
                    note=note, digest=row.digest, rules=rules, stays=not meets,
                )  # fmt: skip
            if checks is not None:
                set_checks(connection, row.version_id, checks)
            return stepped

        approved, missing = await self._passing.settle(identity, name, version, statements, store)
        return ApprovedVersion(approved.name, approved.version, approved.digest, approved.status, missing or UNSET)

    async def _statements(
        self, identity: Identity, judged: Judged, note: str, accepts: str, *, is_repeated: bool
    ) -> tuple[tuple[SignedStatement, ...], Checks | None]:
        """Return the signed statements of an approval, and the results of checks that have changed, else None."""
        row, stored = judged.row, checks_of(judged.row.checks_json)
        diff = await self._shown(identity, stored)
        review = review_predicate(identity, "approved", note, diff, accepts)
        predicates: dict[str, Any] = {} if is_repeated else {"review": review}
        checks = None
        if stored.waiting and judged.is_reviewed_with(identity, predicates):
            checks = await self._checks.run_waiting_examples(identity, row)
            predicates = {"tests": tests_predicate(checks.examples), **predicates}
        if not predicates:
            return (), None
        return await self._passing.signing.attest(identity, row.name, row.version, row.digest, predicates), checks

    async def _shown(self, identity: Identity, checks: Checks) -> PermissionsDiff | None:
        """Return the permissions that the reviewer has seen as added or removed."""
        diff = checks.permissions_diff
        return await self._database.read(partial(seen_calls, identity=identity, diff=diff)) if diff else None

    async def reject_version(self, identity: Identity, name: str, version: Version, reason: str) -> NewVersion:
        """Reject a version that is in review. A rejected version can never be published. Raise NotAllowed, the errors
        of `step_one`, and Busy if the signer cannot be reached.
        """
        access.require_namespace(identity, "review", name)
        find = partial(find_for_step, identity=identity, name=name, version=version, step="reject")
        row = await self._database.read(find)
        review = review_predicate(identity, "rejected", reason, await self._shown(identity, checks_of(row.checks_json)))
        attest = self._passing.signing.attest
        statements = await attest(identity, row.name, row.version, row.digest, {"review": review})

        def decide(connection: Connection) -> NewVersion:
            rejected = step_one(connection, identity, name, version, "reject", note=reason)
            insert_attestations(connection, row.version_id, row.digest, statements)
            return rejected

        return await self._database.write(decide)


# -- Versions with an old evaluation -----------------------------------------------------------------------------------


async def end_old_passed(passing: Passing) -> None:
    """End the `passed` of published versions whose evaluation is older than their policy permits. They wait for a
    review again.
    """
    policies, keyid, after = passing.policies, passing.signing.keyid, 0
    while rows := await passing.database.read(partial(_with_old_evaluations, policies=policies, after=after)):
        for row in rows:
            policy = policies.of(row.name)
            # A version with a newer accepted evaluation is selected each time, and needs no write transaction.
            if await passing.database.read(partial(_ends_of, row=row, policy=policy, keyid=keyid)):
                await passing.database.write(partial(_end_passed, row=row, policy=policy, keyid=keyid))
        after = rows[-1].version_id


def _with_old_evaluations(connection: Connection, policies: Policies, after: int) -> Sequence[Row[int, str, str]]:
    """Return the next versions after an id that have passed, and have an evaluation older than some policy permits."""
    ages = [policy.rules.evaluation.max_age_days for policy in policies.named if policy.rules.evaluation]
    if not any(ages):
        return ()
    before = datetime.now(UTC) - timedelta(days=min(filter(None, ages)))
    passed = attestations.alias()
    is_of_version = passed.c.version_id == attestations.c.version_id, passed.c.predicate == "passed"
    columns = attestations.c.version_id, skills.c.name, skill_versions.c.version
    of_version = attestations.c.version_id > after, skill_versions.c.status.in_(RESOLVABLE)
    valid = (
        attestations.c.predicate == "evaluation",
        attestations.c.ended_at.is_(None),
        attestations.c.created_at < before,
    )
    rows = select(*columns).select_from(WITH_VERSIONS).where(*of_version, *valid)
    rows = rows.where(exists().where(*is_of_version, passed.c.ended_at.is_(None)))
    return connection.execute(rows.distinct().order_by(attestations.c.version_id).limit(MOST_AT_ONCE)).all()


def _ends_of(connection: Connection, row: Row[int, str, str], policy: Policy, keyid: str) -> list[tuple[str, str]]:
    """Return the ids of the `passed` of a version about an evaluation that is too old, each with the reason to end it.
    Return none if a newer evaluation is accepted. A `passed` of a policy that has changed since stays.
    """
    rules = policy.rules.evaluation or EvaluationRules()
    evidence = read_evidence(connection, row.version_id, keyid)
    old = {each.sha256 for each in evidence if each.word == "evaluation" and is_old(rules, each.at)}
    _, missing, _ = judge_evaluation(rules, evidence)
    ends = []
    for each in evidence if missing else ():
        inputs = {read["digest"]["sha256"] for read in each.predicate.get("inputAttestations", ())}
        if each.word == "passed" and policy_of(each) == policy.digest and inputs & old:
            ends.append((each.id, f"It needs {missing}."))
    return ends


def _end_passed(connection: Connection, row: Row[int, str, str], policy: Policy, keyid: str) -> None:
    lock_skill_row(connection, row.name)
    for passed, reason in _ends_of(connection, row, policy, keyid):
        end_attestations(connection, audit.SERVER, [passed], reason, datetime.now(UTC))
        after = {"name": row.name, "version": row.version, "reason": reason}
        audit.record(connection, audit.SERVER, "end_attestation", passed, after=after)


# -- approve_version ---------------------------------------------------------------------------------------------------


class ApproveVersion(Params, frozen=True, kw_only=True):
    """Approve a version that is in review. A version that meets its policy then is published."""

    name: SkillName
    version: ExactVersion
    digest: Annotated[Given, about("Digest of the reviewed bundle: an approval of another digest is refused")] = ""
    note: Annotated[Annotated[str, Meta(max_length=2000)], about("Recorded with the approval")] = ""
    accepts: Annotated[Given, about("Id of an unclear evaluation that the reviewer accepts")] = ""


async def approve_version(reviews: Reviews, identity: Identity, params: ApproveVersion) -> ApprovedVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    note = parse_sentence(params.note, "note") if params.note else ""
    return await reviews.approve_version(identity, name, version, params.digest or None, note, params.accepts)


# -- reject_version ----------------------------------------------------------------------------------------------------


class RejectVersion(Params, frozen=True, kw_only=True):
    """Reject a version that is in review."""

    name: SkillName
    version: ExactVersion
    reason: Annotated[Sentence, about("Reason for the author")]


async def reject_version(reviews: Reviews, identity: Identity, params: RejectVersion) -> NewVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    return await reviews.reject_version(identity, name, version, parse_sentence(params.reason, "reason"))


METHODS = (
    Method(approve_version, "review", audits="name"),
    Method(reject_version, "review", audits="name"),
)
