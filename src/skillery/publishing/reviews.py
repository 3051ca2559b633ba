"""The decisions of reviewers: approve_version and reject_version."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Annotated, Any

from msgspec import Meta
from sqlalchemy import Connection

from skillery.attestations.predicates import review_predicate, tests_predicate
from skillery.attestations.signing import SignedStatement, Signing, insert_attestations
from skillery.backends import Events, Identity
from skillery.database import Database
from skillery.errors import SkilleryError
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_sentence
from skillery.identity.access import ApprovalRules
from skillery.method import ExactVersion, Given, Method, Params, Sentence, SkillName, about
from skillery.publishing.bundle_checks import BundleChecks
from skillery.registry.version_rows import VersionRow
from skillery.versions.checks import checks_of
from skillery.versions.lifecycle import approve, find_approvable, find_rejectable, reject
from skillery.versions.new_versions import NewVersion

log = logging.getLogger(__name__)


class Reviews:
    """Stores the decisions of reviewers, each with a signed statement in the same transaction."""

    def __init__(
        self,
        database: Database,
        events: Events,
        checks: BundleChecks,
        approval: ApprovalRules,
        signing: Signing,
    ) -> None:
        self._database = database
        self._events = events
        self._checks = checks
        self._approval = approval
        self._signing = signing

    async def approve_version(
        self, identity: Identity, name: str, version: Version, digest: str | None, note: str
    ) -> NewVersion:
        """Approve a version, and call the `after_publish` hooks. Run the examples that wait for the approval first.

        `digest` is the digest that the reviewer approves, or None. Raise the errors of `lifecycle.approve`, Refused if
        an example fails, and Busy if the signer cannot be reached.
        """
        rules = self._approval
        find = partial(find_approvable, identity=identity, name=name, version=version, digest=digest, rules=rules)
        row = await self._database.read(find)
        stored_checks = checks_of(row.checks_json)
        checks = await self._checks.run_waiting_examples(identity, row) if stored_checks.waiting else None
        predicates = {"tests": tests_predicate(checks.examples)} if checks is not None else {}
        predicates["review"] = review_predicate(identity, "approved", note, stored_checks.permissions_diff)
        statements = await self._signed(identity, row, predicates)
        step = partial(
            approve,
            identity=identity,
            name=name,
            version=version,
            digest=row.digest,
            note=note,
            rules=rules,
            checks=checks,
        )
        approved = await self._database.write(partial(_decide, step=step, row=row, statements=statements))
        stored = partial(self._checks.stored_publication, identity=identity, name=name, version=version)
        try:
            publication = await asyncio.to_thread(self._database.read_now, stored)
        except SkilleryError:
            # The version stays published even if the storage fails now.
            log.exception("the after_publish hooks were not called for %s %s", name, approved.version)
        else:
            await self._events.after_publish(publication)
        return approved

    async def reject_version(self, identity: Identity, name: str, version: Version, reason: str) -> NewVersion:
        """Reject a version. Raise the errors of `lifecycle.reject`, and Busy if the signer cannot be reached."""
        row = await self._database.read(partial(find_rejectable, identity=identity, name=name, version=version))
        diff = checks_of(row.checks_json).permissions_diff
        statements = await self._signed(identity, row, {"review": review_predicate(identity, "rejected", reason, diff)})
        step = partial(reject, identity=identity, name=name, version=version, reason=reason)
        return await self._database.write(partial(_decide, step=step, row=row, statements=statements))

    async def _signed(
        self, identity: Identity, row: VersionRow, predicates: dict[str, Any]
    ) -> tuple[SignedStatement, ...]:
        return await self._signing.attest(identity, row.name, row.version, row.digest, predicates)


def _decide(connection: Connection, step: Any, row: VersionRow, statements: tuple[SignedStatement, ...]) -> NewVersion:
    """Take the step of a decision, and store the statements about it."""
    decided: NewVersion = step(connection)
    insert_attestations(connection, row.version_id, row.digest, statements)
    return decided


# -- approve_version ---------------------------------------------------------------------------------------------------


class ApproveVersion(Params, frozen=True, kw_only=True):
    """Publish a version that is in review."""

    name: SkillName
    version: ExactVersion
    digest: Annotated[Given, about("Digest of the reviewed bundle: an approval of another digest is refused")] = ""
    note: Annotated[Annotated[str, Meta(max_length=2000)], about("Recorded with the approval")] = ""


async def approve_version(reviews: Reviews, identity: Identity, params: ApproveVersion) -> NewVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    note = parse_sentence(params.note, "note") if params.note else ""
    return await reviews.approve_version(identity, name, version, params.digest or None, note)


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
