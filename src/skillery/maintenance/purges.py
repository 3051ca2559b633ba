"""`purge_version`: the files of a version are removed from the database, the storage and the cache."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.contents.deletions import carry_out
from skillery.database import Database
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_sentence
from skillery.maintenance.garbage.steps import DeletedContents, delete_unused
from skillery.method import ExactVersion, Method, Params, Sentence, SkillName, about
from skillery.runs.cache import Cache
from skillery.versions.purges import Purged, purge


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

    def __init__(self, database: Database, storage: Storage, cache: Cache) -> None:
        self._database = database
        self._storage = storage
        self._cache = cache

    def purge_version(self, identity: Identity, name: str, version: Version, reason: str) -> PurgedVersion:
        """Remove the files of a version from the database, the storage and the cache of this machine. Blocking.

        The caches of other servers lose the files in their next sweep. Raise the errors of `versions.purges.purge`.
        """

        def work(connection: Connection) -> tuple[Purged, DeletedContents]:
            # One transaction: after a kill between two, a purge could not be repeated.
            purged = purge(connection, identity, name, version, reason)
            digests = {file.sha256 for file in purged.files} | {*purged.archives}
            return purged, delete_unused(connection, self._database.server, digests, waits=True)

        purged, deleted = self._database.erase_now(work)
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


async def purge_version(purger: Purger, identity: Identity, params: PurgeVersion) -> PurgedVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    reason = parse_sentence(params.reason, "reason")
    return await asyncio.to_thread(purger.purge_version, identity, name, version, reason)


METHODS = (Method(purge_version, "admin", audits="name"),)
