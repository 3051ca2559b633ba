"""yank_version and unyank_version: each yank or purge has an advisory and a signed statement in its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeVar

from sqlalchemy import Connection, func, insert, select, update

from skillery.attestations.predicates import revocation_predicate
from skillery.attestations.signing import SignedStatement, Signing, insert_attestations
from skillery.backends import Identity
from skillery.database import Database, take_turns
from skillery.database.tables import advisories
from skillery.errors import Busy, NotAllowed
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_sentence
from skillery.identity import access
from skillery.method import ExactVersion, Method, Params, Sentence, SkillName, about
from skillery.registry.revocations import revocation_of
from skillery.registry.version_rows import Severity, VersionRow, yank_of
from skillery.versions.dependents import tell_dependents
from skillery.versions.lifecycle_steps import (
    STRICT,
    find_for_step,
    lock_skill,
    step_one,
)
from skillery.versions.new_versions import NewVersion

T = TypeVar("T")
Action = Literal["yank", "purge", "unyank"]
_MEMBERS = ("severity", "advisory", "fixed")
_ATTEMPTS = 20

# -- The rows of advisories --------------------------------------------------------------------------------------------


class Revocation(NamedTuple):
    """An advisory that a transaction stores or withdraws, with the signed statements about it."""

    row: VersionRow
    action: Action
    reason: str
    advisory: Mapping[str, str]
    """The _MEMBERS of the standing of a version. Empty: there is no advisory, as for automatic yanks."""
    statements: Sequence[SignedStatement] = ()


class Outdated(Exception):
    """Raised if another transaction has changed what was signed."""


def next_advisory(connection: Connection) -> str:
    """Return the id of the next advisory: SKILLERY-2026-0007."""
    year = f"SKILLERY-{datetime.now(UTC).year}-"
    used = select(func.count()).where(advisories.c.advisory.startswith(year, autoescape=True))
    return f"{year}{(connection.scalar(used) or 0) + 1:04d}"


def store_revocation(connection: Connection, revocation: Revocation) -> None:
    """Store or withdraw the advisory and its statements, in the transaction of the step. Raise Outdated if another
    transaction has used the id.
    """
    if not revocation.advisory:
        return
    take_turns(connection, "advisories", "")
    seq = (connection.scalar(select(func.max(advisories.c.seq))) or 0) + 1
    now, version_id, advisory = datetime.now(UTC), revocation.row.version_id, revocation.advisory["advisory"]
    if revocation.action != "unyank" and next_advisory(connection) != advisory:
        raise Outdated
    if revocation.action != "purge":
        # A yank withdraws the advisories with a lower severity. Each withdrawal has a number of the feed.
        present = advisories.c.version_id == version_id, advisories.c.withdrawn_at.is_(None)
        for former in connection.scalars(select(advisories.c.advisory).where(*present)).all():
            of_advisory = update(advisories).where(advisories.c.advisory == former)
            connection.execute(of_advisory.values(seq=seq, withdrawn_at=now))
            seq += 1
    if revocation.action != "unyank":
        values = {
            "seq": seq,
            "advisory": advisory,
            "version_id": version_id,
            "severity": revocation.advisory["severity"],
            "action": revocation.action,
            "reason": revocation.reason,
            "fixed": revocation.advisory.get("fixed"),
            "at": now,
        }
        connection.execute(insert(advisories).values(values))
    insert_attestations(connection, version_id, revocation.row.digest, revocation.statements)


# -- Steps with an advisory --------------------------------------------------------------------------------------------


class Revocations:
    """Makes and withdraws advisories. Each has a signed statement."""

    def __init__(self, database: Database, signing: Signing) -> None:
        self._database = database
        self._signing = signing
        self._turn = asyncio.Lock()

    async def yank_version(
        self, identity: Identity, name: str, version: Version, severity: Severity, reason: str, fixed: str
    ) -> NewVersion:
        """Yank a version, and store the advisory about it. If the version is yanked with a lower severity, the advisory
        replaces the former one. Raise the errors of `lifecycle.submit`, and Busy if the signer cannot be reached.
        """

        def prepare(connection: Connection) -> Revocation:
            advisory = new_advisory(connection, severity, fixed)
            row = find_for_step(connection, identity, name, version, "yank", advisory=advisory)
            return Revocation(row, "yank", reason, advisory)

        return await self._step(identity, name, version, prepare)

    async def unyank_version(self, identity: Identity, name: str, version: Version) -> NewVersion:
        """Undo a yank, and withdraw its advisory. Raise the errors of `yank_version`, and NotAllowed if only another
        reviewer may withdraw the advisory.
        """

        def prepare(connection: Connection) -> Revocation:
            row = find_for_step(connection, identity, name, version, "unyank")
            _check_withdrawal(identity, row)
            yank = yank_of(row.standing_json)
            return Revocation(row, "unyank", "", {key: yank[key] for key in _MEMBERS if key in yank})

        return await self._step(identity, name, version, prepare)

    async def _step(
        self, identity: Identity, name: str, version: Version, prepare: Callable[[Connection], Revocation]
    ) -> NewVersion:
        """Take the step of the revocation that `prepare` returns. Raise the errors of `prepare` and `revoke`."""
        access.require_namespace(identity, "publish", name)

        def store(connection: Connection, revocation: Revocation) -> NewVersion:
            lock_skill(connection, identity, name)
            if prepare(connection).advisory != revocation.advisory:
                raise Outdated
            note, advisory = revocation.reason, revocation.advisory
            stepped = step_one(connection, identity, name, version, revocation.action, note=note, advisory=advisory)
            if revocation.action == "yank":
                tell_dependents(connection, identity, revocation.row, "yanked", note)
            store_revocation(connection, revocation)
            return stepped

        return await self.revoke(
            identity, prepare, lambda revocation: self._database.write(partial(store, revocation=revocation))
        )

    async def revoke(
        self,
        identity: Identity,
        prepare: Callable[[Connection], Revocation],
        store: Callable[[Revocation], Awaitable[T]],
    ) -> T:
        """Return the result of `store` for the signed revocation that `prepare` returns. If another server has used the
        id of the advisory, do both again. Raise Busy if the signer cannot be reached.
        """
        async with self._turn:
            for _ in range(_ATTEMPTS):
                revocation = await self._database.read(prepare)
                row, facts = revocation.row, revocation.advisory
                # Signed before the transaction: a signer may be a service.
                predicate = revocation_predicate(identity, revocation.action, facts, revocation.reason)
                signed = {"revocation": predicate} if facts else {}
                statements = await self._signing.attest(identity, row.name, row.version, row.digest, signed)
                try:
                    return await store(revocation._replace(statements=statements))
                except Outdated:
                    continue
        raise Busy("too many versions are withdrawn at the same time", retry_after_ms=1000, hint="Try again.")


def new_advisory(connection: Connection, severity: Severity, fixed: str = "") -> dict[str, str]:
    """Return the members of a new advisory in the standing of a version."""
    return {"severity": severity, "advisory": next_advisory(connection), **({"fixed": fixed} if fixed else {})}


def _check_withdrawal(identity: Identity, row: VersionRow) -> None:
    """Raise NotAllowed unless the identity may withdraw the advisory about the version. A severe advisory is withdrawn
    like a version is approved: by another person than its publisher.
    """
    revocation = revocation_of(row)
    if revocation is None or access.is_admin(identity) or access.approves(identity, row.name, row.publisher, STRICT):
        return
    raise NotAllowed(
        f"'{identity.name}' cannot unyank '{row.name}' {row.version}: its advisory has the severity "
        f"'{revocation['severity']}'",
        hint="Ask an admin, or a person who may publish and review the skill and has not published this version.",
        name=row.name,
        version=row.version,
        advisory=revocation["advisory"],
    )


# -- yank_version ------------------------------------------------------------------------------------------------------


class YankVersion(Params, frozen=True, kw_only=True):
    """Withdraw a published version: only requests for exactly this version still resolve."""

    name: SkillName
    version: ExactVersion
    reason: Annotated[Sentence, about("Reason for callers who request exactly this version")]
    severity: Annotated[
        Severity,
        about("broken: it runs with a warning; security: only reviewers run it; malicious: models cannot even read it"),
    ] = "broken"
    fixed: Annotated[str, about("The version without the problem, for the advisory")] = ""


async def yank_version(revocations: Revocations, identity: Identity, params: YankVersion) -> NewVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    reason = parse_sentence(params.reason, "reason")
    fixed = str(Version.parse(params.fixed)) if params.fixed else ""
    return await revocations.yank_version(identity, name, version, params.severity, reason, fixed)


# -- unyank_version ----------------------------------------------------------------------------------------------------


class UnyankVersion(Params, frozen=True, kw_only=True):
    """Undo a yank, and withdraw its advisory."""

    name: SkillName
    version: ExactVersion


async def unyank_version(revocations: Revocations, identity: Identity, params: UnyankVersion) -> NewVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    return await revocations.unyank_version(identity, name, version)


METHODS = (
    Method(yank_version, "publish", audits="name"),
    Method(unyank_version, "publish", audits="name"),
)
