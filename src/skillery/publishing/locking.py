"""The lock of a bundle whose skill needs packages: made with it, or given in it and verified."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from skillery.backends import Storage
from skillery.database import Database
from skillery.environments import Locks, check_python
from skillery.environments.lock_rows import lock_of_version
from skillery.errors import InvalidManifest
from skillery.formats.bundle import SKILL_TOML, Bundle, BundleFile, BundleLimits, with_file
from skillery.formats.problems import Problem
from skillery.formats.requirements import LOCK, located


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


@contextmanager
def at_their_lines(files: Sequence[BundleFile]) -> Iterator[None]:
    """What turns out to be wrong with the dependencies says its line of the skill.toml among what was given."""
    try:
        yield
    except InvalidManifest as error:
        given = next((file for file in files if file.path == SKILL_TOML), None)
        if given is not None:
            text = given.content.decode("utf-8", "replace")
            error.data |= _located(error.data.get("problems", []), text)
        raise


def _located(problems: Any, skill_toml: str) -> dict[str, object]:
    found = [located(one, skill_toml) for one in msgspec.convert(problems, list[Problem])]
    first = next((one for one in found if one.file is not None and one.line is not None), None)
    place = {"file": first.file, "line": first.line} if first is not None else {}
    return {"problems": [one.as_data() for one in found], **place}


def lock_of(bundle: Bundle) -> bytes | None:
    """What pins the packages of a bundle; None where it needs none."""
    runtime = bundle.manifest.runtime
    if runtime is None or not runtime.dependencies:
        return None
    return next((file.content for file in bundle.files if file.path == LOCK), None)
