"""Statements of the registry from which a mirror has copied a version. They never meet a need of a policy."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, insert, select

from skillery.attestations.predicates import summary_of_envelope
from skillery.database.tables import origin_statements, skill_versions, skills
from skillery.formats.origins import read_document, statements_in
from skillery.formats.wording import one_line
from skillery.proof import STATED_BY
from skillery.proof.dsse import ProofError

log = logging.getLogger(__name__)


class ListedOriginStatement(msgspec.Struct, frozen=True):
    """A statement of another registry. `by` is the identity there that caused it, or "" if the statement names none."""

    predicate: str
    by: str
    keyid: str
    summary: str


class OriginStatements(msgspec.Struct, frozen=True):
    """The statements of the registry from which a version was copied. The importer has stated its address, `source`."""

    source: str
    name: str
    version: str
    digest: str
    statements: Sequence[ListedOriginStatement]


def keep_origin(connection: Connection, name: str, version: str, source: str, document: bytes) -> None:
    """Store the document of a version, which was checked with its files. It replaces an earlier one."""
    of_name = select(skill_versions.c.id).join(skills, skills.c.id == skill_versions.c.skill_id)
    version_id = connection.scalar(of_name.where(skills.c.name == name, skill_versions.c.version == version))
    connection.execute(delete(origin_statements).where(origin_statements.c.version_id == version_id))
    connection.execute(insert(origin_statements).values(version_id=version_id, source=source, document=document))


def find_origin(connection: Connection, version_id: int) -> bytes | None:
    """Return the document of a version, or None if no mirror has copied it with statements."""
    of_version = select(origin_statements.c.document).where(origin_statements.c.version_id == version_id)
    document = connection.scalar(of_version)
    return None if document is None else bytes(document)


def read_origin(connection: Connection, version_id: int, predicate: str = "") -> OriginStatements | None:
    """Return the statements of the origin of a version, or None without a document. With `predicate`, only its own."""
    of_version = select(origin_statements).where(origin_statements.c.version_id == version_id)
    row = connection.execute(of_version).one_or_none()
    if row is None:
        return None
    try:
        document = read_document(bytes(row.document))
        signed = [*statements_in(document)]
    except ProofError as error:
        log.warning("the document of the origin of the version %s %s", version_id, error)
        return None
    listed = [
        ListedOriginStatement(
            (word := each.statement.word or each.statement.predicate_type)[:255],
            str(each.statement.predicate.get(STATED_BY.get(word, ""), ""))[:255],
            each.keyids[0],
            one_line(summary_of_envelope(word, each.envelope), 300),
        )
        for each in signed
    ]
    chosen = [each for each in listed if predicate in ("", each.predicate)]
    digest = f"sha256:{signed[0].statement.subject[0].digest.get('sha256', '')}"
    return OriginStatements(row.source, document.name, document.version, digest, chosen)
