"""The stored check results of a version, and its comparison with other versions of its skill."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated

import msgspec
from sqlalchemy import Connection, bindparam, case, literal_column, select, update

from skillery.backends import Identity, Storage
from skillery.database import Statement
from skillery.database.registry import Registry
from skillery.database.tables import RESOLVABLE, catalogue, runs, skill_versions, skills
from skillery.formats.check_results import (
    VULNERABILITY,
    CheckedExample,
    CheckFinding,
    PermissionsDiff,
    permissions_diff,
)
from skillery.formats.licences import Origin
from skillery.formats.manifest import Manifest, Permissions
from skillery.formats.network import parse_network_pattern
from skillery.formats.scripts import Script
from skillery.formats.version_diffs import Compared, DiffSide, FileFacts, VersionsDiff, compare_versions
from skillery.formats.version_spec import VersionSpec, parse_named, parse_version_spec
from skillery.method import Method, Params, about
from skillery.registry.requires import calls_of, closure_of, declared_in, may_require, seen_closure
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.skills.files import files_in, read_file
from skillery.versions.example_results import keep_results


class Checks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The check results that `describe_skill` shows for a version."""

    verified: bool
    """True if the version has examples, and all of them passed with exactly the files of the version."""
    examples: tuple[CheckedExample, ...] = ()
    findings: tuple[CheckFinding, ...] = ()
    permissions_diff: PermissionsDiff | None = None
    scripts: tuple[Script, ...] | None = None
    """None: no file may be a script, or an earlier release has stored the version, and `describe_stored` will look.
    """
    origin: Origin | None = None

    @property
    def vulnerabilities(self) -> tuple[str, ...]:
        """The ids of the known vulnerabilities of locked packages, without the waived ones."""
        rules = dict.fromkeys(each.rule for each in self.findings if not each.waiver)
        return tuple(rule.removeprefix(VULNERABILITY) for rule in rules if rule.startswith(VULNERABILITY))

    @property
    def waiting(self) -> bool:
        """Whether examples still have to run."""
        return any(example.status == "waiting" for example in self.examples)


NOTHING = Checks(False)


def checks_of(checks_json: str | None) -> Checks:
    """Return the check results from their stored JSON. None means that there are none."""
    return msgspec.json.decode(checks_json, type=Checks) if checks_json else NOTHING


def with_examples(checks: Checks, examples: Sequence[CheckedExample]) -> Checks:
    """Return the check results with the results of the examples."""
    verified = bool(examples) and all(example.status == "passed" for example in examples)
    return msgspec.structs.replace(checks, examples=tuple(examples), verified=verified)


def checks_json(checks: Checks) -> str | None:
    """Return the check results as JSON for storing, or None if there are none."""
    return None if checks == NOTHING else msgspec.json.encode(checks).decode()


def record_runs(connection: Connection, version_id: int, checks: Checks) -> None:
    """Store the version id in the runs of the examples, and keep the results of the examples. Call this after the row
    of the version is inserted.
    """
    run_ids = [example.run_id for example in checks.examples if example.run_id]
    if run_ids:
        skill_id = select(skill_versions.c.skill_id).where(skill_versions.c.id == version_id).scalar_subquery()
        runs_of_examples = update(runs).where(runs.c.id.in_(run_ids))
        connection.execute(runs_of_examples.values(version_id=version_id, skill_id=skill_id))
        keep_results(connection, version_id, checks.examples)


def set_checks(connection: Connection, version_id: int, checks: Checks) -> None:
    """Replace the check results of a version, also in the catalogue and in the runs of the examples."""
    connection.execute(
        update(skill_versions).where(skill_versions.c.id == version_id).values(checks_json=checks_json(checks))
    )
    connection.execute(update(catalogue).where(catalogue.c.version_id == version_id).values(verified=checks.verified))
    record_runs(connection, version_id, checks)


