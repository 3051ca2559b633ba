"""Insertion of a version: all its rows are inserted in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, bindparam, exists, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.attestations.signing import SignedStatement, insert_attestations
from skillery.backends import Identity
from skillery.contents.store import record
from skillery.database import Change, Database, Statement, take_turns
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.migrate import REBUILD, REBUILD_AGAIN, is_newer
from skillery.database.registry import locking_skills
from skillery.database.tables import RESOLVABLE, skill_files, skill_versions, skills
from skillery.errors import NameTaken, SkilleryError, StartupError, VersionExists
from skillery.formats.bundle import Bundle, BundleFile
from skillery.formats.check_results import PermissionsDiff
from skillery.formats.semver import Version
from skillery.identity.quotas import Quotas, check_bundle
from skillery.registry.index_names import claim_first, claim_index_name
from skillery.registry.requires import Required, calls_of, insert_requires
from skillery.registry.tool_rows import add_missing_tools, add_tools, offer_latest
from skillery.registry.version_rows import VersionValues, record_new_version, values_of
from skillery.registry.visibility import Visibility, sees_skill, sees_version
from skillery.skills.catalogue_rows import add_first, update_catalogue
from skillery.skills.search_index import index_first, index_latest
from skillery.versions.checks import (
    NOTHING,
    Checks,
    checks_json,
    compare_permissions,
    compare_with_none,
    record_runs,
)

# Built once, with values given at execution, so that SQLAlchemy finds each statement compiled.
_TAKEN = Statement(
    select(
        skill_versions.c.version,
        skill_versions.c.digest,
        skill_versions.c.status,
        skill_versions.c.publisher,
        skill_versions.c.skill_id,
    )
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(skills.c.name == bindparam("name"), skill_versions.c.precedence == bindparam("precedence"))
)
# A skill without versions was added by this very transaction, and belongs to no other publisher yet.
_SKILL_WITH_VERSIONS = Statement(
    select(skills.c.id, skills.c.visibility).where(
        skills.c.name == bindparam("name"), exists().where(skill_versions.c.skill_id == skills.c.id)
    )
)
_ADD_SKILL = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(skills)
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(skills.c.id)
        for dialect in (sqlite, postgresql)
    },
    ("name", "created_at", "visibility"),
)
_LOCK_SKILL = Statement(locking_skills(skills.c.name == bindparam("name")))
_ADD_VERSION = Change(insert(skill_versions).returning(skill_versions.c.id), VersionValues._fields)
_ADD_FILES = Change(insert(skill_files), ("version_id", "path", "sha256", "size_bytes", "executable"))
_NEWEST = (
    select(skill_versions.c.id, skill_versions.c.namespace)
    .where(skill_versions.c.skill_id == bindparam("id"), skill_versions.c.status.in_(RESOLVABLE))
    .order_by(skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc())
    .limit(1)
)
_POINT = Change(
    update(skills)
    .where(skills.c.id == bindparam("skill_id"))
    .values(latest_version_id=bindparam("latest"), namespace=bindparam("in_namespace"))
)
_POINT_TO_NONE = update(skills).where(skills.c.id == bindparam("skill_id")).values(latest_version_id=None)

SKILLS_AT_ONCE = 50
"""The skills whose derived rows one transaction of SQLite computes again."""

Landing = Callable[[PermissionsDiff], str]
"""Function that returns the first status of a version from its permissions diff with other versions of the skill."""


class NewVersion(msgspec.Struct, frozen=True):
    """The answer of `create_skill` and of each step of a version."""

    name: str
    version: str
    digest: str
    status: str


def version_if_taken(connection: Connection, bundle: Bundle, identity: Identity) -> NewVersion | None:
    """Return the stored version with the name, version and digest of the bundle, or None if there is no such version.

    Raise NameTaken if the identity may not see the skill. Raise VersionExists if the stored version has another digest,
    or if the identity may not see the stored version. The errors tell an unauthorised publisher only that the name or
    the version is taken.
    """
    manifest = bundle.manifest
    if _visibility(connection, identity, manifest.name) is None:
        return None
    rows = _TAKEN.rows(connection, name=manifest.name, precedence=manifest.version.precedence)
    if not rows:
        return None
    version, digest, status, publisher, skill_id = rows[0]
    is_seen = sees_version(identity, manifest.name, status, publisher)
    if is_seen and digest == bundle.digest and status != "purged":
        return NewVersion(manifest.name, version, digest, status)
    free = _next_free(connection, skill_id, manifest.version)
    problem = "was purged" if status == "purged" else "exists already" + (" with other contents" if is_seen else "")
    raise VersionExists(
        f"'{manifest.name}' {version} {problem}",
        hint=f"A version is never reused. Publish the change as {free}.",
        name=manifest.name,
        version=version,
        **({"digest": digest} if is_seen else {}),
        next_version=free,
    )


def state_of(connection: Connection, bundle: Bundle, identity: Identity) -> tuple[NewVersion | None, Visibility | None]:
    """Return the result of `version_if_taken`, and the visibility of the skill, or None for a new skill.

    Raise the errors of `version_if_taken`.
    """
    visibility = _visibility(connection, identity, bundle.manifest.name)
    return (version_if_taken(connection, bundle, identity) if visibility else None), visibility


def diff_of(connection: Connection, bundle: Bundle, requires: Sequence[Required], *, is_new: bool) -> PermissionsDiff:
    """Return the permissions diff of a new version with other versions of its skill."""
    manifest, calls = bundle.manifest, calls_of(requires)
    return compare_with_none(manifest, calls) if is_new else compare_permissions(connection, manifest, calls)


def _visibility(connection: Connection, identity: Identity, name: str) -> Visibility | None:
    """Return the visibility of a skill with versions, else None. Raise NameTaken if the identity may not see the
    skill.
    """
    rows = _SKILL_WITH_VERSIONS.rows(connection, name=name)
    if rows and not sees_skill(connection, identity, rows[0][0], name, rows[0][1]):
        raise NameTaken(f"the name '{name}' is taken", hint="Publish under another name.", name=name)
    return rows[0][1] if rows else None


def insert_version(
    connection: Connection,
    bundle: Bundle,
    identity: Identity,
    inline: Mapping[str, bytes],
    *,
    quotas: Quotas,
    landing: Landing = lambda _: "published",
    visibility: Visibility = "public",
    checks: Checks = NOTHING,
    made_by: str | None = None,
    statements: Sequence[SignedStatement] = (),
    requires: Sequence[Required] = (),
) -> NewVersion:
    """Insert a version, or return the stored version if it has the same bundle.

    The large files must be in the storage already; `inline` has the contents of the small files by digest. `landing`
    returns the first status; while it runs, no other transaction publishes a version of the skill. `visibility` applies
    if the skill is new. `made_by` is the method that generated the bundle, or None. `statements` are signed statements
    about the version, and `requires` the versions that it requires. Raise the errors of `version_if_taken`, and
    QuotaExceeded if the bundle exceeds a quota.
    """
    name = bundle.manifest.name
    skill_id, is_new = _lock_skill(connection, name, visibility)
    # A skill that this transaction adds has no versions: an import of thousands saves one query for each.
    taken = None if is_new else version_if_taken(connection, bundle, identity)
    if taken is not None:
        return taken
    check_bundle(connection, quotas, name, bundle.size_bytes)
    diff = diff_of(connection, bundle, requires, is_new=is_new)
    status = landing(diff)
    if diff.is_change:
        checks = msgspec.structs.replace(checks, permissions_diff=diff)
    values = values_of(bundle, identity, skill_id, status, checks_json(checks), made_by)
    version_id = int(_ADD_VERSION.returned(connection, **values._asdict())[0])
    record(connection, [(file.sha256, file.size, inline.get(file.sha256)) for file in bundle.files])
    _ADD_FILES.run_many(connection, [_file_values(version_id, file) for file in bundle.files])
    add_tools(connection, version_id, skill_id, bundle)
    insert_requires(connection, version_id, bundle.manifest.requires, requires)
    # A version that is not published yet can meet its policy: it waits for a review, so it has no `passed`.
    about_status = [each for each in statements if each.word != "passed" or status == "published"]
    insert_attestations(connection, version_id, bundle.digest, about_status)
    record_runs(connection, version_id, checks)
    if is_new:
        _add_derived_rows(connection, bundle, values, version_id, visibility)
    else:
        point_to_latest(connection, skill_id)
    created = NewVersion(name, str(bundle.manifest.version), bundle.digest, status)
    optional_fields = {"made_by": made_by, "provenance": identity.provenance}
    after = {
        "status": status,
        "digest": bundle.digest,
        **{field: value for field, value in optional_fields.items() if value},
    }
    audit.record(connection, identity, "create_skill", f"{name}@{created.version}", after=after)
    about = {"version": created.version, "digest": created.digest, "status": status, "publisher": identity.name}
    record_new_version(connection, identity, name, checks.findings, **about)
    return created


def point_to_latest(connection: Connection, skill_id: int, *, rebuild: bool = False) -> None:
    """Determine the latest version of a skill: the highest published release, else the highest published pre-release,
    or none.

    Update the search, the offered tools and the catalogue for it. Deprecated versions count as published. With
    `rebuild`, compute all rows of these again.
    """
    if rebuild:
        index_latest(connection, skill_id, None)
    newest = connection.execute(_NEWEST, {"id": skill_id}).one_or_none()
    if newest is not None:
        _point_to(connection, skill_id, newest.id, newest.namespace)
    else:
        connection.execute(_POINT_TO_NONE, {"skill_id": skill_id})
        index_latest(connection, skill_id, None)
        offer_latest(connection, skill_id, None)
    update_catalogue(connection, skill_id, rebuild=rebuild)


def rebuild_derived_rows(database: Database) -> None:
    """Compute all rows that are derived from versions again, if a migration has requested it. This takes about 3 ms a
    skill.

    A migration that adds or changes such rows inserts REBUILD into the table `registry`. It does not call this code,
    which writes the columns of the newest revision. Raise StartupError if the database fails.
    """
    try:
        if database.read_now(is_rebuild_pending):
            while database.write_now(rebuild_some):
                pass
    except SkilleryError as error:
        raise StartupError(f"the rows that are derived from versions cannot be computed: {error.message}") from None


def is_rebuild_pending(connection: Connection) -> bool:
    """Return whether a migration has asked for `rebuild_derived_rows`, which has not ended since, and this release may
    do it.
    """
    return find_value(connection, REBUILD) is not None and not is_newer(connection)


def request_rebuild(connection: Connection) -> None:
    """Request a rebuild after an upgrade: servers of the previous release wrote derived rows without new columns."""
    take_turns(connection, "rebuild", "")
    forget_value(connection, REBUILD_AGAIN)
    keep_value(connection, REBUILD, b"")


def rebuild_some(connection: Connection) -> bool:
    """Compute the derived rows of the next skills. Return whether this was not the end. Several servers share the work.

    On Postgres, each skill has its own transaction, because publishers lock the rows of one skill at a time.
    """
    take_turns(connection, "rebuild", "")
    last_id = find_value(connection, REBUILD)
    if last_id is None:
        return False
    if not last_id:
        add_missing_tools(connection)
    following = select(skills.c.id).where(skills.c.id > int(last_id or 0)).order_by(skills.c.id)
    at_once = 1 if connection.dialect.name == "postgresql" else SKILLS_AT_ONCE
    skill_ids = list(connection.scalars(following.limit(at_once).with_for_update()))
    for skill_id in skill_ids:
        point_to_latest(connection, skill_id, rebuild=True)
    forget_value(connection, REBUILD)
    if skill_ids:
        keep_value(connection, REBUILD, str(skill_ids[-1]).encode())
    return bool(skill_ids)


def _point_to(connection: Connection, skill_id: int, version_id: int, namespace: str) -> None:
    """Make a version the latest version of the skill, in the search and the offered tools too."""
    _POINT.run_later(connection, skill_id=skill_id, latest=version_id, in_namespace=namespace)
    claim_index_name(connection, skill_id)
    index_latest(connection, skill_id, version_id)
    offer_latest(connection, skill_id, version_id)


def _add_derived_rows(
    connection: Connection, bundle: Bundle, values: VersionValues, version_id: int, visibility: Visibility
) -> None:
    """Insert the rows that are derived from the first version of a skill: index name, search, tools and catalogue.

    The rows of the skill are not read, because there are none yet, and each read is another round trip to Postgres.
    """
    skill_id, name = values.skill_id, bundle.manifest.name
    if values.status in RESOLVABLE:
        _POINT.run_later(connection, skill_id=skill_id, latest=version_id, in_namespace=bundle.manifest.namespace)
        claim_first(connection, skill_id, name)
        index_first(connection, bundle, values, version_id, visibility)
        if bundle.tools:
            offer_latest(connection, skill_id, version_id)
    add_first(connection, bundle, values, version_id, visibility)


def _lock_skill(connection: Connection, name: str, visibility: Visibility) -> tuple[int, bool]:
    """Insert the skill if it does not exist. Return its id, and whether it was inserted.

    The row stays locked until the transaction ends, so that two publishers of a skill do not run at the same time. On
    SQLite, a lock does nothing: SQLite has only one writer at a time.
    """
    added = _ADD_SKILL.returned(connection, name=name, created_at=datetime.now(UTC), visibility=visibility)
    if added is not None:
        return int(added[0]), True
    [(skill_id,)] = _LOCK_SKILL.rows(connection, name=name)
    return skill_id, False


def _file_values(version_id: int, file: BundleFile) -> dict[str, object]:
    return {
        "version_id": version_id,
        "path": file.path,
        "sha256": file.sha256,
        "size_bytes": file.size,
        "executable": file.executable,
    }


def _next_free(connection: Connection, skill_id: int, version: Version) -> str:
    """Return the next free version with the same major and minor number, from the next patch number on."""
    taken = set(connection.scalars(select(skill_versions.c.version).where(skill_versions.c.skill_id == skill_id)))
    patch = version.patch + 1
    while f"{version.major}.{version.minor}.{patch}" in taken:
        patch += 1
    return f"{version.major}.{version.minor}.{patch}"
