"""Facts of a version as an Agent Skill. They are computed once from the version's files, and stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database.tables import exports, skill_versions
from skillery.exports.contents import Contents
from skillery.formats.agent_skill import MAX_DESCRIPTION, AgentSkill, cut
from skillery.formats.archives import FORMS, Form, archive, fits_plain_tar
from skillery.formats.bundle import SKILL_MD, SKILL_TOML

MAKER = 2
"""The version number of the code that computes facts. Increase it if formats.agent_skill or formats.archives give
other output.
"""

_FACTS = select(exports.c.facts_json).where(
    exports.c.version_id == bindparam("version"), exports.c.maker == bindparam("made_by")
)

_MANY_FACTS = select(exports.c.version_id, exports.c.facts_json).where(
    exports.c.version_id.in_(bindparam("versions", expanding=True)), exports.c.maker == bindparam("made_by")
)


class Facts(msgspec.Struct, frozen=True):
    """Facts of one version. `name` is its index name. Digests are SHA-256 in hex."""

    name: str
    description: str
    skill_md: str
    skill_md_bytes: int
    is_generated: bool
    """True if the exported SKILL.md is generated, because the stored file does not conform."""
    archives: dict[Form, str]
    files: tuple[str, ...]
    head: str = ""
    """The beginning of the exported SKILL.md that replaces the stored beginning, if the file is generated."""

    @property
    def is_lone(self) -> bool:
        """Whether the skill contains only SKILL.md and skill.toml. Only registries read skill.toml."""
        return set(self.files) <= {SKILL_MD, SKILL_TOML}

    @property
    def form(self) -> Form:
        """The archive format of the skill in indexes: `tar.gz`, or `zip` if a path is too long for a plain tar."""
        return "tar.gz" if all(fits_plain_tar(path) for path in self.files) else "zip"


def make_facts(name: str, skill: AgentSkill, contents: Contents) -> Facts:
    """Return the facts of a skill. Blocking: every file is read."""
    entries = contents.entries()
    digests = {form: _digest(archive(form, entries, contents.read)) for form in FORMS}
    return Facts(
        name,
        # Clients count UTF-16 units, and drop longer descriptions from an index.
        cut(skill.description, MAX_DESCRIPTION),
        hashlib.sha256(skill.content).hexdigest(),
        len(skill.content),
        skill.is_generated,
        digests,
        tuple(entry.path for entry in entries),
        skill.head.decode(),
    )


def find_facts(connection: Connection, version_id: int) -> Facts | None:
    found = connection.scalar(_FACTS, {"version": version_id, "made_by": MAKER})
    return read_facts(found) if found else None


def find_many_facts(connection: Connection, *, version_ids: Sequence[int]) -> dict[int, Facts]:
    """Return the stored facts of versions by their id."""
    rows = connection.execute(_MANY_FACTS, {"versions": version_ids, "made_by": MAKER})
    return {row.version_id: read_facts(row.facts_json) for row in rows}


def read_facts(text: str) -> Facts:
    return msgspec.json.decode(text, type=Facts)


def keep_facts(connection: Connection, facts: Mapping[int, Facts]) -> None:
    """Store facts by the id of their version, except those of versions that were purged in the meantime.

    The rows are sorted by id, so that two servers do not deadlock.
    """
    columns = skill_versions.c
    kept = select(columns.id).where(columns.id.in_(facts), columns.status != "purged").order_by(columns.id)
    alive = set(connection.scalars(kept.with_for_update(read=True)))
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    adding = dialect.insert(exports)
    new = {"maker": adding.excluded.maker, "facts_json": adding.excluded.facts_json}
    rows = [
        {"version_id": version_id, "maker": MAKER, "facts_json": msgspec.json.encode(one).decode()}
        for version_id, one in sorted(facts.items())
        if version_id in alive
    ]
    if rows:
        connection.execute(adding.on_conflict_do_update(index_elements=["version_id"], set_=new), rows)


def _digest(pieces: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()
