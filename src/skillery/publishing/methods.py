"""Methods that publish bundles, check them, serve them to their author as development versions, and check published
versions again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery import audit
from skillery.attestations.predicates import scan_predicate
from skillery.attestations.signing import SignedStatement, Signing, insert_attestations
from skillery.backends import Events, Finding, Identity
from skillery.database import Database
from skillery.database.registry import lock_skill_row
from skillery.errors import Conflict, IllegalStep, Unavailable
from skillery.formats.bundle import BundleFile
from skillery.formats.check_results import CheckFinding
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import plain_path
from skillery.formats.semver import Version
from skillery.formats.texts import decode_content
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.method import HIDDEN, ExactVersion, Method, Params, SkillName, about
from skillery.publishing.builtin_rules import NOT_READ, RULES
from skillery.publishing.bundle_checks import MOST_FINDINGS, BundleChecks, DevelopedSkill, Developer, KeptSkills
from skillery.publishing.example_runs import RULE as EXAMPLES
from skillery.publishing.file_findings import DEAD_REFERENCE, NOT_PORTABLE, NPM_INSTALL_SCRIPT
from skillery.publishing.gate import RULE as SCRIPTS
from skillery.publishing.import_check import RULE as IMPORT
from skillery.publishing.package_locks import INFERRED, LEFT_OUT, UNDECLARED
from skillery.publishing.publisher import CheckedSkill, CreatedSkill, Publisher
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow, record_findings
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.versions.checks import checks_of, set_checks
from skillery.versions.waivers import apply_waivers

SMALL_FILES = 64 * 1024
"""Characters of files that are decoded on the event loop: a switch to a thread takes longer."""
SkillNames = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(min_length=1, max_length=50)]


class SkillFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a new skill."""

    path: Annotated[str, about("Path within the skill directory (e.g., 'code/main.py')")]
    content: Annotated[str, about("Content of the file")]
    encoding: Annotated[Literal["utf-8", "base64"], about("How `content` is written", default="utf-8")] = "utf-8"
    executable: Annotated[bool, about("Whether the file keeps an executable mode", default=False)] = False


class BundleParams(Params, frozen=True, kw_only=True):
    """A bundle."""

    manifest: Annotated[
        dict[str, Any], about("skill.toml as JSON: name, version, description, and further declarations")
    ]
    skill_md: Annotated[str, about("SKILL.md: markdown for the LLM, with YAML frontmatter at the top")]
    files: Annotated[list[SkillFile], about("Code and resources of the skill")] = []


async def decoded_files(files: list[SkillFile]) -> list[BundleFile]:
    """Return the files with their contents. Raise InvalidPath, or InvalidParams for a content that is not base64."""
    if sum(len(file.content) for file in files) <= SMALL_FILES:
        return _decoded(files)
    return await asyncio.to_thread(_decoded, files)


def _decoded(files: list[SkillFile]) -> list[BundleFile]:
    return [
        BundleFile(plain_path(file.path), decode_content(file.content, file.encoding, file.path), file.executable)
        for file in files
    ]


# -- create_skill ------------------------------------------------------------------------------------------------------


class CreateSkill(BundleParams, frozen=True, kw_only=True):
    """Publish a new skill, or a new version of a skill. The whole bundle is checked before anything is stored."""

    submit: Annotated[
        bool | msgspec.UnsetType,
        HIDDEN,
        about("true: submit the version for review if it is not published at once; false: make it a draft"),
    ] = msgspec.UNSET


async def create_skill(publisher: Publisher, identity: Identity, params: CreateSkill) -> CreatedSkill:
    files = await decoded_files(params.files)
    submit = None if params.submit is msgspec.UNSET else params.submit
    return await publisher.create_skill(identity, params.manifest, params.skill_md, files, submit=submit)


# -- check_skill -------------------------------------------------------------------------------------------------------


class CheckSkill(CreateSkill, frozen=True, kw_only=True):
    """Run all checks of create_skill and the examples, without publishing anything."""


async def check_skill(publisher: Publisher, identity: Identity, params: CheckSkill) -> CheckedSkill:
    files = await decoded_files(params.files)
    submit = None if params.submit is msgspec.UNSET else params.submit
    return await publisher.check_skill(identity, params.manifest, params.skill_md, files, submit=submit)


# -- develop_skill -----------------------------------------------------------------------------------------------------


class DevelopSkill(BundleParams, frozen=True, kw_only=True):
    """Serve a bundle to the caller alone as a development version ('1.2.0-dev.3'), without publishing anything."""


async def develop_skill(developer: Developer, identity: Identity, params: DevelopSkill) -> DevelopedSkill:
    files = await decoded_files(params.files)
    return await developer.develop_skill(identity, params.manifest, params.skill_md, files)


# -- keep_development --------------------------------------------------------------------------------------------------


class KeepDevelopment(Params, frozen=True, kw_only=True):
    """Keep serving development versions, which end 30 seconds after the last call."""

    names: Annotated[SkillNames, about("Names of the skills")]


async def keep_development(developer: Developer, identity: Identity, params: KeepDevelopment) -> KeptSkills:
    return developer.keep(identity, params.names)


# -- end_development ---------------------------------------------------------------------------------------------------


class EndDevelopment(Params, frozen=True, kw_only=True):
    """Stop serving development versions."""

    names: Annotated[SkillNames, about("Names of the skills")]


async def end_development(developer: Developer, identity: Identity, params: EndDevelopment) -> KeptSkills:
    return developer.end(identity, params.names)


