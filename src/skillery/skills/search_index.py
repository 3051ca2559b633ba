"""The searched words of each skill's latest version. The transaction that changes the latest version updates the
words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    and_,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Identity
from skillery.database import Change, ListStatement, Statement, as_list, is_among
from skillery.database.tables import (
    objects,
    search_postings,
    search_spellings,
    search_words,
    skill_files,
    skill_versions,
    skills,
)
from skillery.formats.bundle import Bundle
from skillery.formats.search_fields import MAX_BODY, MOST_IMPACT, WHOLE, Fields, search_fields, stored_pieces
from skillery.formats.skill_md import body_of, text_of
from skillery.formats.words import words_of
from skillery.registry.version_rows import VersionValues
from skillery.registry.visibility import View, is_own, parameters, seen_by_name, sees_each, view_of

SKILL_MD = "SKILL.md"
_NAMED_INSIDE = (SKILL_MD, "skill.toml")
"""Files that contain the name of the skill, and therefore differ between copies of a skill under other names."""
_LONG_TAG = 100

_INDEXED = Statement(select(search_words.c.version_id).where(search_words.c.skill_id == bindparam("of_skill")))
_ADD_WORDS = Change(insert(search_words), ("skill_id", "version_id", "copy_key", "successor", "words"))
_ADD_POSTINGS = Change(insert(search_postings), ("skill_id", "name", "visibility", "word", "loss"))
_TEXTS = Statement(
    select(
        skills.c.name,
        skills.c.visibility,
        skill_versions.c.summary_json,
        skill_versions.c.skill_md_start,
        objects.c.data,
        skill_versions.c.standing_json,
    )
    .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
    .outerjoin(skill_files, and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == SKILL_MD))
    .outerjoin(objects, objects.c.sha256 == skill_files.c.sha256)
    .where(skill_versions.c.id == bindparam("version_id"))
)
_FILES = Statement(
    select(skill_files.c.path, skill_files.c.sha256)
    .where(skill_files.c.version_id == bindparam("version_id"), *(skill_files.c.path != path for path in _NAMED_INSIDE))
    .order_by(skill_files.c.path)
)
_word = search_spellings.c.word
_KNOWN_SPELLINGS = ListStatement(select(_word).where(search_spellings.c.piece == WHOLE), words=_word)
_ADD_SPELLINGS = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(search_spellings).on_conflict_do_nothing()
        for dialect in (sqlite, postgresql)
    },
    ("piece", "word", "stem"),
)
_DROP = [delete(table).where(table.c.skill_id == bindparam("of_skill")) for table in (search_words, search_postings)]


def index_latest(connection: Connection, skill_id: int, version_id: int | None) -> None:
    """Index the words of this version of the skill. If `version_id` is None, remove the skill from the search."""
    rows = _INDEXED.rows(connection, of_skill=skill_id)
    indexed = rows[0][0] if rows else None
    if indexed == version_id:
        return
    if indexed is not None:
        for drop in _DROP:
            connection.execute(drop, {"of_skill": skill_id})
    if version_id is not None:
        _add(connection, skill_id, version_id)


def index_first(
    connection: Connection, bundle: Bundle, values: VersionValues, version_id: int, visibility: str
) -> None:
    """Index the words of the first version of a skill."""
    skill_md = next(file.content for file in bundle.files if file.path == SKILL_MD)
    body = body_in(values.skill_md_start, skill_md)
    files = sorted((file.path, file.sha256) for file in bundle.files if file.path not in _NAMED_INSIDE)
    summary: dict[str, Any] = msgspec.json.decode(values.summary_json)
    row = indexed(bundle.manifest.name, summary["description"], summary["tags"], body, files)
    add_rows(connection, values.skill_id, version_id, bundle.manifest.name, visibility, row)


def index_visibility(connection: Connection, skill_id: int, visibility: str) -> None:
    """Store the skill's visibility in its search rows."""
    postings = update(search_postings).where(search_postings.c.skill_id == skill_id)
    connection.execute(postings.values(visibility=visibility))


def index_successor(connection: Connection, skill_id: int, successor: str | None) -> None:
    """Store the successor of a deprecated skill in the search index."""
    words = update(search_words).where(search_words.c.skill_id == skill_id)
    connection.execute(words.values(successor=successor))


