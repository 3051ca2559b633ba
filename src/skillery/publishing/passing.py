"""Versions pass their policy: statements about a version, its judgement, and `passed`, which publishes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple, Protocol

import msgspec
from sqlalchemy import Connection

from skillery.attestations.attestations import end_attestations
from skillery.attestations.evidence import (
    Evidence,
    evidence_of,
    read_evidence,
    read_former_signer,
    stated_evidence,
    was_reviewed,
)
from skillery.attestations.origins import OriginStatements, read_origin
from skillery.attestations.policies import Need, Policies, Policy, Situation, Verdict, judge
from skillery.attestations.predicates import Predicate
from skillery.attestations.signing import SignedStatement, Signing, insert_attestations
from skillery.audit import Actor
from skillery.backends import Events, Identity, SigstoreVerifier
from skillery.database import Database
from skillery.database.registry import lock_skill_row
from skillery.errors import Conflict, SkilleryError
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, VersionSpec, parse_named
from skillery.method import Method, Params, SkillName, about
from skillery.publishing.bundle_checks import BundleChecks
from skillery.publishing.gate import Landing, PublishingRules
from skillery.registry.requires import Required, closure_of_row, sees_skills
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow
from skillery.versions.checks import checks_of
from skillery.versions.lifecycle_steps import is_reviewed_again, step_one
from skillery.versions.new_versions import NewVersion

log = logging.getLogger(__name__)
_TRIES = 5
WAITING = ("draft", "in_review", "rejected")
REGISTRY = "urn:skillery:registry"
"""The verifier in `passed` if the setting public_url is empty."""


class Judged(NamedTuple):
    """A stored version with its evidence."""

    row: VersionRow
    policy: Policy
    situation: Situation
    evidence: list[Evidence]

    def verdict(self, statements: Sequence[SignedStatement] = ()) -> Verdict:
        """Return the judgement of the version, with further statements about it."""
        return judge(self.policy, self.situation, [*self.evidence, *evidence_of(statements)])

    def is_approved_by(self, identity: Identity) -> bool:
        """Return whether the identity has approved the version, and the approval was not withdrawn."""
        return any(
            each.word == "review" and each.by == identity.name and not each.is_personal for each in self.evidence
        )

    def is_reviewed_with(self, identity: Identity, predicates: Mapping[str, Predicate]) -> bool:
        """Return whether `predicates` of the identity complete the approvals, even if signatures are missing."""
        more = stated_evidence(identity, predicates)
        verdict = judge(self.policy.without_keys(), self.situation, [*self.evidence, *more])
        return not any(need.missing for need in verdict.needs if need.need == "review")


def read_judged(
    connection: Connection, identity: Identity, name: str, spec: VersionSpec, policies: Policies, keyid: str
) -> Judged:
    """Return a version with its evidence. `keyid` is that of `read_evidence`. Raise the errors of `resolve`."""
    row = resolve(connection, identity, name, spec, manages=True)
    evidence = read_evidence(connection, row.version_id, keyid)
    policy = policies.of(name)
    checks, publications = checks_of(row.checks_json), [each for each in evidence if each.word == "publication"]
    if policy.is_default:
        asks_review = row.status in WAITING or was_reviewed(connection, row.version_id)
        policy = policies.of(name, asks_review=asks_review)
    else:
        diff = checks.permissions_diff
        asks_review = checks.waiting or any(each.predicate.get("asks_review") for each in publications)
        asks_review = asks_review or (diff is not None and diff.is_increase and diff.against is not None)
    closure = closure_of_row(connection, row) if policy.rules.requires == "same" else ()
    of_version = partial(read_situation, connection, identity, row.name, closure, policies, keyid, row.version_id)
    situation = of_version(asks_review=asks_review)
    return Judged(row, policy, situation._replace(publisher=row.publisher), evidence)


def read_situation(
    connection: Connection,
    identity: Identity,
    name: str,
    closure: Iterable[Required],
    policies: Policies,
    keyid: str,
    before: int | None = None,
    *,
    asks_review: bool,
) -> Situation:
    """Return the situation of a version that the identity publishes, and that requires the versions of `closure`. The
    version `before` and later ones do not count as former ones.
    """
    policy, sees = policies.of(name), sees_skills(connection, identity)
    former = "" if policy.is_default else read_former_signer(connection, name, keyid, before)
    unmet = list[str]()
    for _, row in closure if policy.rules.requires == "same" else ():
        verdict = judge(policy, Situation(row.publisher), read_evidence(connection, row.version_id, keyid))
        about = f"'{row.name}' {row.version} ({', '.join(verdict.missing)})"
        unmet += [about if sees(row) else "a skill that you may not see"] if verdict.missing else []
    return Situation(identity.name, asks_review, former, tuple(unmet))


class Store(Protocol):
    """Function that stores the step of a version. `meets` says whether the version meets its policy."""

    def __call__(self, connection: Connection, *, meets: bool) -> NewVersion: ...


class Passing:
    """Judges versions by their policies, and publishes the versions that pass."""

    def __init__(
        self,
        database: Database,
        events: Events,
        checks: BundleChecks,
        policies: Policies,
        signing: Signing,
        sigstore: SigstoreVerifier | None,
    ) -> None:
        self.policies = policies
        self.signing = signing
        self.read = partial(read_judged, policies=policies, keyid=signing.keyid)
        self.situation = partial(read_situation, policies=policies, keyid=signing.keyid)
        self.database = database
        self.sigstore = sigstore
        self._events = events
        self.checks = checks

    async def passed(self, by: Actor, name: str, version: str, digest: str, verdict: Verdict) -> list[SignedStatement]:
        """Return the signed `passed` of a version that meets its policy, else []. Raise Busy if the signer cannot be
        reached.
        """
        if verdict.missing or not self.signing.signs:
            return []
        predicates = {"passed": verdict.summary(name, version, self.signing.builder or REGISTRY)}
        return list(await self.signing.attest(by, name, version, digest, predicates))

    async def settle(
        self,
        identity: Identity,
        name: str,
        version: Version,
        statements: Sequence[SignedStatement],
        store: Store,
    ) -> tuple[NewVersion, tuple[str, ...]]:
        """Store statements about a version with a step. If the version then meets its policy, sign and store `passed`
        in the same transaction. Call the `after_publish` hooks if the version is published then. Return the version,
        and what it still needs.

        The signer may be a service, so it signs while no transaction is open. If the evidence has changed since the
        judgement, begin again. Raise the errors of `store`, and Busy if the signer cannot be reached.
        """
        read = partial(self.read, identity=identity, name=name, spec=Exact(version))
        for _ in range(_TRIES):
            judged = await self.database.read(read)
            verdict, row = judged.verdict(statements), judged.row
            missing = verdict.missing if self.signing.signs else ()
            passed = await self.passed(identity, row.name, row.version, row.digest, verdict)
            step = partial(store, meets=not missing)
            work = partial(_store, read=read, judged=judged, step=step, statements=(*statements, *passed))
            stepped = await self.database.write(work)
            if stepped is not None:
                if row.status != "published" and stepped.status == "published":
                    await self._published(identity, name, version)
                return stepped, missing
        raise Conflict(f"the evidence about '{name}' {version} changes all the time", hint="Try again later.")

    async def publish_if_passed(self, identity: Identity, name: str, version: Version) -> None:
        """Publish a version in review that meets its policy without another approval. If the `passed` of a published
        version has ended, sign another one when the version meets its policy.
        """
        judged = await self.database.read(partial(self.waiting, identity=identity, name=name, version=version))
        if judged is None or judged.verdict().missing or not self.signing.signs:
            return
        store = partial(step_if_met, identity=identity, name=name, version=version)
        await self.settle(identity, name, version, (), store)

    def waiting(self, connection: Connection, identity: Identity, name: str, version: Version) -> Judged | None:
        """Return a version that waits for `passed`, or None."""
        judged = self.read(connection, identity, name, Exact(version))
        # Of the policy `default`, only an approval publishes a version.
        is_in_review = judged.row.status == "in_review" and not judged.policy.is_default
        return judged if is_in_review or is_reviewed_again(connection, judged.row) else None

    async def _published(self, identity: Identity, name: str, version: Version) -> None:
        stored = partial(self.checks.stored_publication, identity=identity, name=name, version=version)
        try:
            publication = await asyncio.to_thread(self.database.read_now, stored)
        except SkilleryError:
            # The version stays published even if the storage fails now.
            log.exception("the after_publish hooks were not called for %s %s", name, version)
        else:
            await self._events.after_publish(publication)


def _store(
    connection: Connection,
    read: Callable[[Connection], Judged],
    judged: Judged,
    step: Callable[[Connection], NewVersion],
    statements: Sequence[SignedStatement],
) -> NewVersion | None:
    """Store statements about a version with a step, or return None if the version is not as it was judged."""
    lock_skill_row(connection, judged.row.name)
    present = read(connection)
    if (present.row.status, *present[1:]) != (judged.row.status, *judged[1:]):
        return None
    stepped = step(connection)
    if statements and statements[-1].word == "passed":
        former = [each.id for each in judged.evidence if each.word == "passed"]
        end_attestations(connection, statements[-1].by, former, "It has passed its policy again.", datetime.now(UTC))
    insert_attestations(connection, present.row.version_id, present.row.digest, statements)
    return stepped


def step_if_met(connection: Connection, identity: Identity, name: str, version: Version, *, meets: bool) -> NewVersion:
    """Publish a version in review if it meets its policy. Return the version."""
    row = resolve(connection, identity, name, Exact(version), manages=True)
    if meets and row.status == "in_review":
        return step_one(connection, identity, name, version, "publish")
    return NewVersion(name, row.version, row.digest, row.status)


def policy_of(passed: Evidence) -> str:
    """Return the digest of the policy of a `passed`."""
    return f"sha256:{passed.predicate.get('policy', {}).get('digest', {}).get('sha256')}"


def rules_under(rules: PublishingRules, policy: Policy) -> PublishingRules:
    """Return the rules for the skills of a policy. More permissions wait for a review under each policy."""
    if policy.is_default:
        return rules
    increases: Landing = "review" if rules.increases != "publish" else "publish"
    first: Landing = "review" if rules.first_permissions != "publish" else "publish"
    return rules._replace(people=rules.reviewed, agents=rules.reviewed, increases=increases, first_permissions=first)


# -- explain_policy ----------------------------------------------------------------------------------------------------


class NeedEvidence(msgspec.Struct, frozen=True):
    """An attestation that meets a need. `own_key`: the identity has signed it, not the registry."""

    id: str
    predicate: str
    by: str
    kind: str
    at: datetime | None
    own_key: bool
    summary: str


class ExplainedNeed(msgspec.Struct, frozen=True):
    """A need of a policy. `missing` says what is missing, and `hint` how to get it; "" if the need is met."""

    need: str
    ok: bool
    evidence: tuple[NeedEvidence, ...]
    missing: str
    hint: str


class ExplainedPolicy(msgspec.Struct, frozen=True):
    """The policy that counts for a version, its digest and its needs."""

    name: str
    version: str
    status: str
    policy: str
    digest: str
    passed: bool
    """Whether the registry has signed that the version meets this policy."""
    needs: tuple[ExplainedNeed, ...]
    signer: str
    """The author or the CI job of the version, "" if there is neither."""
    former_signer: str
    """The signer of the latest published version, if it is another one."""
    is_same_signer: bool
    """Whether the latest published version has the same signer."""
    waiting: bool
    """Whether a reviewer may decide about the version."""
    vulnerabilities: str
    """The known vulnerabilities of its packages in words, "" if no scan has looked for them."""
    origin: OriginStatements | None


class ExplainPolicy(Params, frozen=True, kw_only=True):
    """Show which policy counts for a version, and what the version still needs."""

    name: SkillName
    version: Annotated[str, about("Version spec (omit for latest)")] = ""


async def explain_policy(passing: Passing, identity: Identity, params: ExplainPolicy) -> ExplainedPolicy:
    name, spec = parse_named(params.name, params.version)
    read = partial(passing.read, identity=identity, name=name, spec=spec)
    return await asyncio.to_thread(
        passing.database.read_now, lambda connection: explained(connection, read(connection))
    )


def explained(connection: Connection, judged: Judged) -> ExplainedPolicy:
    """Return the result of explain_policy for a version. Verifies signatures, so call it in a thread."""
    row, verdict = judged.row, judged.verdict()
    return ExplainedPolicy(
        row.name,
        row.version,
        row.status,
        verdict.policy.name,
        verdict.policy.digest,
        verdict.policy.digest in {policy_of(each) for each in judged.evidence if each.word == "passed"},
        tuple(map(_need, verdict.needs)),
        verdict.signer,
        judged.situation.former_signer if verdict.is_signer_new else "",
        judged.situation.former_signer == verdict.signer != "",
        row.status == "in_review" or is_reviewed_again(connection, row),
        next((each.vulnerabilities for each in reversed(judged.evidence) if each.word == "scan"), ""),
        read_origin(connection, row.version_id),
    )


def _need(need: Need) -> ExplainedNeed:
    evidence = tuple(
        NeedEvidence(each.id, each.word, each.by, each.kind, each.at, each.is_personal, each.summary)
        for each in need.evidence
    )
    return ExplainedNeed(need.need, not need.missing, evidence, need.missing, need.hint)


METHODS = (Method(explain_policy, "read", audits=""),)
