"""Waivers: permissions of reviewers to publish a skill in spite of findings of `before_publish` plugins.

Each waiver has an author and a reason, and may have an end.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, true, update

from skillery import audit
from skillery.backends import Finding, Identity
from skillery.database import is_past
from skillery.database.registry import Registry
from skillery.database.tables import waivers
from skillery.errors import InvalidParams, WaiverNotFound
from skillery.formats.check_results import CheckFinding, WaiverNote
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import parse_path
from skillery.formats.semver import Version
from skillery.formats.texts import parse_id, parse_sentence
from skillery.formats.timestamps import parse_until, timestamp_text
from skillery.identity import access
from skillery.method import Cursor, Given, Method, PageLimit, Params, Sentence, SkillName, about
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor

BUILT_IN_RULES = {
    "examples": "examples have to pass; fix the skill or the example",
    "before_publish": "it means that a check failed to run; an admin has to fix the check",
}
"""Rules whose findings cannot be waived, with the reason."""


class Waiver(msgspec.Struct, frozen=True):
    """A waiver for findings of `rule`. `file` or `version` None: the waiver covers every file or every version."""

    id: str
    name: str
    rule: str
    file: str | None
    version: str | None
    reason: str
    status: Literal["live", "expired", "revoked"]
    by: str
    kind: str
    at: str
    until: str | None
    revoked_by: str | None
    revoked_at: str | None


class WaiverPage(msgspec.Struct, frozen=True):
    """A page of waivers, newest first."""

    waivers: Sequence[Waiver]
    next_cursor: NextCursor


def insert_waiver(
    connection: Connection,
    identity: Identity,
    *,
    name: str,
    rule: str,
    reason: str,
    until: datetime | None,
    file: str | None,
    version: Version | None,
) -> Waiver:
    """Insert a waiver, and return it. The skill need not exist, because a finding may refuse its first version.

    Raise NotAllowed if the identity may not review the skill, and InvalidParams if findings of the rule cannot be
    waived.
    """
    access.require_namespace(identity, "review", name)
    if rule in BUILT_IN_RULES:
        raise InvalidParams(f"findings of '{rule}' cannot be waived", hint=f"{BUILT_IN_RULES[rule]}.", param="rule")
    values = {
        "waiver": f"waiver_{secrets.token_hex(8)}",
        "name": name,
        "rule": rule,
        "file": file,
        "version": str(version) if version else None,
        "reason": reason,
        "identity": identity.name,
        "identity_kind": identity.kind,
        "created_at": datetime.now(UTC),
        "until": until,
    }
    connection.execute(insert(waivers).values(**values))
    waiver = _find(connection, identity, str(values["waiver"]))
    logged_fields = ("id", "rule", "file", "version", "reason", "until")
    after = {key: value for key in logged_fields if (value := getattr(waiver, key)) is not None}
    audit.record(connection, identity, "waive_finding", name, after=after)
    return waiver


def end_waiver(connection: Connection, identity: Identity, waiver_id: str) -> Waiver:
    """Revoke a waiver, and return it. A second call changes nothing.

    Versions that were published under the waiver stay published. Raise WaiverNotFound if there is no such waiver, or if
    the identity may not review the skill.
    """
    waiver = _find(connection, identity, waiver_id)
    if waiver.revoked_at is None:
        live = and_(waivers.c.waiver == waiver.id, waivers.c.revoked_at.is_(None))
        values = {"revoked_at": datetime.now(UTC), "revoked_by": identity.name}
        connection.execute(update(waivers).where(live).values(**values))
        before, after = {"name": waiver.name, "rule": waiver.rule, "status": waiver.status}, {"status": "revoked"}
        audit.record(connection, identity, "revoke_waiver", waiver.id, before=before, after=after)
    return _find(connection, identity, waiver_id)


def read_waivers(
    connection: Connection, identity: Identity, key: bytes, *, name: str, limit: int, cursor: str
) -> WaiverPage:
    """Return a page of the waivers for names that the identity may review, newest first.

    A `name` of "" selects all these names. `key` signs the cursors. Raise NotAllowed if the identity has no review
    scope, and InvalidCursor if the cursor belongs to another listing.
    """
    access.require(identity, "review")
    bound_to = ("list_waivers", identity.name, name)
    where = [_reviewed(identity)]
    if name:
        where.append(waivers.c.name == name)
    if cursor:
        where.append(waivers.c.id < int(read_cursor(key, bound_to, cursor, 1)[0]))
    rows = connection.execute(select(waivers).where(*where).order_by(waivers.c.id.desc()).limit(limit + 1)).all()
    now = datetime.now(UTC)
    page = fitting_items([_waiver(row, now) for row in rows[:limit]])
    next_cursor = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    return WaiverPage(page, next_cursor)


def apply_waivers(
    connection: Connection, name: str, version: Version, findings: Sequence[Finding]
) -> tuple[CheckFinding, ...]:
    """Return the findings of a version. An error gets the live waiver that covers it, if there is one."""
    if not any(finding.severity == "error" for finding in findings):
        return tuple(
            CheckFinding(finding.rule, finding.message, finding.severity, finding.file, finding.line)
            for finding in findings
        )
    now = datetime.now(UTC)
    live = [
        waiver
        for row in connection.execute(
            select(waivers).where(waivers.c.name == name, waivers.c.revoked_at.is_(None)).order_by(waivers.c.id.desc())
        )
        if (waiver := _waiver(row, now)).status == "live"
    ]
    return tuple(
        CheckFinding(
            finding.rule,
            finding.message,
            finding.severity,
            finding.file,
            finding.line,
            _note(_waiver_of(finding, version, live)),
        )
        for finding in findings
    )


def _waiver_of(finding: Finding, version: Version, live: Sequence[Waiver]) -> Waiver | None:
    """Return the newest live waiver that covers the finding, or None."""
    if finding.severity != "error" or finding.rule in BUILT_IN_RULES:
        return None
    for waiver in live:
        same_version = waiver.version is None or Version.parse(waiver.version).precedence == version.precedence
        if waiver.rule == finding.rule and waiver.file in (None, finding.file) and same_version:
            return waiver
    return None


def _note(waiver: Waiver | None) -> WaiverNote | None:
    if waiver is None:
        return None
    return WaiverNote(waiver.id, waiver.by, waiver.kind, waiver.at, waiver.reason, waiver.until)


def _find(connection: Connection, identity: Identity, waiver_id: str) -> Waiver:
    """Return a waiver. Raise WaiverNotFound if there is none, or if the identity may not review its skill."""
    row = connection.execute(select(waivers).where(waivers.c.waiver == waiver_id)).one_or_none()
    if row is None or not access.reviews(identity, row.name):
        raise WaiverNotFound(f"there is no waiver '{waiver_id[:80]}'", hint="list_waivers shows all waivers.")
    return _waiver(row, datetime.now(UTC))


def _reviewed(identity: Identity) -> ColumnElement[bool]:
    """Return the SQL condition for waivers of skills that the identity may review, like `access.reviews` in Python."""
    if access.is_admin(identity) or not identity.namespaces or "*" in identity.namespaces:
        return true()
    # "/" follows "." in the order of bytes.
    below = [grant[:-2] for grant in identity.namespaces if grant.endswith(".*")]
    return or_(
        waivers.c.name.in_(identity.namespaces),
        *(and_(waivers.c.name >= f"{prefix}.", waivers.c.name < f"{prefix}/") for prefix in below),
    )


def _waiver(row: Any, now: datetime) -> Waiver:
    """Return the waiver in a row, with its status at the time `now`."""
    return Waiver(
        id=row.waiver,
        name=row.name,
        rule=row.rule,
        file=row.file,
        version=row.version,
        reason=row.reason,
        status="revoked" if row.revoked_at else "expired" if is_past(row.until, now) else "live",
        by=row.identity,
        kind=row.identity_kind,
        at=timestamp_text(row.created_at) or "",
        until=timestamp_text(row.until),
        revoked_by=row.revoked_by,
        revoked_at=timestamp_text(row.revoked_at),
    )


# -- waive_finding -----------------------------------------------------------------------------------------------------


class WaiveFinding(Params, frozen=True, kw_only=True):
    """Allow versions of a skill to be published in spite of a finding."""

    name: SkillName
    rule: Annotated[Annotated[str, Meta(min_length=1, max_length=255)], about("The finding's rule")]
    reason: Annotated[Sentence, about("Reason, for all readers of the skill")]
    until: Annotated[Given, about("End of the waiver: '2027-01-31', a time, or '90d'; omit for no end")] = ""
    file: Annotated[Annotated[str, Meta(min_length=1, max_length=255)], about("Only findings in this file")] = ""
    version: Annotated[Given, about("Only this exact version")] = ""


async def waive_finding(registry: Registry, identity: Identity, params: WaiveFinding) -> Waiver:
    work = partial(
        insert_waiver,
        identity=identity,
        name=parse_skill_name(params.name),
        rule=parse_sentence(params.rule, "rule"),
        reason=parse_sentence(params.reason, "reason"),
        until=parse_until(params.until, datetime.now(UTC)),
        file=parse_path(params.file) if params.file else None,
        version=Version.parse(params.version) if params.version else None,
    )
    return await registry.write(work)


# -- list_waivers ------------------------------------------------------------------------------------------------------


class ListWaivers(Params, frozen=True, kw_only=True):
    """List the waivers of the skills that the caller reviews, newest first."""

    name: Annotated[str, about("Only waivers of this skill")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_waivers(registry: Registry, identity: Identity, params: ListWaivers) -> WaiverPage:
    name = parse_skill_name(params.name) if params.name else ""
    key, limit, cursor = registry.cursor_key, params.limit, params.cursor
    work = partial(read_waivers, identity=identity, key=key, name=name, limit=limit, cursor=cursor)
    return await registry.read(work)


# -- revoke_waiver -----------------------------------------------------------------------------------------------------


class RevokeWaiver(Params, frozen=True, kw_only=True):
    """Revoke a waiver. Versions that were published under it stay."""

    id: Annotated[str, about("The waiver's id")]


async def revoke_waiver(registry: Registry, identity: Identity, params: RevokeWaiver) -> Waiver:
    return await registry.write(partial(end_waiver, identity=identity, waiver_id=parse_id(params.id)))


METHODS = (
    Method(waive_finding, "review", audits="name"),
    Method(list_waivers, "review", audits=""),
    Method(revoke_waiver, "review", audits="id"),
)
