"""create_skill, and approve_version, which publishes what create_skill left as a draft."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery import access
from skillery.backends import Identity, Moments, Publication, PublishedFile, Storage
from skillery.contents import is_inline, put_large
from skillery.database import Database
from skillery.errors import Refused, SkilleryError
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, make_bundle
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.publishing.compiling import look_apart
from skillery.quotas import Quotas
from skillery.registry import (
    NewVersion,
    Visibility,
    approve_version,
    files_of,
    insert_version,
    resolve,
    version_if_taken,
)
from skillery.registry.reading import read_file
from skillery.uploads import Uploading

log = logging.getLogger(__name__)

Landing = Literal["publish", "draft"]


class PublishingRules(NamedTuple):
    """How new versions and new skills begin."""

    people: Landing = "publish"
    agents: Landing = "publish"
    visibility: Visibility = "public"
    """Of a new skill."""

    def status_for(self, identity: Identity) -> str:
        landing = self.agents if identity.kind == "agent" else self.people
        return "draft" if landing == "draft" else "published"


class Publisher:
    """Publishes bundles into the registry."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        moments: Moments,
        limits: BundleLimits,
        rules: PublishingRules,
        most_of: Mapping[str, float],
        quotas: Quotas,
    ) -> None:
        """`most_of` is the server's maximum of each limit that a skill can ask for."""
        self._database = database
        self._storage = storage
        self._moments = moments
        self._limits = limits
        self._rules = rules
        self._most_of = most_of
        self._quotas = quotas

    async def create_skill(
        self,
        identity: Identity,
        manifest: Mapping[str, Any],
        skill_md: str,
        files: Sequence[BundleFile],
        rules: PublishingRules | None = None,
        quotas: Quotas | None = None,
    ) -> NewVersion:
        """All or nothing. Raises InvalidManifest, InvalidBundle, InvalidPath, BundleTooLarge, NotAllowed (no grant
        covers the name), NameTaken, VersionExists, Refused, QuotaExceeded.

        `rules` and `quotas` are the publisher's own unless others are given. A draft is the author's and the reviewers'
        alone.
        The same bundle again answers as the first time did.
        """
        bundle = await asyncio.to_thread(make_bundle, manifest, skill_md, files, self._limits, look_apart)
        bundle = msgspec.structs.replace(bundle, warnings=(*bundle.warnings, *self._limit_warnings(bundle)))
        # Before anything is said of what is there already.
        access.require_namespace(identity, "publish", bundle.manifest.name)
        taken = await self._database.read(partial(version_if_taken, bundle=bundle, identity=identity))
        if taken is not None:
            return taken
        publication = _publication(bundle, identity)
        await self._ask(publication)
        insert = partial(
            self._insert, bundle=bundle, identity=identity, rules=rules or self._rules, quotas=quotas or self._quotas
        )
        created = await self._store(bundle, insert)
        if created.status == "published":
            await self._moments.after_publish(publication)
        return created

    async def approve_version(
        self, identity: Identity, name: str, version: Version, digest: str | None, note: str
    ) -> NewVersion:
        """As the registry's `approve_version`; then the version is published, and whoever listens is told."""
        work = partial(approve_version, identity=identity, name=name, version=version, digest=digest, note=note)
        approved = await self._database.write(work)
        stored = partial(self._stored, identity=identity, name=name, version=version)
        try:
            publication = await asyncio.to_thread(self._database.read_now, stored)
        except SkilleryError:
            # It is published all the same: a storage that fails now takes nothing back.
            log.exception("after_publish was not told of %s %s", name, approved.version)
        else:
            await self._moments.after_publish(publication)
        return approved

    def _stored(self, connection: Connection, identity: Identity, name: str, version: Version) -> Publication:
        row = resolve(connection, identity, name, Exact(version))
        return Publication(
            name=row.name,
            version=row.version,
            digest=row.digest,
            manifest=msgspec.json.decode(row.manifest_json),
            files=tuple(
                PublishedFile(file.path, read_file(connection, self._storage, row, file.path), file.executable)
                for file in files_of(connection, row.version_id)
            ),
            identity=Identity(row.publisher, row.publisher_kind),
        )

    def _limit_warnings(self, bundle: Bundle) -> Iterator[str]:
        runtime = bundle.manifest.runtime
        for key, value in (runtime.limits if runtime else {}).items():
            if value > self._most_of[key]:
                yield (
                    f"runtime.limits.{key} is {value}, above this server's maximum of {self._most_of[key]} "
                    f"(max_limits.{key}): its runs get {self._most_of[key]}"
                )

    async def _ask(self, publication: Publication) -> None:
        findings = await self._moments.before_publish(publication)
        refusing = [finding for finding in findings if finding.severity == "error"]
        if refusing:
            first = refusing[0]
            raise Refused(
                f"'{publication.name}' {publication.version} is refused: {first.message}",
                hint="Mend what the findings name and publish again; nothing was stored.",
                findings=findings,
            )

    async def _store(self, bundle: Bundle, insert: Callable[[Connection], NewVersion]) -> NewVersion:
        """Large files first, rows last: a crash leaves an unused file, never a version without its files."""
        large = {file.sha256: file.content for file in bundle.files if not is_inline(file.size)}
        if not large:
            return await self._database.write(insert)
        upload = await asyncio.to_thread(Uploading, self._database, self._storage, large)

        def settle(connection: Connection) -> NewVersion:
            upload.settle(connection)
            return insert(connection)

        try:
            for sha256, content in large.items():
                await asyncio.to_thread(put_large, self._storage, sha256, content)
            return await self._database.write(settle)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(upload.give_up))
            raise

    def _insert(
        self, connection: Connection, bundle: Bundle, identity: Identity, rules: PublishingRules, quotas: Quotas
    ) -> NewVersion:
        inline = {file.sha256: file.content for file in bundle.files if is_inline(file.size)}
        status = rules.status_for(identity)
        return insert_version(
            connection, bundle, identity, inline, quotas=quotas, status=status, visibility=rules.visibility
        )


def _publication(bundle: Bundle, identity: Identity) -> Publication:
    return Publication(
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        manifest=bundle.manifest.raw,
        files=tuple(PublishedFile(file.path, file.content, file.executable) for file in bundle.files),
        identity=identity,
    )
