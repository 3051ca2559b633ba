"""The versions in a Git repository that an identity sees: of all skills, of a namespace, or of one skill."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, literal_column, select

from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.tables import (
    RESOLVABLE,
    index_names,
    labels,
    skill_versions,
    skills,
    version_closure,
    version_steps,
)
from skillery.errors import RepositoryTooLarge
from skillery.formats.names import index_name
from skillery.registry.index_names import in_index, index_values
from skillery.registry.resolution import find_skill
from skillery.registry.version_rows import is_severe, yank_of
from skillery.registry.visibility import WAS_PUBLISHED, parameters, sees_each, view_of

ROWS_AT_ONCE = 1000
MOST_LABELS = 32
"""The maximum number of labels that are branches. The labels with the most skills are selected."""
LATEST = "latest"
MALICIOUS = "malicious"

_approved_at = (
    select(func.max(version_steps.c.created_at))
    .where(version_steps.c.version_id == skill_versions.c.id, version_steps.c.step == "approve")
    .scalar_subquery()
)
_COLUMNS = (
    index_names.c.index_name,
    skills.c.name,
    skill_versions.c.version,
    skill_versions.c.id,
    skill_versions.c.digest,
    skill_versions.c.size_bytes,
    func.coalesce(_approved_at, skill_versions.c.created_at).label("published_at"),
)


class RepositoryVersion(NamedTuple):
    """A version in a Git repository. `index_name` is the name of its folder."""

    index_name: str
    name: str
    version: str
    version_id: int
    digest: str
    size_bytes: int
    published_at: datetime
    """The time of the approval, or of the creation if there was no review."""
    revocation: str = ""
    """The yank for security as JSON, or ""."""
    is_required: bool = False
    """Whether the version is there only because another version of the branch requires it."""


class SkillHistory(NamedTuple):
    """The published versions of one skill, in the order of their publishing.

    `branches` has the index in `versions` of each branch, by the name of the branch.
    """

    versions: list[RepositoryVersion]
    branches: dict[str, int]


def list_branches(
    connection: Connection, identity: Identity, namespace: str, *, most: int
) -> dict[str, list[RepositoryVersion]]:
    """Return the versions of each branch that the identity sees, sorted by index name.

    The branch `latest` has the latest version of each skill in the index of `namespace` ("": of the server). A branch
    with the name of a label has the labelled versions. A branch of a namespace also has the versions that its versions
    require, of skills that it does not have. Yanked versions are in no branch. Return {} if the identity sees no skill
    of this namespace. Raise RepositoryTooLarge if there are more than `most` skills. All branches of labels together
    have at most `most` versions: a label that exceeds this has no branch.
    """
    values = index_values(identity, namespace)

    def whole(name: str) -> list[RepositoryVersion]:
        branch = list_branch(connection, identity=identity, namespace=namespace, branch=name, most=most)
        return _with_required(connection, identity, branch) if namespace else branch

    branch = whole(LATEST)
    if not branch:
        return {}
    if len(branch) > most:
        raise _too_many(most)
    branches = {LATEST: branch}
    remaining = most
    for label, count in _labels(connection, identity, namespace, values):
        if count <= remaining and len(labelled := whole(label)) <= remaining:
            remaining -= len(labelled)
            branches[label] = labelled
    return branches


def _with_required(
    connection: Connection, identity: Identity, branch: list[RepositoryVersion]
) -> list[RepositoryVersion]:
    """Return the versions of a branch, and those that they require and that the identity sees. If two versions require
    different versions of a skill, the higher one counts.
    """
    view = view_of(identity)
    seen = [sees_each(view, skills, skills.c.id)] if view is not None else []
    required = (
        _versions(skill_versions.c.skill_id == skills.c.id)
        .join(version_closure, version_closure.c.depends_on_id == skill_versions.c.id)
        .where(skill_versions.c.status.in_(RESOLVABLE), *seen)
        .add_columns(skill_versions.c.precedence)
    )
    rows: list[Any] = []
    for start in range(0, len(branch), ROWS_AT_ONCE):
        ids = [version.version_id for version in branch[start : start + ROWS_AT_ONCE]]
        rows += connection.execute(required.where(version_closure.c.version_id.in_(ids)), parameters(identity)).all()
    folders = {version.index_name: version for version in branch}
    names = {version.name for version in branch}
    highest = {row.name: row for row in sorted(rows, key=lambda row: row.precedence) if row.name not in names}
    for _, row in sorted(highest.items()):
        # Two skills can have one index name: the folder belongs to the skill of the branch, or to the first by name.
        folders.setdefault(row.index_name, _version(*row[:-1])._replace(is_required=True))
    return sorted(folders.values())


def list_branch(
    connection: Connection, *, identity: Identity, namespace: str, branch: str, most: int
) -> list[RepositoryVersion]:
    """Return the versions of one branch, like `list_branches`. `branch` is a label, or `latest`."""
    values = index_values(identity, namespace)
    if branch == LATEST:
        latest = in_index(_versions(skill_versions.c.id == skills.c.latest_version_id), identity, namespace)
        return _rows(connection, latest, values, most)
    return _rows(connection, _labelled(identity, namespace), values | {"label": branch}, most)


def skill_history(connection: Connection, identity: Identity, name: str, *, most: int) -> SkillHistory | None:
    """Return the history of a skill, or None if the identity sees no published version of the skill.

    Yanked versions are in `versions` but in no branch. Malicious and purged versions are not in `versions`. Raise
    RepositoryTooLarge if there are more than `most` versions.
    """
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        return None
    published = _COLUMNS[-1]
    statement = (
        select(*_COLUMNS[1:])
        .join_from(skills, skill_versions, skill_versions.c.skill_id == skills.c.id)
        .where(skills.c.id == skill_id, skill_versions.c.status.in_(WAS_PUBLISHED))
        .order_by(published, skill_versions.c.id)
        .limit(most + 1)
    )
    rows = [_version(index_name(name), *row) for row in connection.execute(statement)]
    if len(rows) > most:
        raise RepositoryTooLarge(
            f"'{name}' has more than {most} versions, which is the limit of a repository",
            hint="Download single versions: GET /skills/{name}/{version}.tar.gz.",
        )
    revocations = _revocations(connection, skill_id)
    rows = [
        row._replace(revocation=revocations.get(row.version_id, ""))
        for row in rows
        if revocations.get(row.version_id) != MALICIOUS
    ]
    positions = {row.version_id: index for index, row in enumerate(rows)}
    latest = connection.scalar(select(skills.c.latest_version_id).where(skills.c.id == skill_id))
    labelled = connection.execute(
        select(labels.c.label, labels.c.version_id).where(labels.c.skill_id == skill_id).order_by(labels.c.label)
    )
    version_by_branch = [(LATEST, latest), *((row.label, row.version_id) for row in labelled)]
    resolvable = _resolvable(connection, skill_id)
    branches = {
        branch: positions[version_id]
        for branch, version_id in version_by_branch
        if version_id in resolvable and version_id in positions
    }
    return SkillHistory(rows, branches) if rows else None


def _revocations(connection: Connection, skill_id: int) -> dict[int, str]:
    """Return the yanks of a skill for security as JSON, or MALICIOUS, by version id."""
    yanked = select(skill_versions.c.id, skill_versions.c.standing_json).where(
        skill_versions.c.skill_id == skill_id, skill_versions.c.status == "yanked"
    )
    revocations = {}
    for version_id, standing_json in connection.execute(yanked):
        yank = yank_of(standing_json)
        if is_severe(yank):
            members = {key: yank[key] for key in ("advisory", "severity", "reason", "fixed", "at") if key in yank}
            is_malicious = yank["severity"] == MALICIOUS
            revocations[version_id] = MALICIOUS if is_malicious else msgspec.json.encode(members).decode()
    return revocations


def is_ref(name: str) -> bool:
    """Return whether Git accepts a label or a version number as the name of a branch or tag."""
    return ".." not in name and not name.endswith((".", ".lock"))


def any_purged(connection: Connection, version_ids: list[int]) -> bool:
    """Return whether one of the versions was purged."""
    for start in range(0, len(version_ids), ROWS_AT_ONCE):
        is_in_batch = skill_versions.c.id.in_(version_ids[start : start + ROWS_AT_ONCE])
        purged = skill_versions.c.status == literal_column("'purged'")
        if connection.scalar(select(skill_versions.c.id).where(purged, is_in_batch).limit(1)) is not None:
            return True
    return False


def _resolvable(connection: Connection, skill_id: int) -> set[int]:
    of_skill = skill_versions.c.skill_id == skill_id
    return set(connection.scalars(select(skill_versions.c.id).where(of_skill, skill_versions.c.status.in_(RESOLVABLE))))


def _versions(condition: ColumnElement[bool]) -> Select[Any]:
    """Return the SELECT of the versions that meet `condition`, of skills with an index name."""
    return (
        select(*_COLUMNS)
        .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
        .join(skill_versions, condition)
        .where(skills.c.latest_version_id.is_not(None))
    )


def _labelled(identity: Identity, namespace: str) -> Select[Any]:
    """Return the SELECT of the versions with a label, in the index of `namespace`."""
    statement = (
        select(*_COLUMNS)
        .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
        .join(labels, labels.c.skill_id == skills.c.id)
        .join(skill_versions, skill_versions.c.id == labels.c.version_id)
        .where(labels.c.label == bindparam("label"), skill_versions.c.status.in_(RESOLVABLE))
    )
    return in_index(statement, identity, namespace)


def _labels(
    connection: Connection, identity: Identity, namespace: str, values: dict[str, object]
) -> list[tuple[str, int]]:
    """Return the labels with the most versions in the index of `namespace`, and the numbers of versions."""
    counted = (
        select(labels.c.label, func.count())
        .join_from(index_names, skills, skills.c.id == index_names.c.skill_id)
        .join(labels, labels.c.skill_id == skills.c.id)
        .join(skill_versions, skill_versions.c.id == labels.c.version_id)
        .where(skill_versions.c.status.in_(RESOLVABLE))
        .group_by(labels.c.label)
        .order_by(func.count().desc(), labels.c.label)
        .limit(MOST_LABELS)
    )
    return [(label, count) for label, count in connection.execute(in_index(counted, identity, namespace), values)]


def _rows(
    connection: Connection, statement: Select[Any], values: dict[str, object], most: int
) -> list[RepositoryVersion]:
    """Return all rows of a statement, sorted by index name. Raise RepositoryTooLarge if there are more than `most`.

    The rows are read in pages, so that no long statement blocks others.
    """
    page = statement.where(index_names.c.index_name > bindparam("after")).order_by(index_names.c.index_name)
    versions: list[RepositoryVersion] = []
    while True:
        after = versions[-1].index_name if versions else ""
        rows = connection.execute(page.limit(ROWS_AT_ONCE), values | {"after": after}).all()
        versions += [_version(*row) for row in rows]
        if len(versions) > most:
            raise _too_many(most)
        if len(rows) < ROWS_AT_ONCE:
            return versions


def _too_many(most: int) -> RepositoryTooLarge:
    return RepositoryTooLarge(
        f"there are more than {most} skills, which is the limit of a repository or marketplace "
        "(the setting index_skills)",
        hint="Ask for a namespace: /git/{namespace}.git, or /marketplace.json?namespace={namespace}.",
    )


def _version(*values: Any) -> RepositoryVersion:
    return RepositoryVersion._make([*values[:-1], in_utc(values[-1]), "", False])
