"""recheck_version: check a published version again with the present plugins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection, select

from skillery import audit
from skillery.backends import Events, Finding, Identity
from skillery.database import Database
from skillery.database.tables import skills
from skillery.errors import IllegalStep, Unavailable
from skillery.formats.check_results import CheckFinding
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.method import ExactVersion, Method, Params, SkillName
from skillery.publishing.bundle_checks import MOST_FINDINGS, BundleChecks
from skillery.publishing.example_runs import RULE as EXAMPLES
from skillery.publishing.file_findings import DEAD_REFERENCE, NOT_PORTABLE
from skillery.publishing.gate import RULE as SCRIPTS
from skillery.publishing.import_check import RULE as IMPORT
from skillery.publishing.package_locks import INFERRED, LEFT_OUT, UNDECLARED
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import record_findings
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.versions.checks import checks_of, set_checks
from skillery.versions.waivers import apply_waivers

log = logging.getLogger(__name__)
OWN_RULES = frozenset({DEAD_REFERENCE, EXAMPLES, IMPORT, INFERRED, LEFT_OUT, NOT_PORTABLE, SCRIPTS, UNDECLARED})
"""Rules of the server itself. Their findings stay: a recheck runs no code and reads no index of packages."""
FAILED = "before_publish"


class RecheckedVersion(msgspec.Struct, frozen=True):
    """The findings of a version after a recheck. `new` has the findings that the version did not have before."""

    name: str
    version: str
    status: str
    findings: tuple[CheckFinding, ...]
    new: tuple[CheckFinding, ...]


class Rechecks:
    """Checks published versions again."""

    def __init__(self, database: Database, checks: BundleChecks, events: Events) -> None:
        self._database = database
        self._checks = checks
        self._events = events

    async def recheck_version(self, identity: Identity, name: str, version: Version) -> RecheckedVersion:
        """Call the `before_publish` hooks for a published version, and store their findings in place of earlier ones.

        The status of the version stays: a reviewer decides what a new finding means. Raise NotAllowed if the identity
        does not review the skill, IllegalStep if the version was never published, and Unavailable if a check fails.
        """
        access.require_grant(identity, "review", name)  # findings of reserved skills may change
        find = partial(_find_published, identity=identity, name=name, version=version)
        await self._database.read(find)
        stored = partial(self._checks.stored_publication, identity=identity, name=name, version=version)
        publication = await asyncio.to_thread(self._database.read_now, stored)
        findings = await self._events.before_publish(publication)
        if any(finding.rule == FAILED for finding in findings):
            raise Unavailable(
                f"a check of '{name}' {version} failed; its findings are unchanged",
                hint="An admin finds the error in the log of the server.",
            )
        work = partial(_store, identity=identity, name=name, version=version, reported=findings)
        rechecked = await self._database.write(work)
        if rechecked.new:
            rules = ", ".join(sorted({finding.rule for finding in rechecked.new}))
            log.warning("%s %s has %d new findings: %s", name, version, len(rechecked.new), rules)
        return rechecked


def _find_published(connection: Connection, identity: Identity, name: str, version: Version) -> None:
    row = resolve(connection, identity, name, Exact(version), manages=True)
    if row.unstored is not None or row.status not in WAS_PUBLISHED:
        raise IllegalStep(
            f"'{name}' {row.version} is {row.status}: only published versions are checked again",
            hint="Other versions are checked when they are published.",
        )


def _store(
    connection: Connection, identity: Identity, name: str, version: Version, reported: Sequence[Finding]
) -> RecheckedVersion:
    """Store the findings of plugins in place of their earlier ones. Return the version's findings, and the new ones."""
    # The lock makes a purge of the version wait, or this function see it.
    connection.execute(select(skills.c.id).where(skills.c.name == name).with_for_update())
    row = resolve(connection, identity, name, Exact(version), manages=True)
    checks = checks_of(row.checks_json)
    reported_findings = apply_waivers(connection, name, version, reported)
    own_findings = tuple(finding for finding in checks.findings if finding.rule in OWN_RULES)
    findings = tuple(sorted((*reported_findings, *own_findings), key=lambda finding: not finding.refuses))[
        :MOST_FINDINGS
    ]
    earlier_places = {_place(finding) for finding in checks.findings}
    new = tuple(finding for finding in findings if _place(finding) not in earlier_places)
    if new:
        event_data = {"by": identity.name, "by_kind": identity.kind, "digest": row.digest, "publisher": row.publisher}
        record_findings(connection, name, new, version=row.version, status=row.status, **event_data)
    if set(map(msgspec.json.encode, findings)) != set(map(msgspec.json.encode, checks.findings)):
        set_checks(connection, row.version_id, msgspec.structs.replace(checks, findings=findings))
        before, after = {"findings": len(checks.findings)}, {"findings": len(findings), "new": _rules(new)}
        audit.record(connection, identity, "recheck_version", f"{name}@{row.version}", before=before, after=after)
    return RecheckedVersion(name, row.version, row.status, findings, new)


def _place(finding: CheckFinding) -> tuple[str, str | None, int | None]:
    return finding.rule, finding.file, finding.line


def _rules(findings: Sequence[CheckFinding]) -> list[str]:
    return sorted({finding.rule for finding in findings})


# -- recheck_version ---------------------------------------------------------------------------------------------------


class RecheckVersion(Params, frozen=True, kw_only=True):
    """Check a published version again with the checks of today, and store the findings."""

    name: SkillName
    version: ExactVersion


async def recheck_version(rechecks: Rechecks, identity: Identity, params: RecheckVersion) -> RecheckedVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    return await rechecks.recheck_version(identity, name, version)


METHODS = (Method(recheck_version, "review", audits="name"),)