METHODS = (
    Method(create_skill, "publish", audits="manifest", once=True),
    Method(check_skill, "publish", audits=""),
    Method(develop_skill, "publish", audits=""),
    Method(keep_development, "publish", audits=""),
    Method(end_development, "publish", audits=""),
)


# -- recheck_version ---------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)
OWN_RULES = frozenset(
    {
        DEAD_REFERENCE,
        EXAMPLES,
        IMPORT,
        INFERRED,
        LEFT_OUT,
        NOT_PORTABLE,
        NPM_INSTALL_SCRIPT,
        SCRIPTS,
        UNDECLARED,
        NOT_READ,
        *RULES,
    }
)
"""Rules of the server itself. Their findings stay: a recheck runs no code and reads no index of packages."""
FAILED = "before_publish"
RECHECKED = (*WAS_PUBLISHED, "in_review", "draft")
"""The status of versions that the server itself checks again."""


class RecheckedVersion(msgspec.Struct, frozen=True):
    """The findings of a version after a recheck. `new` has the findings that the version did not have before."""

    name: str
    version: str
    status: str
    findings: tuple[CheckFinding, ...]
    new: tuple[CheckFinding, ...]


class Rechecks:
    """Checks published versions again."""

    def __init__(self, database: Database, checks: BundleChecks, events: Events, signing: Signing) -> None:
        self._database = database
        self._checks = checks
        self._events = events
        self._signing = signing

    @property
    def has_scanner(self) -> bool:
        """Whether a plugin checks versions, in addition to the checks of the server."""
        return self._events.has_scanner

    async def recheck_version(
        self, identity: Identity, name: str, version: Version, statuses: Collection[str] = WAS_PUBLISHED
    ) -> RecheckedVersion:
        """Call the `before_publish` hooks for a published version, and store their findings in place of earlier ones.

        The status of the version stays: a reviewer decides what a new finding means. Raise NotAllowed if the identity
        does not review the skill, IllegalStep if its status is not in `statuses`, and Unavailable if a check fails.
        """
        access.require_grant(identity, "review", name)  # findings of reserved skills may change
        find = partial(_find_version, identity=identity, name=name, version=version, statuses=statuses)
        await self._database.read(find)
        stored = partial(self._checks.stored_publication, identity=identity, name=name, version=version)
        publication = await asyncio.to_thread(self._database.read_now, stored)
        findings = await self._events.before_publish(publication)
        if any(finding.rule == FAILED for finding in findings):
            raise Unavailable(
                f"a check of '{name}' {version} failed; its findings are unchanged",
                hint="An admin finds the error in the log of the server.",
            )
        judge = partial(_judge, identity=identity, name=name, version=version, reported=findings)
        row, judged = await self._database.read(judge)
        predicates = {"scan": scan_predicate(judged, self._signing.release, archive=self._checks.archive_date())}
        statements = await self._signing.attest(identity, name, row.version, row.digest, predicates)
        work = partial(_store, judge=judge, identity=identity, name=name, expected=judged, statements=statements)
        rechecked = await self._database.write(work)
        if rechecked.new:
            rules = ", ".join(sorted({finding.rule for finding in rechecked.new}))
            log.warning("%s %s has %d new findings: %s", name, version, len(rechecked.new), rules)
        return rechecked


def _find_version(
    connection: Connection, identity: Identity, name: str, version: Version, statuses: Collection[str]
) -> None:
    row = resolve(connection, identity, name, Exact(version), manages=True)
    if row.unstored is not None or row.status not in statuses:
        raise IllegalStep(
            f"'{name}' {row.version} is {row.status}: only published versions are checked again",
            hint="Other versions are checked when they are published.",
        )


def _judge(
    connection: Connection, identity: Identity, name: str, version: Version, reported: Sequence[Finding]
) -> tuple[VersionRow, tuple[CheckFinding, ...]]:
    """Return the version, and its findings if those of plugins are `reported`."""
    row = resolve(connection, identity, name, Exact(version), manages=True)
    reported_findings = apply_waivers(connection, name, version, reported)
    places = {(finding.file, finding.line) for finding in reported}
    own_findings = tuple(
        finding
        for finding in checks_of(row.checks_json).findings
        # A finding of a plugin replaces that of a built-in rule, as when the version was published.
        if finding.rule in OWN_RULES and not (finding.rule in RULES and (finding.file, finding.line) in places)
    )
    in_order = sorted((*reported_findings, *own_findings), key=lambda finding: not finding.refuses)
    return row, tuple(in_order[:MOST_FINDINGS])


def _store(
    connection: Connection,
    judge: Callable[[Connection], tuple[VersionRow, tuple[CheckFinding, ...]]],
    identity: Identity,
    name: str,
    expected: tuple[CheckFinding, ...],
    statements: Sequence[SignedStatement],
) -> RecheckedVersion:
    """Store the findings of plugins in place of their earlier ones. Return the version's findings, and the new ones.

    Raise Conflict if the findings are not the `expected` ones, about which the `statements` are.
    """
    # The lock makes a purge of the version wait, or this function see it.
    lock_skill_row(connection, name)
    row, findings = judge(connection)
    if findings != expected:
        raise Conflict(f"the waivers of '{name}' have changed during the check", hint="Check the version again.")
    checks = checks_of(row.checks_json)
    insert_attestations(connection, row.version_id, row.digest, statements)
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


class RecheckVersion(Params, frozen=True, kw_only=True):
    """Check a published version again with the checks of today, and store the findings."""

    name: SkillName
    version: ExactVersion


async def recheck_version(rechecks: Rechecks, identity: Identity, params: RecheckVersion) -> RecheckedVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    return await rechecks.recheck_version(identity, name, version)


RECHECKS = (Method(recheck_version, "review", audits="name"),)
