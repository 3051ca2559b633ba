"""revoke_token, revoke_identity, and `end_identities` of authenticators: end a token, or an identity with its tokens,
sessions and runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, or_, select, update

from skillery import audit
from skillery.audit import Actor
from skillery.backends import Authenticator, Identity, KeepsTokens
from skillery.database import Database
from skillery.database.registry import Registry
from skillery.database.tables import (
    RESOLVABLE,
    runs,
    signing_keys,
    skill_versions,
    skills,
    tokens,
    trust_rules,
    version_steps,
    web_sessions,
    webhooks,
    workspaces,
)
from skillery.errors import IdentityNotFound, InvalidParams
from skillery.formats.tokens import REMEMBERED_SECONDS
from skillery.formats.wording import quoted
from skillery.identity.authenticator_chain import by_name, revokers
from skillery.identity.tokens import Token, end_token
from skillery.identity.web_sessions import WebSessions
from skillery.method import Method, Params, about

SETTLED_SECONDS = REMEMBERED_SECONDS + 0.5
"""Time after which no server accepts a revoked identity: the caches have ended, and so have the calls that were
admitted just before.
"""
MOST_NAMED = 1000
"""The maximum length of each list of a report. Audit trail and listings have the rest."""
ListIdentity = Callable[[str, Connection], bool]
"""Adds an identity to the list of revoked identities. Returns False if it is already there."""


class LeftBehind(msgspec.Struct, frozen=True):
    """The data of a revoked identity that stays. Each list has at most 1,000 entries. Versions are `name@version`."""

    published: tuple[str, ...]
    """Published and deprecated versions, newest first."""
    approved: tuple[str, ...]
    """Versions that the identity approved, newest first."""
    in_review: tuple[str, ...]
    """Versions of the identity that wait for a review."""
    skills: tuple[str, ...]
    """Skills of which no other identity has published a version."""
    workspaces: tuple[str, ...]
    trust_rules: tuple[str, ...]
    """Rules that the identity added: CI jobs still publish by them."""
    webhooks: tuple[str, ...]
    """Webhooks that the identity added: they still get events."""
    tokens: tuple[str, ...]
    """Live tokens of other identities that the identity created."""


class RevokedIdentity(msgspec.Struct, frozen=True):
    """The report of `revoke_identity`: the ended tokens, sessions and runs, and the remaining data of the identity."""

    name: str
    tokens: tuple[str, ...]
    """Ids of the tokens that the call revoked."""
    sessions: int
    """Sessions of browsers that the call ended."""
    runs: tuple[str, ...]
    """Ids of the runs that the call cancelled."""
    keys: tuple[str, ...]
    """Keyids of its keys, which sign nothing from now on. Their statements stay valid."""
    listed: bool
    """Whether an authenticator now refuses the identity by its list, for example at an identity provider's login."""
    left: LeftBehind

    @property
    def has_changed(self) -> bool:
        return bool(self.tokens or self.sessions or self.runs or self.keys)


def end_identity(
    connection: Connection, actor: Actor, name: str, lists: Sequence[ListIdentity]
) -> tuple[RevokedIdentity, bool]:
    """End an identity in this transaction. Return the report, and whether the call has changed anything.

    Each function of `lists` adds the identity to the list of an authenticator that keeps revoked identities. After
    SETTLED_SECONDS, the caller calls `end_late`. Raise IdentityNotFound if `lists` is empty and the registry has no
    token, session, run or key of the identity.
    """
    if "\0" in name:
        raise InvalidParams(
            "the name contains a NUL character", hint="list_tokens shows the names of tokens.", param="name"
        )
    if not lists and not _is_known(connection, name):
        raise IdentityNotFound(
            f"no token, session or run has the identity {quoted(name)}",
            hint="list_tokens shows the names of tokens.",
            name=name,
        )
    newly_listed = [add_to_list(name, connection) for add_to_list in lists]
    report = _end(connection, actor, name, is_listed=bool(lists))
    changed = any(newly_listed) or report.has_changed
    if changed:
        _record(connection, actor, report)
    return report, changed


def end_late(connection: Connection, actor: Actor, report: RevokedIdentity) -> RevokedIdentity:
    """End the tokens, sessions and runs that have begun since `end_identity`. Return one report for both calls.

    A server that does not yet know the revocation still accepts the identity, which may create tokens in this time.
    """
    late_report = _end(connection, actor, report.name, is_listed=report.listed)
    if late_report.has_changed:
        _record(connection, actor, late_report)
    return msgspec.structs.replace(
        late_report,
        tokens=(*report.tokens, *late_report.tokens),
        sessions=report.sessions + late_report.sessions,
        runs=(*report.runs, *late_report.runs),
        keys=(*report.keys, *late_report.keys),
    )


def end_identities(names: Sequence[str], actor: Actor, database: Database) -> None:
    """End identities that an authenticator already refuses. Blocking: the function returns after SETTLED_SECONDS.

    Names without a token, session, run or key are ignored.
    """
    reports = []
    for name in names:
        with suppress(IdentityNotFound):
            reports.append(database.write_now(partial(end_identity, actor=actor, name=name, lists=()))[0])
    if reports:
        time.sleep(SETTLED_SECONDS)
    for report in reports:
        database.write_now(partial(end_late, actor=actor, report=report))


