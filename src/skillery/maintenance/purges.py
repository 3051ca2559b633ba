"""`purge_version`: the files of a version are removed from the database, the storage and the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, and_, delete, not_, or_, select, update

from skillery.audit import SERVER
from skillery.backends import Identity, Storage
from skillery.contents.deletions import carry_out
from skillery.contents.kept_contents import drop_packs, drop_transcripts
from skillery.database import Database
from skillery.database.tables import (
    advisories,
    attestations,
    blobs,
    dead_letters,
    eval_trials,
    evaluations,
    events,
    exports,
    idempotency_keys,
    objects,
    origin_statements,
    search_postings,
    search_spellings,
    search_vectors,
    skill_files,
    skill_versions,
    tools,
    version_closure,
    version_requires,
    version_steps,
)
from skillery.formats.names import parse_skill_name
from skillery.formats.search_fields import LEAST_LETTERS, search_fields
from skillery.formats.semver import Version
from skillery.formats.texts import parse_sentence
from skillery.formats.version_spec import Exact
from skillery.formats.words import FILLERS, spelt_words, stem_of
from skillery.identity import access
from skillery.identity.holds import refuse_held
from skillery.maintenance.garbage_steps import DeletedContents, delete_unused
from skillery.method import ExactVersion, Method, Params, Sentence, SkillName, about
from skillery.registry.resolution import resolve
from skillery.registry.searches import delete_searches, find_searches, recorded_searches, refuse_pending
from skillery.registry.version_rows import Severity, VersionRow
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.runs.cache import Cache
from skillery.skills.files import FileRow, files_of
from skillery.skills.search_index import erase_removed_words
from skillery.versions.dependents import tell_dependents
from skillery.versions.example_results import drop_results
from skillery.versions.lifecycle_steps import lock_skill, step_one
from skillery.versions.revocations import Outdated, Revocation, Revocations, new_advisory, store_revocation

# -- The rows of a purged version --------------------------------------------------------------------------------------


_AT_ONCE = 200
_EMPTIED = {
    "size_bytes": 0,
    "manifest_json": "{}",
    "frontmatter_json": "{}",
    "warnings_json": "[]",
    "names_json": "{}",
    "summary_json": "{}",
    "skill_md_start": None,
    "checks_json": None,
}


class Purged(NamedTuple):
    """The name, version, digest and former files of a purged version. The caller deletes the contents of the files."""

    name: str
    version: str
    digest: str
    files: list[FileRow]
    archives: list[str]
    """The SHA-256 of what the server has stored: archives of the version, results of its examples, all packs of Git."""


def find_purgeable(connection: Connection, identity: Identity, name: str, version: Version) -> VersionRow:
    """Return the version that `purge` would purge now. Raise the errors of `purge`."""
    access.require(identity, "admin")
    access.require_unreserved(identity, name)
    row = resolve(connection, identity, name, Exact(version), manages=True)
    refuse_held(connection, name, row.publisher, (row.version, row.version_id))
    return row


def purge(
    connection: Connection,
    identity: Identity,
    name: str,
    version: Version,
    revocation: Revocation,
    searches: Sequence[tuple[str, str]],
) -> Purged:
    """Delete the rows with everything that a version contains, and these searches. The caller then deletes unreferenced
    contents.

    Call this function through `Database.erase_now`. The row of the version stays, with its number, digest, author, time
    and the reason of the `revocation`. Raise NotAllowed if the identity is not an admin or the name is reserved,
    SkillNotFound or VersionNotFound if there is no such version, VersionPurged if the version was purged before,
    and Conflict if a hold keeps it.
    """
    # Under the lock: a version that was published after `revocation` was prepared needs an advisory.
    lock_skill(connection, identity, name)
    before = find_purgeable(connection, identity, name, version)
    if before.status != revocation.row.status:
        raise Outdated
    files = files_of(connection, before.version_id)
    summary = connection.scalars(select(skill_versions.c.summary_json).where(skill_versions.c.id == before.version_id))
    # The search and the offered tools then use the latest other version.
    purged = step_one(
        connection, identity, name, version, "purge", note=revocation.reason, advisory=revocation.advisory
    )
    archives = _archives(connection, before.version_id)
    of_version = skill_versions.c.id == before.version_id
    connection.execute(update(skill_versions).where(of_version).values(_EMPTIED))
    of_vector = search_vectors.c.version_id == before.version_id
    connection.execute(update(search_vectors).where(of_vector).values(vector=None))
    results = drop_results(connection, before.version_id)
    # Trials quote results of runs, and cases of their suite.
    is_suite = evaluations.c.suite == f"{before.name}@{before.version}"
    concerned = or_(evaluations.c.version_id == before.version_id, is_suite)
    evaluated = select(evaluations.c.id).where(concerned)
    connection.execute(delete(eval_trials).where(eval_trials.c.evaluation_id.in_(evaluated)))
    results += drop_transcripts(connection, concerned)
    connection.execute(delete(evaluations).where(concerned))
    for table in (skill_files, exports, tools, origin_statements):
        connection.execute(delete(table).where(table.c.version_id == before.version_id))
    erase_removed_words(connection)
    _forget_spellings(connection, name, msgspec.json.decode(summary.one()))
    # The answer to a repeated create_skill would quote the findings of its checks.
    quotes_version = idempotency_keys.c.result_json.contains(purged.digest, autoescape=True)
    connection.execute(delete(idempotency_keys).where(quotes_version))
    of_attestation = attestations.c.version_id == before.version_id
    connection.execute(update(attestations).where(of_attestation).values(envelope=""))
    connection.execute(update(advisories).where(advisories.c.version_id == before.version_id).values(reason=""))
    store_revocation(connection, revocation)
    tell_dependents(connection, identity, before, "purged", revocation.reason)
    for table in (version_closure, version_requires):
        connection.execute(delete(table).where(table.c.version_id == before.version_id))
    delete_searches(connection, searches)
    earlier_steps = version_steps.c.version_id == before.version_id, version_steps.c.step != "purge"
    connection.execute(update(version_steps).where(*earlier_steps).values(note=""))
    _forget_texts(connection, name, purged.version)
    connection.execute(delete(blobs).where(blobs.c.owner == SERVER.name, blobs.c.sha256.in_(archives)))
    return Purged(purged.name, purged.version, purged.digest, files, [*archives, *results, *drop_packs(connection)])


def _archives(connection: Connection, version_id: int) -> list[str]:
    """Return the SHA-256 of the stored archives of a version."""
    facts = connection.scalar(select(exports.c.facts_json).where(exports.c.version_id == version_id))
    return sorted(msgspec.json.decode(facts)["archives"].values()) if facts else []


def _forget_texts(connection: Connection, name: str, version: str) -> None:
    """Empty the findings and notes about a version in stored events and dead letters, because they may quote files.

    The events stay, with their numbers.
    """
    texts: dict[str, object] = {"findings": [], "note": ""}
    for table, id_column in ((events, events.c.seq), (dead_letters, dead_letters.c.id)):
        stored = select(id_column, table.c.data_json).where(table.c.skill == name)
        for row_id, data_json in connection.execute(stored).all():
            data = msgspec.json.decode(data_json)
            if data.get("version") == version:
                data |= {field: empty for field, empty in texts.items() if field in data}
                emptied = msgspec.json.encode(data).decode()
                connection.execute(update(table).where(id_column == row_id).values(data_json=emptied))


def _forget_spellings(connection: Connection, name: str, summary: dict[str, Any]) -> None:
    """Delete the spellings of the version's words that no skill has any longer."""
    spellings = search_fields(name, summary["description"], summary["tags"]).spellings
    words = sorted(spellings)
    for start in range(0, len(words), _AT_ONCE):
        is_in_batch = search_spellings.c.word.in_(words[start : start + _AT_ONCE])
        is_used = select(search_postings.c.word).where(search_postings.c.word == search_spellings.c.stem).exists()
        connection.execute(delete(search_spellings).where(and_(is_in_batch, not_(is_used))))


