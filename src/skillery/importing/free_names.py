"""Names of imported skills: free names for a source, and the holders of taken names."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, literal_column, not_, select

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import import_aliases, skills
from skillery.formats.names import MAX_LENGTH
from skillery.formats.wording import quoted
from skillery.registry.visibility import sees_skill

_SKILL = Statement(select(skills.c.id, skills.c.visibility).where(skills.c.name == bindparam("name")))
_OWNERS = Statement(
    select(import_aliases.c.source)
    .where(import_aliases.c.name == bindparam("name"), import_aliases.c.owns)
    .order_by(import_aliases.c.imported_at)
)
# The same path of the same source in another namespace is the same skill: for example, a skill that states `team.pdf`,
# imported with the namespace `team` and without.
_OTHERS = Statement(
    select(literal_column("1"))
    .where(import_aliases.c.name == bindparam("name"), import_aliases.c.owns)
    .where(
        not_(and_(import_aliases.c.source == bindparam("source"), import_aliases.c.path == bindparam("path"))),
        not_(and_(import_aliases.c.source == bindparam("source"), import_aliases.c.path == bindparam("path_before"))),
    )
    .limit(literal_column("1"))
)


class Alias(NamedTuple):
    """The key of an imported skill."""

    namespace: str
    source: str
    path: str


def is_of_another(connection: Connection, source: str, name: str, path: str, path_before: str) -> bool:
    """Return whether the skill `name` belongs to another source, or to another path of this source.

    `path_before` is the path of the skill before the skill moved to `path`. If the skill did not move, both are equal.
    """
    return bool(_OTHERS.rows(connection, name=name, source=source, path=path, path_before=path_before))


def is_free(connection: Connection, alias: Alias, name: str, *, may_continue: bool) -> bool:
    """Return whether the imported skill of this alias may have the name.

    A skill without an owner was published by hand. With `may_continue`, the import may publish the next version of that
    skill.
    """
    if _OWNERS.rows(connection, name=name):
        return not is_of_another(connection, alias.source, name, alias.path, alias.path)
    return may_continue or not _SKILL.rows(connection, name=name)


def free_name(
    connection: Connection, alias: Alias, wanted: str, is_claimed: Callable[[str], bool], *, may_continue: bool
) -> str:
    """Return `wanted` if that name is free, else `wanted` with the lowest numeric suffix that gives a free name.

    `is_claimed` returns whether another skill of the same import will get a name.
    """
    name, number = wanted, 1
    while is_claimed(name) or not is_free(connection, alias, name, may_continue=may_continue and number == 1):
        number += 1
        ending = f"-{number}"
        name = wanted[: MAX_LENGTH - len(ending)].rstrip("-_.") + ending
    return name


def is_owned(connection: Connection, name: str) -> bool:
    """Return whether any source owns the skill `name`."""
    return bool(_OWNERS.rows(connection, name=name))


def holder_of(connection: Connection, identity: Identity, source: str, name: str) -> str:
    """Return a text about the holder of a skill name. If the identity may not see the skill, the text does not name
    its source.
    """
    rows = _SKILL.rows(connection, name=name)
    if rows and not sees_skill(connection, identity, rows[0][0], name, rows[0][1]):
        return "belongs to another skill"
    owners = [row[0] for row in _OWNERS.rows(connection, name=name)]
    if not owners:
        return "was published by hand, not imported from this source"
    if source in owners:
        return "belongs to another skill of this source"
    return f"belongs to the source {quoted(owners[0])}" if owners[0] else "belongs to an import without a source"
