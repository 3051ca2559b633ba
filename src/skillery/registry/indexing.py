"""What search_skills looks in: the words of each skill's latest version, kept by the transaction that changes which
version that is."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, insert, select

from skillery.formats.skill_md import body_of, text_of
from skillery.formats.words import words_of
from skillery.tables import objects, search_words, skill_files, skill_versions

MAX_BODY = 32 * 1024
"""Characters of a SKILL.md that can be found."""
SKILL_MD = "SKILL.md"

_INDEXED = select(search_words.c.version_id).where(search_words.c.skill_id == bindparam("of_skill"))
_TEXTS = (
    select(skill_versions.c.summary_json, skill_versions.c.skill_md_start, objects.c.data)
    .outerjoin_from(
        skill_versions,
        skill_files,
        and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == SKILL_MD),
    )
    .outerjoin(objects, objects.c.sha256 == skill_files.c.sha256)
    .where(skill_versions.c.id == bindparam("version_id"))
)
_DROP = delete(search_words).where(search_words.c.skill_id == bindparam("of_skill"))
_ADD = insert(search_words)


def index_latest(connection: Connection, skill_id: int, version_id: int | None) -> None:
    """Make the skill found by the words of this version, None: not at all."""
    indexed = connection.scalar(_INDEXED, {"of_skill": skill_id})
    if indexed == version_id:
        return
    if indexed is not None:
        connection.execute(_DROP, {"of_skill": skill_id})
    if version_id is not None:
        summary_json, start, data = connection.execute(_TEXTS, {"version_id": version_id}).one()
        row = search_row(summary_json, body_in(start, data))
        connection.execute(_ADD, {"skill_id": skill_id, "version_id": version_id, **row})


def body_in(start: str | None, data: bytes | None) -> str:
    """The text of a SKILL.md behind its frontmatter, as far as it is searched; `start` stands for a large one."""
    return (start or (body_of(text_of(bytes(data))) if data is not None else ""))[:MAX_BODY]


def search_row(summary_json: str, body: str) -> dict[str, str]:
    """The columns of `search_words`: words with blanks between, which is text for FTS5 and a tsvector for Postgres."""
    summary: dict[str, Any] = msgspec.json.decode(summary_json)
    tags: list[str] = summary["tags"]
    name, tag_words, description = (
        words_of(text) for text in (summary["name"], "\n".join(tags), summary["description"])
    )
    return {
        "name": " ".join(name),
        "tags": " ".join(tag_words),
        "description": " ".join(description),
        "words": " ".join(dict.fromkeys((*name, *tag_words, *description, *words_of(body)))),
        "tag_list": "".join(f"\n{tag.casefold()}" for tag in tags) + "\n",
    }