def erase_removed_words(connection: Connection) -> None:
    """Remove the words of removed skills from the files of the index.

    FTS5 keeps removed words until it merges the parts of its index. On Postgres, they stay until VACUUM.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO search_index (search_index) VALUES ('optimize')")


def body_in(start: str | None, data: bytes | None) -> str:
    """Return the searched text of SKILL.md, without its frontmatter.

    For a large file, the text is `start`. For a small file, it is taken from `data`, the content of the file.
    """
    return (start or (body_of(text_of(bytes(data))) if data is not None else ""))[:MAX_BODY]


def tag_word(tag: str) -> str:
    """Return the search word for a tag. It begins with a line feed, which no word of a text does."""
    tag = tag.strip().casefold()
    return f"\n{tag}" if len(tag) <= _LONG_TAG else f"\n{hashlib.blake2b(tag.encode(), digest_size=16).hexdigest()}"


class Indexed(msgspec.Struct, frozen=True):
    """The search rows of one skill.

    `losses` has the loss of each stem and tag: a low loss is a strong match. `spellings` has the stem of each spelling.
    """

    copy_key: int
    words: str
    losses: dict[str, int]
    spellings: dict[str, str]


def indexed(name: str, description: str, tags: Sequence[str], body: str, files: Sequence[tuple[str, str]]) -> Indexed:
    """Return the search rows of a skill. `files` are pairs of path and digest."""
    fields = search_fields(name, description, tags)
    losses = {word: MOST_IMPACT - impact for word, impact in fields.impacts.items()}
    losses |= {tag_word(tag): 0 for tag in tags if tag.strip()}
    return Indexed(_copy_key(description, body, files), _words(fields, body), losses, fields.spellings)


def add_rows(
    connection: Connection,
    skill_id: int,
    version_id: int,
    name: str,
    visibility: str,
    row: Indexed,
    successor: str | None = None,
) -> None:
    """Insert the search rows of a skill that has no search rows."""
    words = {"copy_key": row.copy_key, "successor": successor, "words": row.words}
    _ADD_WORDS.run_later(connection, skill_id=skill_id, version_id=version_id, **words)
    common = {"skill_id": skill_id, "name": name, "visibility": visibility}
    postings = [{**common, "word": word, "loss": loss} for word, loss in row.losses.items()]
    _ADD_POSTINGS.run_many(connection, postings)
    _add_spellings(connection, row.spellings)


def _add(connection: Connection, skill_id: int, version_id: int) -> None:
    [(name, visibility, summary_json, start, data, standing_json)] = _TEXTS.rows(connection, version_id=version_id)
    files = [(path, sha256) for path, sha256 in _FILES.rows(connection, version_id=version_id)]
    summary: dict[str, Any] = msgspec.json.decode(summary_json)
    row = indexed(name, summary["description"], summary["tags"], body_in(start, data), files)
    standing: dict[str, Any] = msgspec.json.decode(standing_json or "{}")
    successor = standing.get("deprecated", {}).get("successor")
    add_rows(connection, skill_id, version_id, name, visibility, row, successor)


def _words(fields: Fields, body: str) -> str:
    """Return the words of the text that the fields do not contain, separated by spaces, for FTS5 and tsvector."""
    words = dict.fromkeys((*fields.further, *words_of(body)))
    return " ".join(word for word in words if word not in fields.impacts)


def _copy_key(description: str, body: str, files: Sequence[tuple[str, str]]) -> int:
    text = msgspec.json.encode([description.strip(), body.strip(), files])
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


def _add_spellings(connection: Connection, spellings: Mapping[str, str]) -> None:
    """Insert the spellings of new words, in sorted order: two publishers of the same words then do not deadlock."""
    known = {row[0] for row in _KNOWN_SPELLINGS.rows(connection, words=list(spellings))}
    rows = [
        {"piece": piece, "word": word, "stem": spellings[word]}
        for word in sorted(spellings.keys() - known)
        for piece in sorted(stored_pieces(word))
    ]
    _ADD_SPELLINGS.run_many(connection, rows)


# The SQL condition for skills that a search may return. Its form depends on the number of skills that the identity
# sees.
#
# If the identity sees few skills, the condition lists their ids: a scan of all postings of a frequent word would find
# hardly any of these skills. Else the condition checks the visibility of each row: a limit ends the scan soon.


FEW = 1000
"""The highest number of skills that the condition lists by id."""
_KEPT = 64


class VisibilityShape(NamedTuple):
    """The values that determine the text of the condition."""

    dialect: str
    view: View | None
    is_few: bool


class VisibleSkills(NamedTuple):
    """The visibility condition of an identity: the shape of the condition, and its SQL parameters."""

    visibility_shape: VisibilityShape
    parameters: dict[str, Any]


def seen_by(connection: Connection, identity: Identity) -> VisibleSkills:
    """Return the visibility condition of the identity."""
    dialect, view = connection.dialect.name, view_of(identity)
    if view is None:
        return VisibleSkills(VisibilityShape(dialect, None, False), {})
    values = parameters(identity)
    ids = sorted({row[0] for row in _first(view).rows(connection, **values)})
    if len(ids) > FEW:
        return VisibleSkills(VisibilityShape(dialect, view, False), values)
    return VisibleSkills(VisibilityShape(dialect, view, True), {"seen_ids": as_list(dialect, ids)})


def is_seen(
    visibility_shape: VisibilityShape, rows: FromClause, skill_id: ColumnElement[int]
) -> list[ColumnElement[bool]]:
    """Return the conditions on `rows`, a table with the `name` and `visibility` of skills, or [] if the identity
    sees every skill.
    """
    if visibility_shape.view is None:
        return []
    if not visibility_shape.is_few:
        return [sees_each(visibility_shape.view, rows, skill_id)]
    return [is_among(visibility_shape.dialect, skill_id, "seen_ids")]


@lru_cache(_KEPT)
def _first(view: View) -> Statement:
    """Return the statement for the ids of the first FEW + 1 skills by each condition for visibility."""
    conditions = [*seen_by_name(view), is_own()]
    parts = [
        select(skills.c.id)
        .where(skills.c.latest_version_id.is_not(None), condition)
        .limit(literal_column(str(FEW + 1)))
        for condition in conditions
    ]
    return Statement(union_all(*(select(part.subquery()) for part in parts)))
