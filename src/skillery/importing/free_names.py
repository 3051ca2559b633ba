"""Names of imported skills: free names for a source, and the holders of taken names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, literal_column, not_, select

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import import_aliases, skills
from skillery.formats.foreign_skill import registry_name
from skillery.formats.names import MAX_LENGTH
from skillery.formats.wording import quoted
from skillery.importing.roots import SECOND_CHOICE
from skillery.registry.visibility import sees_skill

_SKILL = Statement(select(skills.c.id, skills.c.visibility).where(skills.c.name == bindparam("name")))
_OWNERS = Statement(
    select(import_aliases.c.source, import_aliases.c.path)
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


GENERIC = SECOND_CHOICE | {"packages", "src"}
"""Elements of paths that say little about a skill."""
MOST_ELEMENTS = 4
MAX_ENDING = 40


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
    connection: Connection,
    alias: Alias,
    wanted: str,
    endings: Iterable[str],
    is_claimed: Callable[[str], bool],
    *,
    may_continue: bool,
) -> str:
    """Return `wanted` if that name is free, else `wanted` with the first of `endings` that gives a free name, else
    with the lowest such number.

    `is_claimed` returns whether another skill of the same import will get a name.
    """
    names = chain([wanted], (_ended(wanted, ending) for ending in chain(endings, map(str, count(2)))))
    return next(
        name
        for name in names
        if not is_claimed(name) and is_free(connection, alias, name, may_continue=may_continue and name == wanted)
    )


def _ended(wanted: str, ending: str) -> str:
    return f"{wanted[: MAX_LENGTH - len(ending) - 1].rstrip('-_.')}-{ending}"


def endings_of(root: str, holder: str, wanted: str, frequencies: Mapping[str, int]) -> Iterator[str]:
    """Yield endings for the name of the skill at `root`: elements of its path that the path of the skill `holder`,
    which has the wanted name, does not contain.

    Names of translations and versions come first, such as `zh-cn`: elements that few paths of skills in equal folders
    contain. `frequencies` counts these paths by element.
    """
    shared = {*holder.split("/"), "skills"}
    elements = [element for element in reversed(root.split("/")) if element not in shared]
    elements.sort(key=lambda element: (element in GENERIC, frequencies.get(element, 0)))
    endings = (registry_name(element).replace(".", "-") for element in elements[:MOST_ELEMENTS])
    leaf = wanted.rpartition(".")[2]
    return (ending for ending in endings if ending != leaf and len(ending) <= MAX_ENDING)


def owned_path(connection: Connection, source: str, name: str) -> str | None:
    """Return the path in aliases of the skill `name`, or None if the source does not own it or has no name."""
    return next((path for owner, path in _OWNERS.rows(connection, name=name) if owner == source and source), None)


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
