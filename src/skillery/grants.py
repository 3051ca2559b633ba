"""Which skill may have which secret: what its manifest declares counts only where an admin granted it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, delete, insert, select

from skillery.database import in_utc
from skillery.errors import NotFound
from skillery.formats.secret_names import grantees_of
from skillery.tables import secret_grants, skills


class Grant(msgspec.Struct, frozen=True):
    secret: str
    grantee: str
    """A skill's name, or a namespace and `.*`."""
    granted_by: str
    granted_at: datetime


def grant(connection: Connection, secret: str, grantee: str, granted_by: str) -> bool:
    """False where it had been granted before."""
    table = secret_grants
    there = select(table.c.secret).where(table.c.secret == secret, table.c.grantee == grantee)
    if connection.execute(there).first() is not None:
        return False
    connection.execute(
        insert(table).values(secret=secret, grantee=grantee, granted_by=granted_by, granted_at=datetime.now(UTC))
    )
    return True


def covers_a_skill(connection: Connection, grantee: str) -> bool:
    """Whether a skill of this name, or below this namespace, has been published."""
    prefix = grantee.removesuffix("*")
    name = skills.c.name
    there = name.startswith(prefix, autoescape=True) if grantee.endswith(".*") else name == grantee
    return connection.execute(select(skills.c.id).where(there).limit(1)).first() is not None


def revoke(connection: Connection, secret: str, grantee: str) -> None:
    """Raises NotFound where it had not been granted."""
    table = secret_grants
    gone = connection.execute(delete(table).where(table.c.secret == secret, table.c.grantee == grantee))
    if not gone.rowcount:
        raise NotFound(
            f"the secret '{secret}' is not granted to '{grantee}'", hint="skillery secret list shows every grant."
        )


def revoke_all(connection: Connection, secret: str) -> int:
    """Of a secret that is removed: a later one of the same name is another secret. How many there were."""
    return connection.execute(delete(secret_grants).where(secret_grants.c.secret == secret)).rowcount


def list_grants(connection: Connection) -> list[Grant]:
    table = secret_grants
    rows = connection.execute(select(table).order_by(table.c.secret, table.c.grantee))
    return [Grant(row.secret, row.grantee, row.granted_by, in_utc(row.granted_at)) for row in rows]


def granted(connection: Connection, skill: str, secrets: Collection[str]) -> set[str]:
    """Those of `secrets` that `skill` has by its name or by a namespace above it."""
    table = secret_grants
    wanted = select(table.c.secret).where(table.c.secret.in_(secrets), table.c.grantee.in_(grantees_of(skill)))
    return set(connection.scalars(wanted))
