"""Secrets and secret grants: a skill gets a secret only if its manifest declares the secret and an admin has granted
it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, delete, insert, select

from skillery import audit
from skillery.audit import Actor
from skillery.backends import KeepsSecrets, Secrets
from skillery.database import Database, in_utc
from skillery.database.tables import secret_grants, skills
from skillery.errors import InvalidParams, NotFound
from skillery.formats.names import grantees_of


class Grant(msgspec.Struct, frozen=True):
    secret: str
    grantee: str
    """The name of a skill, or a namespace with `.*`."""
    granted_by: str
    granted_at: datetime


MOST_BYTES = 64 * 1024


def check_value(name: str, value: str) -> None:
    """Raise InvalidParams if the value is empty, too large, or cannot be an environment variable. The message never
    contains the value.
    """
    if not value or "\0" in value:
        raise InvalidParams(f"the value of '{name}' is {'empty' if not value else 'text that contains a NUL'}")
    if (size := len(value.encode())) > MOST_BYTES:
        raise InvalidParams(f"the value of '{name}' has {size} bytes, but at most {MOST_BYTES} are allowed")


def set_secret(database: Database, secrets: Secrets, actor: Actor, name: str, value: str) -> None:
    """Set the value of a secret. The audit entry records only whether the secret had a value before. Blocking."""
    if isinstance(secrets, KeepsSecrets):
        work = secrets.setting(name, value)
        database.write_now(lambda connection: _note_value(connection, actor, name, work(connection)))
        return
    # The audit entry comes first: a changed value without an entry is worse than an entry for a change that failed.
    had_value = name in secrets.names()
    database.write_now(lambda connection: _note_value(connection, actor, name, had_value))
    secrets.set(name, value)


def _note_value(connection: Connection, actor: Actor, name: str, had: bool) -> None:
    """Record in the audit trail that a value was set. `had` is whether the secret had a value before."""
    audit.record(connection, actor, "set_secret", name, before={"has_value": had}, after={"has_value": True})


def remove_secret(database: Database, secrets: Secrets, actor: Actor, name: str) -> tuple[bool, int]:
    """Remove the value of a secret and all its grants. Return whether it had a value, and the number of removed grants.

    Blocking. If values are set outside of this server, raise NotAllowed and keep the grants.
    """
    if isinstance(secrets, KeepsSecrets):
        work = secrets.removing(name)
        return database.write_now(lambda connection: _forget(connection, actor, name, work(connection)))
    if secrets.read_only:
        return secrets.remove(name), 0
    # The grants are removed first: if the command is interrupted, there must be no grant of a missing secret.
    had_value = name in secrets.names()
    _, revoked = database.write_now(lambda connection: _forget(connection, actor, name, had_value))
    return secrets.remove(name), revoked


def _forget(connection: Connection, actor: Actor, name: str, had: bool) -> tuple[bool, int]:
    """Delete all grants of a secret. Return `had`, and the number of deleted grants."""
    grantees = sorted(
        connection.scalars(select(secret_grants.c.grantee).where(secret_grants.c.secret == name).with_for_update())
    )
    connection.execute(delete(secret_grants).where(secret_grants.c.secret == name))
    if had or grantees:
        before = {"has_value": had, "granted_to": grantees}
        audit.record(connection, actor, "remove_secret", name, before=before)
    return had, len(grantees)


def grant(connection: Connection, actor: Actor, secret: str, grantee: str, granted_by: str) -> bool:
    """Grant a secret. Return False if the grant exists already."""
    table = secret_grants
    existing = select(table.c.secret).where(table.c.secret == secret, table.c.grantee == grantee)
    if connection.execute(existing).first() is not None:
        return False
    connection.execute(
        insert(table).values(secret=secret, grantee=grantee, granted_by=granted_by, granted_at=datetime.now(UTC))
    )
    audit.record(connection, actor, "grant_secret", secret, after={"granted_to": grantee})
    return True


def covers_a_skill(connection: Connection, grantee: str) -> bool:
    """Return whether the grantee, a skill name or a namespace such as `sales.*`, covers an existing skill."""
    prefix = grantee.removesuffix("*")
    name = skills.c.name
    is_covered = name.startswith(prefix, autoescape=True) if grantee.endswith(".*") else name == grantee
    return connection.execute(select(skills.c.id).where(is_covered).limit(1)).first() is not None


def revoke(connection: Connection, actor: Actor, secret: str, grantee: str) -> None:
    """Remove a grant. Raise NotFound if there is no such grant."""
    table = secret_grants
    deletion = connection.execute(delete(table).where(table.c.secret == secret, table.c.grantee == grantee))
    if not deletion.rowcount:
        raise NotFound(
            f"the secret '{secret}' is not granted to '{grantee}'", hint="skillery secret list shows every grant."
        )
    audit.record(connection, actor, "revoke_secret", secret, before={"granted_to": grantee})


def list_grants(connection: Connection) -> list[Grant]:
    table = secret_grants
    rows = connection.execute(select(table).order_by(table.c.secret, table.c.grantee))
    return [Grant(row.secret, row.grantee, row.granted_by, in_utc(row.granted_at)) for row in rows]


def granted(connection: Connection, skill: str, secrets: Collection[str]) -> set[str]:
    """Return the names in `secrets` that are granted to the skill, by its name or by a namespace above it."""
    table = secret_grants
    granted_names = select(table.c.secret).where(table.c.secret.in_(secrets), table.c.grantee.in_(grantees_of(skill)))
    return set(connection.scalars(granted_names))
