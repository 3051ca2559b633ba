"""What is known of a version as an Agent Skill. It follows from its files, is made when it is wanted, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database.tables import exports
from skillery.exports.contents import Contents
from skillery.formats.agent_skill import MAX_DESCRIPTION, AgentSkill, cut
from skillery.formats.archives import FORMS, Form, archive, fits_plain_tar
from skillery.formats.bundle import SKILL_MD, SKILL_TOML

MAKER = 1
"""Goes up with every change of formats.agent_skill or formats.archives that changes what they make."""

_FACTS = select(exports.c.facts_json).where(
    exports.c.version_id == bindparam("version"), exports.c.maker == bindparam("made_by")
)


class Facts(msgspec.Struct, frozen=True):
    """Digests are SHA-256 in hex. An Agent Skill is called by its index name: `name`."""

    name: str
    description: str
    skill_md: str
    skill_md_bytes: int
    is_generated: bool
    """SKILL.md is not what is stored: that does not conform."""
    archives: dict[Form, str]
    files: tuple[str, ...]

    @property
    def is_lone(self) -> bool:
        """There is nothing in it but SKILL.md, and the manifest that only a registry reads."""
        return set(self.files) <= {SKILL_MD, SKILL_TOML}

    @property
    def form(self) -> Form:
        """Of the archive that every reader understands."""
        return "tar.gz" if all(fits_plain_tar(path) for path in self.files) else "zip"


def make_facts(name: str, skill: AgentSkill, contents: Contents) -> Facts:
    """Blocking: every file is read."""
    entries = contents.entries()
    digests = {form: _digest(archive(form, entries, contents.read)) for form in FORMS}
    return Facts(
        name,
        # Clients count it in UTF-16, and leave out of an index what is too long for them.
        cut(skill.description, MAX_DESCRIPTION),
        hashlib.sha256(skill.content).hexdigest(),
        len(skill.content),
        skill.is_generated,
        digests,
        tuple(entry.path for entry in entries),
    )


def find_facts(connection: Connection, version_id: int) -> Facts | None:
    found = connection.scalar(_FACTS, {"version": version_id, "made_by": MAKER})
    return read_facts(found) if found else None


def read_facts(text: str) -> Facts:
    return msgspec.json.decode(text, type=Facts)


def keep_facts(connection: Connection, facts: Mapping[int, Facts]) -> None:
    """By version, in one order for everybody who makes the same."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    adding = dialect.insert(exports)
    new = {"maker": adding.excluded.maker, "facts_json": adding.excluded.facts_json}
    rows = [
        {"version_id": version_id, "maker": MAKER, "facts_json": msgspec.json.encode(one).decode()}
        for version_id, one in sorted(facts.items())
    ]
    connection.execute(adding.on_conflict_do_update(index_elements=["version_id"], set_=new), rows)


def _digest(pieces: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()
