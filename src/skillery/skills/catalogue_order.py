"""The order of the catalogue by use: callers, then uses, then the older first publication.

Two rules change it. A skill that looks like an older skill of another publisher ranks below it, and a deprecated skill
ranks below its successor, however often they are used. Each listed row therefore stores two numbers: its rank by its
own use, and its rank in the order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, literal_column, null, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.audit import take_turn
from skillery.backends import Finding
from skillery.database import Change, Statement, before_commit, select_row
from skillery.database.tables import catalogue, import_aliases, name_marks, search_words, skills, use_days
from skillery.registry.usage import first_day
from skillery.registry.uses import MOST_AT_ONCE, Sums, Unwritten, add_reads, sums_of
from skillery.skills.catalogue_filters import LISTED, is_listed

Sort = Literal["name", "newest", "used"]


class Order(NamedTuple):
    """An order: its columns, the last one unique, and whether the highest values are first."""

    columns: tuple[ColumnElement[Any], ...]
    is_descending: bool


ORDERS: dict[Sort, Order] = {
    "name": Order((catalogue.c.namespace, catalogue.c.name, catalogue.c.version_id), False),
    "newest": Order((catalogue.c.published_at, catalogue.c.version_id), True),
    "used": Order((catalogue.c.used_rank, catalogue.c.version_id), True),
}


def in_order(connection: Connection, rows: Sequence[Any], sort: Sort) -> list[Any]:
    """Return rows that begin with the id of a skill in the order of the catalogue, by their latest versions."""
    order = ORDERS[sort]
    listed = select(catalogue.c.skill_id, *order.columns).where(
        is_listed(), catalogue.c.skill_id.in_(bindparam("skill_ids", expanding=True))
    )
    by_id = {row[0]: tuple(row[1:]) for row in connection.execute(listed, {"skill_ids": [row[0] for row in rows]})}
    present = [row for row in rows if row[0] in by_id]
    return sorted(present, key=lambda row: by_id[row[0]], reverse=order.is_descending)


# -- Marks: what look-alikes have in common ----------------------------------------------------------------------------


MOST_ALIKE = 50
"""The number of skills with a mark, oldest first, that the original is looked for in."""
FEWEST_WORDS = 5
"""Shorter descriptions are no marks, because unrelated skills have the same ones."""
MOST_RANKED, MOST_LEVELS = 1000, 20
"""The numbers of skills and levels below and above a skill that `_rank` looks at: names of successors are free text."""
_SKELETON = str.maketrans({"0": "o", "1": "l", "i": "l", ".": "", "-": "", "_": ""})
_ADD_MARKS = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(name_marks).on_conflict_do_nothing()
        for dialect in (sqlite, postgresql)
    },
    ("mark", "skill_id"),
)
_is_own = name_marks.c.skill_id == bindparam("of_skill")
_ALIKE = Statement(
    select(
        name_marks.c.id,
        name_marks.c.mark,
        name_marks.c.skill_id,
        catalogue.c.name,
        catalogue.c.publisher,
        catalogue.c.visibility,
        import_aliases.c.source,
    )
    .join_from(name_marks, catalogue, and_(catalogue.c.skill_id == name_marks.c.skill_id, is_listed()), isouter=True)
    .outerjoin(import_aliases, and_(import_aliases.c.name == catalogue.c.name, import_aliases.c.owns))
    .where(name_marks.c.mark.in_([bindparam("by_name"), bindparam("by_description")]))
    .order_by(case((_is_own, literal_column("0")), else_=literal_column("1")), name_marks.c.id)
    .limit(literal_column(str(MOST_ALIKE)))
)


class Standing(NamedTuple):
    """The rank of a skill by its own use, and the skill that it looks like, or None."""

    own_rank: int
    looks_like: str | None


class _Marked(NamedTuple):
    """A skill with a mark. The values of a skill that is not listed are None."""

    id: int
    mark: str
    skill_id: int
    name: str | None
    publisher: str | None
    visibility: str | None
    source: str | None


def skeleton_of(name: str) -> str:
    """Return a form that similar names have in common, for example `text.csv.profile` and `text.csv-profi1e2`."""
    return name.lower().rstrip("0123456789").translate(_SKELETON).replace("rn", "m")


def claim_marks(
    connection: Connection, skill_id: int, name: str, description: str, publisher: str, sums: Sums
) -> Standing:
    """Store the marks of a listed skill, and return its standing. A mark belongs to the skill that has it longest."""
    by_name, by_description = _marks_of(name, description)
    _ADD_MARKS.run_many(connection, [{"mark": mark, "skill_id": skill_id} for mark in (by_name, by_description)])
    rows = _alike(connection, skill_id, by_name, by_description)
    own_id = next(row.id for row in rows if row.skill_id == skill_id and row.mark == by_name)
    return Standing(ranked(sums, _age_of(own_id)), _original(rows, skill_id, publisher))


LOOK_ALIKE = "look_alike"
"""The rule of the finding about a version that looks like an older skill."""


def look_alike_findings(connection: Connection, name: str, description: str, publisher: str) -> tuple[Finding, ...]:
    """Return a finding if a new version looks like an older public skill of another publisher."""
    original = find_original(connection, name, description, publisher)
    if original is None:
        return ()
    message = f"looks like '{original}', an older skill of another publisher: name or description are nearly the same"
    return (Finding(LOOK_ALIKE, message, "warning"),)


def find_original(connection: Connection, name: str, description: str, publisher: str) -> str | None:
    """Return the older public skill of another publisher that a version of this publisher looks like."""
    skill_id = connection.scalar(select(skills.c.id).where(skills.c.name == name)) or 0
    return _original(_alike(connection, skill_id, *_marks_of(name, description)), skill_id, publisher)


def _marks_of(name: str, description: str) -> tuple[str, str]:
    by_name, words = f"n:{skeleton_of(name)}", description.split()
    if len(words) < FEWEST_WORDS:
        return by_name, by_name
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=16).hexdigest()
    return by_name, f"d:{digest}"


def _alike(connection: Connection, skill_id: int, by_name: str, by_description: str) -> list[_Marked]:
    rows = _ALIKE.rows(connection, of_skill=skill_id, by_name=by_name, by_description=by_description)
    return [_Marked(*row) for row in rows]


def _original(rows: Sequence[_Marked], skill_id: int, publisher: str) -> str | None:
    own = {row.mark: row.id for row in rows if row.skill_id == skill_id}
    sources = {_origin_of(row) for row in rows if row.skill_id == skill_id and row.source}
    older = (
        row.name
        for row in rows
        if row.skill_id != skill_id
        and (row.mark not in own or row.id < own[row.mark])
        and row.visibility == "public"
        and row.publisher != publisher
        and _origin_of(row) not in sources
    )
    return next(older, None)


def _origin_of(row: _Marked) -> tuple[str, str | None]:
    """Return the namespace and the source of a skill. An importer states the source: a copy in another namespace is a
    look-alike also if it has the same source.
    """
    return _namespace_of(row.name or ""), row.source


def _namespace_of(name: str) -> str:
    return name.rpartition(".")[0]


_ALLOW = Change(
    update(catalogue)
    .where(
        catalogue.c.skill_id == select(skills.c.id).where(skills.c.name == bindparam("of_name")).scalar_subquery(),
        catalogue.c.looks_like.in_(
            select(import_aliases.c.name).where(
                import_aliases.c.source == bindparam("of_source"),
                import_aliases.c.owns,
                import_aliases.c.name.between(bindparam("first"), bindparam("last")),
            )
        ),
    )
    .values(looks_like=null())
)


def allow_same_source(connection: Connection, name: str, source: str) -> None:
    """Note that a skill was imported from a source: it does not look like another skill of the same source in or below
    its namespace.
    """
    namespace = _namespace_of(name)
    # "/" is the next character after ".", and no name has it.
    _ALLOW.run_later(connection, of_name=name, of_source=source, first=f"{namespace}.", last=f"{namespace}/")


# -- Ranks -------------------------------------------------------------------------------------------------------------


_USE_BITS, _AGE_BITS = 21, 29
_MOST_CALLERS, _MOST_USES, _AGES = 0x1FFF, 0x1FFFFF, 0x1FFFFFFF


def _age_of(number: int) -> int:
    """Return the part of a rank that follows from the number of the first publication."""
    # Ages are even, so that each skill has a free rank directly below it.
    return max(0, _AGES - 1 - 2 * number)


def ranked(sums: Sums, age: int = 0) -> int:
    """Return the rank of a skill by its use and its age: an integer of 63 bits."""
    callers, uses = min(sums.callers_30d, _MOST_CALLERS), min(sums.uses_30d, _MOST_USES)
    return (callers << _USE_BITS | uses) << _AGE_BITS | age


class _Row(NamedTuple):
    name: str
    skill_id: int
    own_rank: int
    used_rank: int
    above: str | None
    """The skill that it ranks below: the one that it looks like, else its successor."""


_ABOVE = func.coalesce(catalogue.c.looks_like, search_words.c.successor)
_ROWS = (
    select_row(_Row, catalogue, above=_ABOVE)
    # Only the table of skills has an index of names.
    .join_from(skills, catalogue, catalogue.c.skill_id == skills.c.id)
    .outerjoin(search_words, search_words.c.skill_id == skills.c.id)
    .where(is_listed())
)
_SET_RANK = Change(update(catalogue).where(is_listed(), catalogue.c.skill_id == bindparam("of_skill")), ("used_rank",))
_FREE = select(catalogue.c.skill_id).where(is_listed()).with_for_update(skip_locked=True)
_BELOW_ORIGINALS = select(catalogue.c.name).where(is_listed(), catalogue.c.looks_like.is_not(None))
_BELOW_SUCCESSORS = (
    select(catalogue.c.name)
    .join_from(search_words, catalogue, catalogue.c.skill_id == search_words.c.skill_id)
    .where(is_listed(), search_words.c.successor.is_not(None))
)


def rank_later(connection: Connection, name: str) -> None:
    """Store the ranks of a skill and of the skills that rank below it, at the end of the transaction."""
    before_commit(partial(_rank, names=[name]))


def _rank(connection: Connection, names: Collection[str]) -> None:
    # Transactions rank in turn. The owner of the turn waits for no other transaction, so that there is no deadlock: a
    # skill that another one changes is ranked by that one, in its turn.
    take_turn(connection)
    affected, new = set(names), set(names)
    while len(affected) < MOST_RANKED and (new := set(_below(connection, new)) - affected):
        affected |= new
    rows, new = dict[str, _Row](), set(affected)
    for _ in range(MOST_LEVELS):
        read = [_Row(*row) for row in connection.execute(_ROWS.where(skills.c.name.in_(new)))]
        rows |= {row.name: row for row in read}
        new = {row.above for row in read if row.above} - rows.keys()
        if not new:
            break
    changes = []
    for row in sorted(rows[name] for name in affected & rows.keys()):
        used_rank = min(own_rank - step for step, own_rank in enumerate(_own_ranks(rows, row.name)))
        if used_rank != row.used_rank:
            changes.append({"of_skill": row.skill_id, "used_rank": used_rank})
    if changes:
        of_changes = _FREE.where(catalogue.c.skill_id.in_([change["of_skill"] for change in changes]))
        free = set(connection.scalars(of_changes))
        changes = [change for change in changes if change["of_skill"] in free]
    _SET_RANK.run_many(connection, changes)


def _below(connection: Connection, names: Collection[str]) -> Iterator[str]:
    yield from connection.scalars(_BELOW_ORIGINALS.where(catalogue.c.looks_like.in_(names)).limit(MOST_RANKED))
    yield from connection.scalars(_BELOW_SUCCESSORS.where(search_words.c.successor.in_(names)).limit(MOST_RANKED))


def _own_ranks(rows: Mapping[str, _Row], name: str) -> Iterator[int]:
    """Yield the ranks by use of a skill and of the skills above it, each skill once."""
    seen: set[str] = set()
    row = rows.get(name)
    while row is not None and row.name not in seen:
        seen.add(row.name)
        yield row.own_rank
        row = rows.get(row.above or "")


# -- Sums --------------------------------------------------------------------------------------------------------------


_LOCKED = select(catalogue).with_for_update(skip_locked=True)
_SUMS = (*Sums._fields, "own_rank", "used_rank")
_SET_SUMS = Change(update(catalogue).where(catalogue.c.version_id == bindparam("of_version")), _SUMS)


def write_uses(connection: Connection, unwritten: Unwritten) -> list[int]:
    """Write what a server has counted and noted. Return the skills whose sums a later transaction has to write."""
    noted = [*dict.fromkeys([*unwritten.skill_ids, *add_reads(connection, unwritten.reads)])]
    return [*update_sums(connection, noted[:MOST_AT_ONCE]), *noted[MOST_AT_ONCE:]]


def update_sums(connection: Connection, skill_ids: Sequence[int]) -> list[int]:
    """Store the use of these skills in the catalogue, and their ranks.

    Return the skills that another transaction changes now. Waiting for them could be a deadlock.
    """
    # The locks come first: sums that were read before those of another server would replace newer ones.
    among = catalogue.c.skill_id.in_(skill_ids)
    rows = connection.execute(_LOCKED.where(among)).all()
    sums = sums_of(connection, [row.skill_id for row in rows])
    changed = [
        row for row in rows if any(getattr(row, key) != value for key, value in sums[row.skill_id]._asdict().items())
    ]
    changes = []
    for row in changed:
        own_rank = ranked(sums[row.skill_id], row.own_rank & _AGES)
        used_rank = row.used_rank if row.status in LISTED else own_rank
        ranks = {"own_rank": own_rank, "used_rank": used_rank}
        changes.append({"of_version": row.version_id, **sums[row.skill_id]._asdict(), **ranks})
    _SET_SUMS.run_many(connection, changes)
    if listed := {row.name for row in rows if row.status in LISTED}:
        _rank(connection, listed)
    done = {row.version_id for row in rows}
    present = connection.execute(select(catalogue.c.version_id, catalogue.c.skill_id).where(among))
    return sorted({skill_id for version_id, skill_id in present if version_id not in done})


def outdated_skills(connection: Connection) -> list[int]:
    """Return the skills that were used since yesterday, and those whose sums contain a day before the last 30."""
    used = select(use_days.c.skill_id).where(use_days.c.day >= first_day(2).isoformat())
    is_old = and_(catalogue.c.uses_by_day != "", catalogue.c.uses_by_day < first_day().isoformat())
    return sorted(
        {*connection.scalars(used.distinct()), *connection.scalars(select(catalogue.c.skill_id).where(is_old))}
    )
