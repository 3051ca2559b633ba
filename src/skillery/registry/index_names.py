"""Index names: the names of skills in the indexes of Agent Skills.

If two skills have the same index name, the skill that was published first holds it permanently in the index of the
server, even while this skill is hidden or yanked: a name never changes its meaning. In the index of a namespace, a
skill of that namespace has priority over skills of namespaces below, so that each skill is in the index of its own
namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    exists,
    insert,
    literal_column,
    or_,
    select,
)

from skillery.backends import Identity
from skillery.database import Change, Statement, select_row, take_turns
from skillery.database.tables import exports, index_names, skill_versions, skills
from skillery.errors import SkillNotFound
from skillery.formats.names import index_name
from skillery.registry.visibility import is_own, parameters, seen_by_name, sees_skill, view_of

_CLAIMED = Statement(
    select(skills.c.name, index_names.c.id)
    .outerjoin_from(skills, index_names, index_names.c.skill_id == skills.c.id)
    .where(skills.c.id == bindparam("skill_id"))
)
_CLAIM = Change(insert(index_names), ("index_name", "skill_id"))
_HOLDER = Statement(
    select(skills.c.id, skills.c.name, skills.c.visibility)
    .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
    .where(index_names.c.index_name == bindparam("index_name"))
    .order_by(index_names.c.id)
    .limit(literal_column("1"))
)
_WITH_INDEX_NAME = Statement(
    select(skills.c.name)
    .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
    .where(index_names.c.index_name == bindparam("index_name"))
    .order_by(index_names.c.id)
)
_FIRST_OF_NAMESPACE = Statement(
    select(skills.c.name)
    .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
    .where(index_names.c.index_name == bindparam("index_name"), skills.c.namespace == bindparam("namespace"))
    .order_by(index_names.c.id)
    .limit(literal_column("1"))
)
HOLDER = (
    select(skills.c.name)
    .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
    .where(index_names.c.index_name == bindparam("index_name"))
    .order_by(index_names.c.id)
    .limit(literal_column("1"))
    .scalar_subquery()
)
"""SQL subquery for the name of the skill that holds `index_name` in the index of the server."""
Row = TypeVar("Row", bound=tuple[Any, ...])
_others = skills.alias("others")
_other_names = index_names.alias("other_names")


class Listed(NamedTuple):
    """A skill in an index, with its latest version."""

    index_name: str
    name: str
    version: str
    version_id: int
    facts_json: str | None
    """The facts of the version (`exports`), or None if no server has derived them yet."""


def claim_index_name(connection: Connection, skill_id: int) -> None:
    """Reserve the index name of a skill, if it has none. Call this in the transaction that publishes the skill."""
    [(name, claimed)] = _CLAIMED.rows(connection, skill_id=skill_id)
    if claimed is not None:
        return
    claim_first(connection, skill_id, name)


def claim_first(connection: Connection, skill_id: int, name: str) -> None:
    """Reserve the index name of a skill that has no index name."""
    claimed_name = index_name(name)
    # Ids are assigned before they are committed: without turns, a later id could commit first.
    take_turns(connection, "index name", claimed_name)
    _CLAIM.run_later(connection, index_name=claimed_name, skill_id=skill_id)


def index_name_warning(connection: Connection, identity: Identity, name: str) -> str | None:
    """Return a warning for the publisher of the skill `name` if another skill holds its index name, else None."""
    own_index_name = index_name(name)
    rows = _HOLDER.rows(connection, index_name=own_index_name)
    if not rows or rows[0][1] == name:
        return None
    skill_id, holder, visibility = rows[0]
    other = f"'{holder}'" if sees_skill(connection, identity, skill_id, holder, visibility) else "another skill"
    indexes = [*_namespace_index(connection, own_index_name, name), f"/n/{name}/.well-known/agent-skills"]
    return (
        f"index name: as an Agent Skill this is '{own_index_name}', and so is {other}, which was published first and "
        f"is in /.well-known/agent-skills; this skill is in {' or '.join(indexes)}"
    )


def _namespace_index(connection: Connection, wanted: str, name: str) -> list[str]:
    """Return a list with the path of the index of the skill's namespace, or an empty list.

    The list is empty if another skill holds the index name `wanted` there, or if the skill has no namespace.
    """
    # An unpublished skill has no row yet: its namespace then follows from its name.
    value = connection.scalar(select(skills.c.namespace).where(skills.c.name == name))
    namespace = name.rpartition(".")[0] if value is None else value
    if not namespace:
        return []
    rows = _FIRST_OF_NAMESPACE.rows(connection, index_name=wanted, namespace=namespace)
    return [f"/n/{namespace}/.well-known/agent-skills"] if not rows or rows[0][0] == name else []


def skills_with_index_name(connection: Connection, wanted: str) -> list[str]:
    """Return the names of all skills with the index name `wanted`, in the order of their first publishing."""
    return [row[0] for row in _WITH_INDEX_NAME.rows(connection, index_name=wanted)]


def list_index(
    connection: Connection, identity: Identity, namespace: str, maker: int, *, after: str, limit: int
) -> list[Listed]:
    """Return at most `limit` skills of an index that the identity sees, sorted by index name, after the index name
    `after`.

    A `namespace` of "" means the index of the server. Another index has the skills of the namespace and of namespaces
    below, and the skill of the same name. `maker` is the version of the code that derives the facts.
    """
    page = _listed(identity, namespace, maker).where(index_names.c.index_name > after)
    rows = connection.execute(page.order_by(index_names.c.index_name).limit(limit), index_values(identity, namespace))
    return [Listed._make(row) for row in rows]


def list_unprepared(
    connection: Connection, maker: int, *, after: str, limit: int, names: Sequence[str] | None = None
) -> list[Listed]:
    """Return at most `limit` latest versions that have no facts of this `maker`, sorted by skill name.

    The skill names follow `after`. If `names` is given, only these skills are returned.
    """
    missing = _latest(maker).where(exports.c.version_id.is_(None), skills.c.name > after)
    if names is not None:
        missing = missing.where(skills.c.name.in_(names))
    return [Listed._make(row) for row in connection.execute(missing.order_by(skills.c.name).limit(limit))]


def find_in_index(connection: Connection, identity: Identity, namespace: str, wanted: str) -> str:
    """Return the name of the skill that holds the index name `wanted`.

    Raise SkillNotFound if the identity sees no such skill in the index of `namespace`.
    """
    statement = _listed(identity, namespace, 0).where(index_names.c.index_name == wanted)
    row = connection.execute(statement, index_values(identity, namespace)).first()
    if row is not None:
        return str(row.name)
    where = f"the index of '{namespace}'" if namespace else "the index of this server"
    raise SkillNotFound(
        f"there is no skill '{wanted}' in {where}", hint="The index.json of this index lists the skills.", name=wanted
    )


def _listed(identity: Identity, namespace: str, maker: int) -> Select[Any]:
    return in_index(_latest(maker), identity, namespace)


def in_index(statement: Select[Row], identity: Identity, namespace: str) -> Select[Row]:
    """Return `statement`, restricted to the skills of an index that the identity sees.

    The statement must read `index_names` and `skills`. Its parameters are then `index_values`.
    """
    statement = statement.where(~_is_held_by_another(namespace))
    if namespace:
        statement = statement.where(_is_in(skills.c.namespace, skills.c.name))
    view = view_of(identity)
    return statement if view is None else statement.where(or_(*seen_by_name(view), is_own()))


def _latest(maker: int) -> Select[Any]:
    """Return the SELECT of the latest version of each skill, with the facts of this `maker` or NULL."""
    return (
        select_row(Listed, index_names, skills, skill_versions, exports, version_id=skill_versions.c.id)
        .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
        .join(skill_versions, skill_versions.c.id == skills.c.latest_version_id)
        .outerjoin(exports, and_(exports.c.version_id == skill_versions.c.id, exports.c.maker == maker))
        .where(skills.c.latest_version_id.is_not(None))
    )


def _is_held_by_another(namespace: str) -> ColumnElement[bool]:
    """Return the SQL condition that another skill holds the index name in this index.

    The condition does not depend on the identity: a skill that it does not see holds a name too.
    """
    same_name = _other_names.c.index_name == index_names.c.index_name
    earlier = _other_names.c.id < index_names.c.id
    if not namespace:
        return exists().where(same_name, earlier)
    own_rank, other_rank = _rank(skills.c.namespace, skills.c.name), _rank(_others.c.namespace, _others.c.name)
    return exists().where(
        same_name,
        _others.c.id == _other_names.c.skill_id,
        _is_in(_others.c.namespace, _others.c.name),
        or_(other_rank < own_rank, and_(other_rank == own_rank, earlier)),
    )


def _is_in(namespace: ColumnElement[str], name: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the SQL condition that a skill is in the index of a namespace."""
    namespace_is_below = and_(namespace >= bindparam("below"), namespace < bindparam("past"))
    # The name decides too, so that a stated namespace does not add a skill to the index of another team.
    name_is_below = and_(name >= bindparam("below"), name < bindparam("past"))
    is_in_namespace = and_(or_(namespace == bindparam("in_namespace"), namespace_is_below), name_is_below)
    return or_(is_in_namespace, name == bindparam("in_namespace"))


def _rank(namespace: ColumnElement[str], name: ColumnElement[str]) -> ColumnElement[int]:
    """Return the SQL rank of a skill in the index of a namespace: 0 is the skill of this name, 1 the namespace, 2
    below.
    """
    condition: ColumnElement[str] = bindparam("in_namespace")
    return case((name == condition, _number(0)), (namespace == condition, _number(1)), else_=_number(2))


def _number(number: int) -> ColumnElement[int]:
    return literal_column(str(number), Integer)


def index_values(identity: Identity, namespace: str) -> dict[str, object]:
    """Return the SQL parameters of a statement that `in_index` has returned."""
    values: dict[str, object] = dict(parameters(identity))
    if namespace:
        # "." is followed by "/" in the order of bytes.
        values |= {"in_namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"}
    return values