def list_affected(connection: Connection, limit: int) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the name and number of versions with known vulnerabilities that callers can still use, the newest first,
    with the ids of the vulnerabilities that are not waived.
    """
    columns = skill_versions.c
    rows = connection.execute(
        select(skills.c.name, columns.version, columns.checks_json)
        .join(skills, skills.c.id == columns.skill_id)
        .where(
            columns.status.in_(RESOLVABLE), columns.checks_json.contains(f'"rule":"{VULNERABILITY}', autoescape=True)
        )
        .order_by(columns.id.desc())
    )
    affected = ((row.name, row.version, checks_of(row.checks_json).vulnerabilities) for row in rows)
    return [*islice((each for each in affected if each[2]), limit)]


# -- permissions -----------------------------------------------------------------------------------------------------

# The rank of a version in ORDER BY: resolvable versions come first.
_standing = case((skill_versions.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE]), 0), else_=1)
_OF_SKILL = (
    select(skill_versions.c.version, skill_versions.c.manifest_json, skill_versions.c.digest)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(
        skills.c.name == bindparam("name"),
        skill_versions.c.status.in_([literal_column(f"'{status}'") for status in WAS_PUBLISHED]),
    )
)
# Resolvable versions come first. If there are none, yanked versions count: else, after a yank, the next version would
# be treated as the first version of the skill.
_BELOW = Statement(
    _OF_SKILL.where(skill_versions.c.precedence < bindparam("precedence"))
    .order_by(_standing, skill_versions.c.precedence.desc())
    .limit(literal_column("1"))
)
_LATEST = Statement(
    _OF_SKILL.order_by(_standing, skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc()).limit(
        literal_column("1")
    )
)


_HIGHEST_BELOW = Statement(
    _OF_SKILL.where(skill_versions.c.precedence < bindparam("precedence"))
    .order_by(skill_versions.c.precedence.desc())
    .limit(literal_column("1"))
)
_HIGHEST = Statement(
    _OF_SKILL.order_by(skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc()).limit(
        literal_column("1")
    )
)


def compare_permissions(connection: Connection, manifest: Manifest, calls: tuple[str, ...] = ()) -> PermissionsDiff:
    """Return the permissions that a new version adds and removes, compared with two published versions of its skill:
    the next lower one and the latest one. `calls` are the required skills with permissions.

    A permission is added if one of the two versions does not have it. So users of both get no unreviewed permission
    when they change to the new version. If no version is lower, only the latest one counts. Each of the two is
    determined once with and once without yanked versions, because a yank can be undone.
    """
    new_version = {"name": manifest.name, "precedence": manifest.version.precedence}
    below = _BELOW.rows(connection, **new_version)
    latest = _LATEST.rows(connection, name=manifest.name)
    if not latest:
        return compare_with_none(manifest, calls)
    against, *stored = (below or latest)[0]
    yanked = (*_HIGHEST_BELOW.rows(connection, **new_version), *_HIGHEST.rows(connection, name=manifest.name))
    others = {version: parts for version, *parts in (*latest, *yanked) if version != against}
    former, *further = (_with_calls(connection, manifest.name, *parts) for parts in (stored, *others.values()))
    return permissions_diff(msgspec.structs.replace(manifest.permissions, calls=calls), former, further, against)


def compare_with_none(manifest: Manifest, calls: tuple[str, ...] = ()) -> PermissionsDiff:
    """Return the permissions of the first version of a skill, which all count as added."""
    return permissions_diff(msgspec.structs.replace(manifest.permissions, calls=calls), Permissions(), (), None)


def _with_calls(connection: Connection, name: str, manifest_json: str, digest: str) -> Permissions:
    closure = closure_of(connection, name, digest) if may_require(manifest_json) else []
    return msgspec.structs.replace(_permissions(manifest_json), calls=calls_of(closure))


def _permissions(manifest_json: str) -> Permissions:
    """Return the permissions in the JSON of a stored manifest."""
    stored = declared_in(manifest_json)
    listed, accepts_workspace = stored.permissions, stored.runtime is not None and stored.runtime.workspace
    patterns = [parse_network_pattern(text) for text in listed.network]
    network = tuple(pattern for pattern in patterns if not isinstance(pattern, str))
    return Permissions(network, tuple(listed.secrets), accepts_workspace and bool(network or listed.secrets))


# -- diff_versions -----------------------------------------------------------------------------------------------------


def read_diff(
    connection: Connection, identity: Identity, storage: Storage, *, name: str, old: VersionSpec, new: VersionSpec
) -> VersionsDiff:
    """Return the changes from the version `old` to the version `new` of a skill.

    Raise SkillNotFound, VersionNotFound or LabelNotFound if the identity does not see both versions.
    """
    versions = [resolve(connection, identity, name, spec) for spec in (old, new)]
    return compare_versions(*(_compared(connection, identity, storage, version) for version in versions))


def _compared(connection: Connection, identity: Identity, storage: Storage, version: VersionRow) -> Compared:
    """Return one side of a comparison: the version's manifest, its file facts, a function that reads a file, and the
    required skills that the identity sees.
    """
    files, required = files_in(connection, version), seen_closure(connection, identity, version).required
    provenance = msgspec.json.decode(version.provenance_json) if version.provenance_json else None
    return Compared(
        DiffSide(version.name, version.version, version.digest, provenance),
        msgspec.json.decode(version.whole_manifest_json),
        {file.path: FileFacts(file.sha256, file.size_bytes, file.executable) for file in files},
        partial(read_file, connection, storage, version),
        {each.row.name: each.row.version for each in required},
        calls_of(required),
    )


class DiffVersions(Params, frozen=True, kw_only=True):
    """Compare two versions of a skill: permissions first, then manifest, instructions and files."""

    name: Annotated[str, about("Skill name")]
    from_version: Annotated[str, about("The older version, as a version spec: exact, range, label or digest")]
    to_version: Annotated[str, about("The newer version (omit for latest)")] = ""


async def diff_versions(registry: Registry, identity: Identity, params: DiffVersions) -> VersionsDiff:
    name, old_spec = parse_named(params.name, params.from_version)
    new_spec = parse_version_spec(params.to_version)
    work = partial(read_diff, identity=identity, storage=registry.storage, name=name, old=old_spec, new=new_spec)
    return await registry.read_and_compare(work)


METHODS = (Method(diff_versions, "read", audits="", develops=True),)
