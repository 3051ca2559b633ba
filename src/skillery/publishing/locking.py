"""The lock of a bundle whose skill needs packages: made with it, or given in it and verified."""

from __future__ import annotations

import asyncio
from functools import partial

from skillery.backends import Storage
from skillery.database import Database
from skillery.environments import Locks, check_python
from skillery.environments.lock_rows import lock_of_version
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, with_file
from skillery.formats.requirements import LOCK


async def with_lock(
    database: Database, storage: Storage, locks: Locks, limits: BundleLimits, bundle: Bundle, caller: str
) -> Bundle:
    """The bundle with its `requirements.lock`, which its digest counts. A version that is there keeps the lock that it
    has, so that the same files again are the same bundle. Raises as `Locks.make` and `Locks.verify`."""
    runtime = bundle.manifest.runtime
    if runtime is None:
        return bundle
    check_python(runtime.requires_python)
    if not runtime.dependencies:
        return bundle
    given = next((file for file in bundle.files if file.path == LOCK), None)
    look = partial(lock_of_version, storage=storage, name=bundle.manifest.name, version=bundle.manifest.version)
    digest, kept = await asyncio.to_thread(database.read_now, look)
    if digest:
        same = with_file(bundle, BundleFile(LOCK, kept), limits) if kept is not None and given is None else bundle
        if same.digest == digest or given is None:
            return same  # what is there, or a version that is taken: either way there is nothing to resolve
    if given is not None:
        await locks.verify(runtime.dependencies, given.content, caller)
        return bundle
    return with_file(bundle, BundleFile(LOCK, await locks.make(runtime.dependencies, caller)), limits)


def lock_of(bundle: Bundle) -> bytes | None:
    """What pins the packages of a bundle; None where it needs none."""
    runtime = bundle.manifest.runtime
    if runtime is None or not runtime.dependencies:
        return None
    return next((file.content for file in bundle.files if file.path == LOCK), None)
