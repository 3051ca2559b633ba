"""What stored versions of earlier releases lack: statements of the registry, their `passed`, descriptions of scripts.

Statements are missing if the registry signed none when it stored the version: then each statement says `backfilled`.
Or the key that has signed them was revoked: then each statement says which one it `replaces`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select, update

from skillery import audit
from skillery.attestations.evidence import read_revoked
from skillery.attestations.policies import Policies
from skillery.attestations.predicates import Predicate, ci_provenance, publication_predicate, review_predicate
from skillery.attestations.signing import SignedStatement, Signing, insert_attestations
from skillery.audit import Actor
from skillery.backends import Identity, Provenance
from skillery.database import Database
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.registry import lock_skill_row, locking_skills
from skillery.database.tables import RESOLVABLE, attestations, signing_keys, skill_versions, skills
from skillery.errors import Busy, SkilleryError, StartupError, Unavailable
from skillery.formats.bundle import BundleFile, files_text
from skillery.formats.scripts import Script, language_of
from skillery.formats.semver import Version
from skillery.formats.timestamps import timestamp_text
from skillery.formats.version_spec import Exact
from skillery.identity.access import BUNDLER
from skillery.proof.dsse import ProofError
from skillery.proof.statements import check_files
from skillery.publishing.example_runs import stored_examples
from skillery.publishing.passing import REGISTRY, Judged, Passing, read_judged
from skillery.skills.files import files_of
from skillery.versions.checks import checks_json, checks_of

log = logging.getLogger(__name__)
AT_ONCE = 100
"""The number of versions in one transaction."""
PAUSE = 4
"""The descriptions of scripts pause this many times as long as they take."""
_DESCRIBED = "last described version"  # its id, as text


class Backfill(NamedTuple):
    """The result: the number of versions that got statements, and the versions that contradict their digest or their
    earlier statements.
    """

    signed: int
    wrong: Sequence[str]


class _Cause(NamedTuple):
    """The identity that caused an earlier statement."""

    name: str
    kind: str


class _Missing(NamedTuple):
    """A statement that is not signed, or only with a revoked key. `by` is the identity that caused it."""

    word: str
    by: Actor
    predicate: Predicate


class _Existing(NamedTuple):
    """A stored version, and its missing statements."""

    version_id: int
    name: str
    version: str
    digest: str
    missing: Sequence[_Missing]


async def attest_existing(database: Database, signing: Signing, policies: Policies, actor: Actor) -> Backfill:
    """Sign the publication, the CI job and the approval of all stored versions that never had such statements, and
    again the statements that only revoked keys have signed. Then sign `passed` for the published versions that have
    never had one, or one of a revoked key, and meet their policy.

    Servers may continue to run. If the command is interrupted, the next one continues. Raise StartupError if this home
    has no key, and the errors of `Signing.attest`.
    """
    last, signed, wrong = 0, set[int](), list[str]()
    while True:
        ids = database.read_now(partial(_read_ids, after=last))
        if not ids:
            break
        last = ids[-1]
        read = partial(_read_existing, ids=ids, builder=signing.builder, keyid=signing.keyid)
        versions, broken = database.read_now(read)
        wrong += broken
        statements = [(each, await _sign(signing, each, each.missing)) for each in versions]
        signed |= database.write_now(partial(_store, read=read, ids=ids, statements=statements, actor=actor))
        judge = partial(_judge, versions=versions, policies=policies, keyid=signing.keyid, actor=actor)
        judged = database.read_now(judge)
        passed = {
            each.version_id: await _sign(
                signing, each, [_Missing("passed", actor, _passed(judged[each.version_id], signing))]
            )
            for each in versions
            if each.version_id in judged
        }
        signed |= database.write_now(partial(_store_passed, judge=judge, judged=judged, passed=passed, actor=actor))
    return Backfill(len(signed), wrong)


async def _sign(signing: Signing, existing: _Existing, missing: Sequence[_Missing]) -> list[SignedStatement]:
    statements: list[SignedStatement] = []
    for word, by, predicate in missing:
        made = await signing.attest(by, existing.name, existing.version, existing.digest, {word: predicate})
        if not made:
            raise StartupError("this home does not have the key of the registry: nothing is signed")
        statements += made
    return statements


def _store(
    connection: Connection,
    read: Callable[[Connection], tuple[list[_Existing], list[str]]],
    ids: Sequence[int],
    statements: Sequence[tuple[_Existing, Sequence[SignedStatement]]],
    actor: Actor,
) -> set[int]:
    """Store the statements of the versions that have not changed since. Return the versions that got some."""
    _lock(connection, ids)
    present, signed = read(connection)[0], set()
    for existing, chosen in statements:
        if chosen and existing in present:
            insert_attestations(connection, existing.version_id, existing.digest, chosen)
            signed.add(existing.version_id)
    _record(connection, actor, signed)
    return signed


def _lock(connection: Connection, ids: Collection[int]) -> None:
    """Make purges and judgements of these versions wait, or make the caller see them."""
    of_versions = select(skill_versions.c.skill_id).where(skill_versions.c.id.in_(ids))
    connection.execute(locking_skills(skills.c.id.in_(of_versions)))


def _record(connection: Connection, actor: Actor, signed: Collection[int]) -> None:
    if signed:
        number = len(signed)
        audit.record(connection, actor, "attest_existing", f"{number} versions", after={"versions": number})


# -- `passed` of published versions ------------------------------------------------------------------------------------


def _judge(
    connection: Connection, versions: Sequence[_Existing], policies: Policies, keyid: str, actor: Actor
) -> dict[int, Judged]:
    """Return the published versions that meet their policy, and have never had a `passed` or one of a revoked key, by
    id.
    """
    ids = [each.version_id for each in versions]
    of_versions = attestations.c.version_id.in_(ids), attestations.c.predicate == "passed"
    decided = set(connection.scalars(select(attestations.c.version_id).where(*of_versions)))
    admin, met = Identity(actor.name, "person", frozenset({"admin"}), ()), {}
    for each in versions:
        if each.version_id in decided and not _has_lost_passed(connection, each.version_id, keyid):
            continue
        judged = read_judged(connection, admin, each.name, Exact(Version.parse(each.version)), policies, keyid)
        if judged.row.status in RESOLVABLE and not judged.verdict().missing:
            met[each.version_id] = judged
    return met


def _has_lost_passed(connection: Connection, version_id: int, keyid: str) -> bool:
    try:
        return any(each.word == "passed" for each in read_revoked(connection, version_id, keyid))
    except ProofError:  # `_read_existing` names the problem
        return False


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


def _read_existing(
    connection: Connection, ids: Sequence[int], builder: str, keyid: str
) -> tuple[list[_Existing], list[str]]:
    """Return the versions with their missing statements, and those that contradict their digest or their statements."""
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
            lost = _lost(connection, row, keyid)
        except ProofError as error:
            wrong.append(f"{row.name}@{row.version} {error}")
            continue
        missing = [
            _Missing(word, by, {**predicate, "backfilled": True})
            for word, by, predicate in _predicates(row, {path: file.sha256 for path, file in files.items()}, builder)
            if (row.id, word) not in present
        ]
        versions.append(_Existing(row.id, row.name, row.version, row.digest, [*missing, *lost]))
    return versions, wrong


def _lost(connection: Connection, row: Any, keyid: str) -> list[_Missing]:
    """Return the statements of a version that only a revoked key has signed, apart from `passed`.

    Each one must have the signature of that key: else, the owner of the database could change facts, and let the
    present key sign them. Raise ProofError if one has not, or if the row of the version names another publisher.
    """
    lost = read_revoked(connection, row.id, keyid)
    for each in lost:
        if each.word == "publication" and (each.by, each.kind) != (row.publisher, row.publisher_kind):
            raise ProofError(f"is published by '{row.publisher}', and its statement 'publication' by '{each.by}'")
    return [
        _Missing(each.word, _Cause(each.by, each.kind), {**each.predicate, "replaces": each.sha256})
        for each in lost
        if each.word != "passed"
    ]


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


# -- Descriptions of scripts -------------------------------------------------------------------------------------------


async def describe_stored(passing: Passing) -> None:
    """Describe the scripts of versions that an earlier release stored, and note the last one: the next start continues
    after it. Several servers may describe the same version: the first description stays.
    """
    try:
        while True:
            began_at = time.monotonic()
            last, undescribed = await asyncio.to_thread(passing.database.read_now, _read_undescribed)
            if last is None:
                return
            for each in undescribed:
                await _describe(passing, each)
            await passing.database.write(partial(_note_described, last=last))
            await asyncio.sleep(PAUSE * (time.monotonic() - began_at))
    except Exception:
        log.exception("the scripts of stored versions are described after the next start of this server")


async def _describe(passing: Passing, row: Any) -> None:
    checks, version = passing.checks, Version.parse(row.version)
    read = partial(checks.stored_publication, identity=BUNDLER, name=row.name, version=version)
    try:
        publication = await asyncio.to_thread(passing.database.read_now, read)
        skill, _, tools = stored_examples(publication, row.kind)
        files = [BundleFile(file.path, file.content, file.executable) for file in publication.files]
        scripts = await checks.undeclared.scripts(BUNDLER.name, skill.manifest, files, tools.values(), None)
        await passing.database.write(partial(_store_scripts, of=row, scripts=scripts))
    except (Busy, Unavailable):  # the next start tries again
        raise
    except SkilleryError as error:
        log.warning("the scripts of %s@%s cannot be described: %s", row.name, row.version, error.message)


def _read_undescribed(connection: Connection) -> tuple[int | None, list[Any]]:
    """Return the id of the last version that was read, or None after the last one, and those without descriptions."""
    columns, after = skill_versions.c, int(find_value(connection, _DESCRIBED) or 0)
    rows = connection.execute(
        select(columns.id, skills.c.name, columns.version, columns.kind, columns.checks_json, columns.manifest_json)
        .join(skills, skills.c.id == columns.skill_id)
        .where(columns.id > after, columns.status != "purged")
        .order_by(columns.id)
        .limit(AT_ONCE)
    ).all()
    undescribed = [
        row
        for row in rows
        if checks_of(row.checks_json).scripts is None
        and not (msgspec.json.decode(row.manifest_json).get("runtime") or {}).get("entrypoint")
        and any(language_of(file.path) for file in files_of(connection, row.id))
    ]
    return rows[-1].id if rows else None, undescribed


def _note_described(connection: Connection, last: int) -> None:
    forget_value(connection, _DESCRIBED)
    keep_value(connection, _DESCRIBED, str(last).encode())


def _store_scripts(connection: Connection, of: Any, scripts: Sequence[Script] | None) -> None:
    """Store descriptions of scripts, unless they were stored since, or the version was purged."""
    lock_skill_row(connection, of.name)
    is_stored = skill_versions.c.id == of.id, skill_versions.c.status != "purged"
    row = connection.execute(select(skill_versions.c.checks_json).where(*is_stored)).one_or_none()
    if row is not None and (checks := checks_of(row.checks_json)).scripts is None:
        described = msgspec.structs.replace(checks, scripts=scripts)
        connection.execute(update(skill_versions).where(*is_stored).values(checks_json=checks_json(described)))