# -- Searches for texts of the version: their words would stay for 90 days ---------------------------------------------


def _find_leak(connection: Connection, identity: Identity, name: str, version: Version) -> Sequence[tuple[str, str]]:
    """Return the recorded searches with words of a version that the index has of no other skill.

    The texts are the description, tags, SKILL.md, paths and small files. Raise the errors of `purge`.
    """
    row = find_purgeable(connection, identity, name, version)
    recorded = {word for _, text in recorded_searches(connection) for word in spelt_words(text)}
    searched = {word for word in recorded - FILLERS if len(word) >= LEAST_LETTERS}
    files = files_of(connection, row.version_id) if searched else []
    texts = select(skill_versions.c.summary_json, skill_versions.c.skill_md_start)
    [(summary, start)] = connection.execute(texts.where(skill_versions.c.id == row.version_id))
    words = searched.intersection(spelt_words("\n".join([summary, start or "", *(file.path for file in files)])))
    for at in range(0, len(files), _AT_ONCE):
        is_file = objects.c.sha256.in_([file.sha256 for file in files[at : at + _AT_ONCE]])
        for data in connection.scalars(select(objects.c.data).where(is_file)):
            words |= searched.intersection(spelt_words(bytes(data or b"").decode(errors="replace")))
    return find_searches(connection, words - _known_words(connection, name, sorted(words)))