def _end(connection: Connection, actor: Actor, name: str, *, is_listed: bool) -> RevokedIdentity:
    """Revoke the live tokens, delete the sessions, cancel the runs and retire the keys of an identity. Return the
    report.
    """
    now = datetime.now(UTC)
    own_keys = signing_keys.c.added_by == name, signing_keys.c.holder == "identity"
    signs = signing_keys.c.retired_at.is_(None), signing_keys.c.revoked_at.is_(None)
    retired = update(signing_keys).where(*own_keys, *signs).values(retired_at=now).returning(signing_keys.c.keyid)
    ended = update(tokens).where(tokens.c.name == name, _is_live(now)).values(revoked_at=now).returning(tokens.c.id)
    return RevokedIdentity(
        name=name,
        tokens=tuple(sorted(connection.scalars(ended))),
        sessions=connection.execute(delete(web_sessions).where(web_sessions.c.identity == name)).rowcount,
        runs=_cancel_runs(connection, actor, name),
        keys=tuple(sorted(connection.scalars(retired))),
        listed=is_listed,
        left=_left_behind(connection, name, now),
    )


def _record(connection: Connection, actor: Actor, report: RevokedIdentity) -> None:
    after = {"tokens": report.tokens, "sessions": report.sessions, "runs": report.runs, "listed": report.listed}
    after |= {"keys": report.keys} if report.keys else {}
    audit.record(connection, actor, "revoke_identity", report.name, after=after)


def _cancel_runs(connection: Connection, actor: Actor, name: str) -> tuple[str, ...]:
    """Mark the runs of an identity as cancelled, and return their ids. The servers read the marks twice a second, and
    stop the runs.
    """
    running = runs.c.identity == name, runs.c.status == "started", runs.c.cancel_requested_at.is_(None)
    cancellation = update(runs).where(*running)
    marks = {"cancel_requested_at": datetime.now(UTC), "cancel_requested_by": actor.name}
    return tuple(sorted(connection.scalars(cancellation.values(marks).returning(runs.c.id))))


def _is_known(connection: Connection, name: str) -> bool:
    has_key = and_(signing_keys.c.added_by == name, signing_keys.c.holder == "identity")
    conditions = tokens.c.name == name, web_sessions.c.identity == name, runs.c.identity == name, has_key
    return any(connection.scalar(select(exists().where(condition))) for condition in conditions)


def _is_live(now: datetime) -> ColumnElement[bool]:
    return and_(tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now))


def _left_behind(connection: Connection, name: str, now: datetime) -> LeftBehind:
    """Read the versions, skills, workspaces, rules, webhooks and tokens that an identity has made."""
    columns, is_publisher = skill_versions.c, skill_versions.c.publisher == name
    versions = select(skills.c.name, columns.version).join_from(skill_versions, skills, skills.c.id == columns.skill_id)
    newest_first = versions.order_by(columns.id.desc())
    approvals = version_steps.c.step == "approve", version_steps.c.identity == name
    approved = columns.id.in_(select(version_steps.c.version_id).where(*approvals))
    has_other_publishers = exists().where(columns.skill_id == skills.c.id, columns.publisher != name)
    has_own_version = exists().where(columns.skill_id == skills.c.id, is_publisher)
    return LeftBehind(
        published=_names(connection, newest_first.where(is_publisher, columns.status.in_(RESOLVABLE))),
        approved=_names(connection, newest_first.where(approved)),
        in_review=_names(connection, newest_first.where(is_publisher, columns.status == "in_review")),
        skills=_names(
            connection, select(skills.c.name).where(has_own_version, ~has_other_publishers).order_by(skills.c.name)
        ),
        workspaces=_names(connection, select(workspaces.c.id).where(workspaces.c.identity == name)),
        trust_rules=_names(connection, select(trust_rules.c.id).where(trust_rules.c.created_by == name)),
        webhooks=_names(connection, select(webhooks.c.id).where(webhooks.c.created_by == name)),
        tokens=_names(connection, select(tokens.c.id).where(tokens.c.created_by == name, _is_live(now))),
    )


def _names(connection: Connection, statement: Select[Any]) -> tuple[str, ...]:
    return tuple("@".join(row) for row in connection.execute(statement.limit(MOST_NAMED)))


class Identities(NamedTuple):
    """The parts of the core that the methods for tokens and identities use."""

    registry: Registry
    authenticator: Authenticator
    sessions: WebSessions

    def forget(self) -> None:
        """Forget the admitted tokens and sessions, so that this server reads them from the database again."""
        if isinstance(self.authenticator, KeepsTokens):
            self.authenticator.forget()
        self.sessions.forget()


# -- revoke_token ------------------------------------------------------------------------------------------------------


class RevokeToken(Params, frozen=True, kw_only=True):
    """Revoke a token permanently."""

    id: Annotated[str, about("The token's id")]


async def revoke_token(identities: Identities, identity: Identity, params: RevokeToken) -> Token:
    revoked = await identities.registry.write(partial(end_token, actor=identity, token_id=params.id))
    identities.forget()
    return revoked


# -- revoke_identity ---------------------------------------------------------------------------------------------------


class RevokeIdentity(Params, frozen=True, kw_only=True):
    """End an identity: its tokens, sessions, runs and keys. Return its remaining data."""

    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=255)], about("Name of the identity, as list_tokens shows it")
    ]


async def revoke_identity(identities: Identities, identity: Identity, params: RevokeIdentity) -> RevokedIdentity:
    lists = [revoker.revoke for revoker in revokers(by_name(identities.authenticator, ("",)))]
    work = partial(end_identity, actor=identity, name=params.name, lists=lists)
    revoked, _ = await identities.registry.write(work)
    identities.forget()
    await asyncio.sleep(SETTLED_SECONDS)
    return await identities.registry.write(partial(end_late, actor=identity, report=revoked))


METHODS = (Method(revoke_token, "admin", audits="id"), Method(revoke_identity, "admin", audits="name"))
