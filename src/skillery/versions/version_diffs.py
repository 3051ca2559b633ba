"""diff_versions: two versions of a skill compared."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.database.registry import Registry
from skillery.formats.version_diffs import Compared, DiffSide, FileFacts, VersionsDiff, compare_versions
from skillery.formats.version_spec import VersionSpec, parse_named, parse_version_spec
from skillery.method import Method, Params, about
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow
from skillery.skills.files import files_in, read_file


def read_diff(
    connection: Connection, identity: Identity, storage: Storage, *, name: str, old: VersionSpec, new: VersionSpec
) -> VersionsDiff:
    """Return the changes from the version `old` to the version `new` of the skill.

    Raise SkillNotFound, VersionNotFound or LabelNotFound if the identity does not see both versions.
    """
    versions = [resolve(connection, identity, name, spec) for spec in (old, new)]
    return compare_versions(*(_compared(connection, storage, version) for version in versions))


def digests_of(
    connection: Connection, identity: Identity, *, name: str, old: VersionSpec, new: VersionSpec
) -> tuple[str, str]:
    """Return the digests of two versions, which determine their differences. Raise the errors of `diff_versions`."""
    return resolve(connection, identity, name, old).digest, resolve(connection, identity, name, new).digest


def _compared(connection: Connection, storage: Storage, version: VersionRow) -> Compared:
    files = files_in(connection, version)
    provenance = msgspec.json.decode(version.provenance_json) if version.provenance_json else None
    return Compared(
        DiffSide(version.name, version.version, version.digest, provenance),
        msgspec.json.decode(version.whole_manifest_json),
        {file.path: FileFacts(file.sha256, file.size_bytes, file.executable) for file in files},
        partial(read_file, connection, storage, version),
    )


# -- diff_versions -----------------------------------------------------------------------------------------------------


class DiffVersions(Params, frozen=True, kw_only=True):
    """Compare two versions of a skill: permissions first, then manifest, instructions and files."""

    name: Annotated[str, about("Skill name")]
    from_version: Annotated[str, about("The older version, as a version spec: exact, range, label or digest")]
    to_version: Annotated[str, about("The newer version (omit for latest)")] = ""


async def diff_versions(registry: Registry, identity: Identity, params: DiffVersions) -> VersionsDiff:
    name, old = parse_named(params.name, params.from_version)
    new = parse_version_spec(params.to_version)
    work = partial(read_diff, identity=identity, storage=registry.storage, name=name, old=old, new=new)
    return await registry.read_and_compare(work)


METHODS = (Method(diff_versions, "read", audits="", develops=True),)