def _known_words(connection: Connection, name: str, words: Sequence[str]) -> set[str]:
    """Return those of the words that another skill has in its name, description or tags."""
    known = set[str]()
    for at in range(0, len(words), _AT_ONCE):
        batch = words[at : at + _AT_ONCE]
        is_in_batch = search_postings.c.word.in_({stem_of(word) for word in batch})
        posted = select(search_postings.c.word).where(is_in_batch, search_postings.c.name != name).distinct()
        stems = set(connection.scalars(posted))
        known.update(word for word in batch if stem_of(word) in stems)
    return known


# -- The purge with the files of the storage and of the cache ----------------------------------------------------------


class PurgedVersion(msgspec.Struct, frozen=True):
    """A purged version. Its number cannot be used again, and its digest stays known."""

    name: str
    version: str
    digest: str
    status: Literal["purged"]
    deleted_contents: int
    deleted_bytes: int
    kept_files: list[str]
    """The paths of files whose contents remain, because other versions, blobs or workspaces have the same contents."""


class Purger:
    """Purges versions. If the server dies before it deletes files of the storage, its next start deletes them."""

    def __init__(self, database: Database, storage: Storage, cache: Cache, revocations: Revocations) -> None:
        self._revocations = revocations
        self._database = database
        self._storage = storage
        self._cache = cache

    async def purge_version(
        self, identity: Identity, name: str, version: Version, severity: Severity, reason: str
    ) -> PurgedVersion:
        """Remove the files of a version from the database, the storage and the cache of this machine, and store the
        advisory about it.

        The caches of other servers lose the files in their next sweep. Raise the errors of `purge`, and Busy if the
        signer cannot be reached.
        """
        await asyncio.to_thread(self._database.write_now, refuse_pending)
        find_leak = partial(_find_leak, identity=identity, name=name, version=version)
        searches = await asyncio.to_thread(self._database.read_now, find_leak)

        def prepare(connection: Connection) -> Revocation:
            row = find_purgeable(connection, identity, name, version)
            # An advisory would show unpublished versions to readers of the feed.
            advisory = new_advisory(connection, severity) if row.status in WAS_PUBLISHED else {}
            return Revocation(row, "purge", reason, advisory)

        def work(connection: Connection, revocation: Revocation) -> tuple[Purged, DeletedContents]:
            # One transaction: after a kill between two, a purge could not be repeated.
            purged = purge(connection, identity, name, version, revocation, searches)
            digests = {file.sha256 for file in purged.files} | {*purged.archives}
            return purged, delete_unused(connection, self._database.server, digests, waits=True)

        def store(revocation: Revocation) -> Awaitable[tuple[Purged, DeletedContents]]:
            return asyncio.to_thread(self._database.erase_now, partial(work, revocation=revocation))

        purged, deleted = await self._revocations.revoke(identity, prepare, store)
        return await asyncio.to_thread(self._delete_files, purged, deleted)

    def _delete_files(self, purged: Purged, deleted: DeletedContents) -> PurgedVersion:
        self._database.empty_log()
        self._cache.drop_bundles([purged.digest])
        carry_out(self._database, self._storage, deleted.claimed)
        shared_paths = [file.path for file in purged.files if file.sha256 not in deleted.digests]
        return PurgedVersion(
            purged.name, purged.version, purged.digest, "purged", deleted.swept.count, deleted.swept.bytes, shared_paths
        )


# -- purge_version -----------------------------------------------------------------------------------------------------


class PurgeVersion(Params, frozen=True, kw_only=True):
    """Remove the files of a version permanently, for example after a leaked key. Its number cannot be used again."""

    name: SkillName
    version: ExactVersion
    reason: Annotated[Sentence, about("Reason, for all readers of the skill")]
    severity: Annotated[Literal["security", "malicious"], about("Severity of the advisory")] = "security"


async def purge_version(purger: Purger, identity: Identity, params: PurgeVersion) -> PurgedVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    reason = parse_sentence(params.reason, "reason")
    return await purger.purge_version(identity, name, version, params.severity, reason)


METHODS = (Method(purge_version, "admin", audits="name"),)
