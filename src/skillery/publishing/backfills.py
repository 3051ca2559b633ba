"""Statements about versions that were stored before the registry signed statements, and their `passed`. Each one says
`backfilled`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from skillery import audit
from skillery.attestations.policies import Policies
from skillery.attestations.predicates import Predicate, ci_provenance, publication_predicate, review_predicate
from skillery.attestations.signing import SignedStatement, Signing, insert_attestations
from skillery.audit import Actor
from skillery.backends import Identity, Provenance
from skillery.database import Database
from skillery.database.tables import attestations, signing_keys, skill_versions, skills
from skillery.errors import StartupError
from skillery.formats.bundle import files_text
from skillery.formats.semver import Version
from skillery.formats.timestamps import timestamp_text
from skillery.formats.version_spec import Exact
from skillery.proof.dsse import ProofError
from skillery.proof.statements import check_files
from skillery.publishing.passing import REGISTRY, Judged, read_judged
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.skills.files import files_of

AT_ONCE = 100
"""The number of versions in one transaction."""


class Backfill(NamedTuple):
    """The result: the number of versions that got statements, and the versions whose files have another digest."""

    signed: int
    wrong: Sequence[str]


class _Existing(NamedTuple):
    """A stored version, and its missing statements: the identity that caused each one, and the predicate."""

    version_id: int
    name: str
    version: str
    digest: str
    missing: Mapping[str, tuple[Actor, Predicate]]


async def attest_existing(database: Database, signing: Signing, policies: Policies, actor: Actor) -> Backfill:
    """Sign the publication, the CI job and the approval of all stored versions that never had such statements. Then
    sign `passed` for the published versions that have never had one, and meet their policy.

    Servers may continue to run. If the command is interrupted, the next one continues. Raise StartupError if this home
    has no key, and the errors of `Signing.attest`.
    """
    last, signed, wrong = 0, set[int](), list[str]()
    while True:
        ids = database.read_now(partial(_read_ids, after=last))
        if not ids:
            break
        last = ids[-1]
        versions, broken = database.read_now(partial(_read_existing, ids=ids, builder=signing.builder))
        wrong += broken
        statements = {each.version_id: await _sign(signing, each, each.missing) for each in versions}
        work = partial(_store, ids=ids, builder=signing.builder, statements=statements, actor=actor)
        signed |= database.write_now(work)
        judge = partial(_judge, versions=versions, policies=policies, keyid=signing.keyid, actor=actor)
        judged = database.read_now(judge)
        passed = {
            each.version_id: await _sign(signing, each, {"passed": (actor, _passed(judged[each.version_id], signing))})
            for each in versions
            if each.version_id in judged
        }
        signed |= database.write_now(partial(_store_passed, judge=judge, judged=judged, passed=passed, actor=actor))
    return Backfill(len(signed), wrong)


async def _sign(
    signing: Signing, existing: _Existing, predicates: Mapping[str, tuple[Actor, Predicate]]
) -> list[SignedStatement]:
    statements: list[SignedStatement] = []
    for word, (by, predicate) in predicates.items():
        made = await signing.attest(by, existing.name, existing.version, existing.digest, {word: predicate})
        if not made:
            raise StartupError("this home does not have the key of the registry: nothing is signed")
        statements += made
    return statements


def _store(
    connection: Connection,
    ids: Sequence[int],
    builder: str,
    statements: Mapping[int, Sequence[SignedStatement]],
    actor: Actor,
) -> set[int]:
    """Store the statements that are still missing. Return the versions that got some."""
    _lock(connection, ids)
    signed = set()
    for existing in _read_existing(connection, ids, builder)[0]:
        chosen = [each for each in statements.get(existing.version_id, ()) if each.word in existing.missing]
        if chosen:
            insert_attestations(connection, existing.version_id, existing.digest, chosen)
            signed.add(existing.version_id)
    _record(connection, actor, signed)
    return signed


def _lock(connection: Connection, ids: Collection[int]) -> None:
    """Make purges and judgements of these versions wait, or make the caller see them."""
    of_versions = select(skill_versions.c.skill_id).where(skill_versions.c.id.in_(ids))
    connection.execute(select(skills.c.id).where(skills.c.id.in_(of_versions)).order_by(skills.c.id).with_for_update())


def _record(connection: Connection, actor: Actor, signed: Collection[int]) -> None:
    if signed:
        number = len(signed)
        audit.record(connection, actor, "attest_existing", f"{number} versions", after={"versions": number})


# -- `passed` of published versions ------------------------------------------------------------------------------------


def _judge(
    connection: Connection, versions: Sequence[_Existing], policies: Policies, keyid: str, actor: Actor
) -> dict[int, Judged]:
    """Return the published versions that meet their policy and have never had a `passed`, by id."""
    ids = [each.version_id for each in versions]
    of_versions = attestations.c.version_id.in_(ids), attestations.c.predicate == "passed"
    decided = set(connection.scalars(select(attestations.c.version_id).where(*of_versions)))
    admin, met = Identity(actor.name, "person", frozenset({"admin"}), ()), {}
    for each in versions:
        if each.version_id in decided:
            continue
        judged = read_judged(connection, admin, each.name, Exact(Version.parse(each.version)), policies, keyid)
        if judged.row.status in WAS_PUBLISHED and not judged.verdict().missing:
            met[each.version_id] = judged
    return met


def _passed(judged: Judged, signing: Signing) -> Predicate:
    summary = judged.verdict().summary(judged.row.name, judged.row.version, signing.builder or REGISTRY)
    return {**summary, "backfilled": True}


def _store_passed(
    connection: Connection,
    judge: Callable[[Connection], dict[int, Judged]],
    judged: Mapping[int, Judged],
    passed: Mapping[int, Sequence[SignedStatement]],
    actor: Actor,
) -> set[int]:
    """Store each `passed` whose evidence has not changed. Return its versions."""
    _lock(connection, passed)
    present = judge(connection)
    signed = {key for key in passed if key in present and present[key][1:] == judged[key][1:]}
    for version_id in sorted(signed):
        insert_attestations(connection, version_id, present[version_id].row.digest, passed[version_id])
    _record(connection, actor, signed)
    return signed


def _read_ids(connection: Connection, after: int) -> list[int]:
    next_ids = select(skill_versions.c.id).where(skill_versions.c.id > after, skill_versions.c.status != "purged")
    return list(connection.scalars(next_ids.order_by(skill_versions.c.id).limit(AT_ONCE)))


def _read_existing(connection: Connection, ids: Sequence[int], builder: str) -> tuple[list[_Existing], list[str]]:
    """Return the versions with their missing statements, and those whose files do not have their digest."""
    columns = skill_versions.c
    # A withdrawn statement is not missing.
    words = (
        select(attestations.c.version_id, attestations.c.predicate)
        .join(signing_keys, signing_keys.c.id == attestations.c.key_id)
        .where(attestations.c.version_id.in_(ids), signing_keys.c.holder == "server")
    )
    present = {(row.version_id, row.predicate) for row in connection.execute(words)}
    rows = connection.execute(
        select(skill_versions, skills.c.name, skills.c.visibility)
        .join(skills, skills.c.id == columns.skill_id)
        .where(columns.id.in_(ids), columns.status != "purged")
        .order_by(columns.id)
    )
    versions, wrong = [], []
    for row in rows:
        files = {file.path: file for file in files_of(connection, row.id)}
        try:
            check_files(files_text((file.path, file.sha256, file.executable) for file in files.values()), row.digest)
        except ProofError as error:
            wrong.append(f"{row.name}@{row.version} {error}")
            continue
        missing = {
            word: (by, {**predicate, "backfilled": True})
            for word, by, predicate in _predicates(row, {path: file.sha256 for path, file in files.items()}, builder)
            if (row.id, word) not in present
        }
        versions.append(_Existing(row.id, row.name, row.version, row.digest, missing))
    return versions, wrong


def _predicates(row: Any, files: Mapping[str, str], builder: str) -> Iterator[tuple[str, Actor, Predicate]]:
    """Yield the word, the identity and the predicate of each statement that the row of a version proves."""
    publisher = Identity(row.publisher, row.publisher_kind, frozenset(), ())
    publication = publication_predicate(files, publisher, row.made_by, row.visibility)
    yield "publication", publisher, {**publication, "at": timestamp_text(row.created_at)}
    if row.provenance_json:
        yield "provenance", publisher, ci_provenance(msgspec.json.decode(row.provenance_json, type=Provenance), builder)
    approval = msgspec.json.decode(row.standing_json or "{}").get("approval")
    if approval and approval["digest"] == row.digest:
        reviewer = Identity(approval["by"], approval["kind"], frozenset(), ())
        review = review_predicate(reviewer, "approved", approval["note"], None)
        yield "review", reviewer, {**review, "at": approval["at"]}
