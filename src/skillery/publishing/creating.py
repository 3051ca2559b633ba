"""create_skill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Moments, Publication, PublishedFile, Storage
from skillery.contents import is_inline, put_large
from skillery.database import Database
from skillery.errors import Refused
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, make_bundle
from skillery.publishing.compiling import look_apart
from skillery.registry import NewVersion, insert_version, version_if_taken


class Publisher:
    """Publishes bundles into the registry."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        moments: Moments,
        limits: BundleLimits,
        most_of: Mapping[str, float],
    ) -> None:
        """`most_of` is the server's maximum of each limit that a skill can ask for."""
        self._database = database
        self._storage = storage
        self._moments = moments
        self._limits = limits
        self._most_of = most_of

    async def create_skill(
        self, identity: Identity, manifest: Mapping[str, Any], skill_md: str, files: Sequence[BundleFile]
    ) -> NewVersion:
        """All or nothing. Raises InvalidManifest, InvalidBundle, InvalidPath, BundleTooLarge, VersionExists, Refused.

        The same bundle again answers as the first time did.
        """
        bundle = await asyncio.to_thread(make_bundle, manifest, skill_md, files, self._limits, look_apart)
        bundle = msgspec.structs.replace(bundle, warnings=(*bundle.warnings, *self._limit_warnings(bundle)))
        taken = await self._database.read(partial(version_if_taken, bundle=bundle))
        if taken is not None:
            return taken
        publication = _publication(bundle, identity)
        await self._ask(publication)
        # Large files first, rows last: a crash leaves an unused file, never a version without its files.
        await asyncio.to_thread(self._store_large, bundle)
        created = await self._database.write(partial(self._insert, bundle=bundle, identity=identity))
        await self._moments.after_publish(publication)
        return created

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

    def _store_large(self, bundle: Bundle) -> None:
        for file in bundle.files:
            if not is_inline(file.size):
                put_large(self._storage, file.sha256, file.content)

    def _insert(self, connection: Connection, bundle: Bundle, identity: Identity) -> NewVersion:
        inline = {file.sha256: file.content for file in bundle.files if is_inline(file.size)}
        return insert_version(connection, bundle, identity, inline)


def _publication(bundle: Bundle, identity: Identity) -> Publication:
    return Publication(
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        manifest=bundle.manifest.raw,
        files=tuple(PublishedFile(file.path, file.content, file.executable) for file in bundle.files),
        identity=identity,
    )
