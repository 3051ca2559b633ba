"""The skills that a version requires, as they were chosen when it was published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, func, insert, null, select

from skillery.backends import Identity
from skillery.database import Change, Statement, select_row
from skillery.database.tables import skill_versions, skills, version_closure, version_requires
from skillery.formats.check_results import CheckFinding, PermissionNames, PermissionsDiff
from skillery.formats.manifest_tables import ranges_in
from skillery.formats.names import is_within, namespace_of
from skillery.formats.wording import one_line
from skillery.registry.version_rows import MOST_REASON, VersionRow
from skillery.registry.visibility import seen_names, sees_skill


class Required(NamedTuple):
    """A version that another version requires. `depth` is 1 for a skill that the manifest names."""

    depth: int
    row: VersionRow


class _Runtime(msgspec.Struct):
    dependencies: list[str] = []
    workspace: bool = False


class _Permissions(msgspec.Struct):
    network: list[str] = []
    secrets: list[str] = []


class Declared(msgspec.Struct):
    """The parts of a stored manifest that decide what a run may do, and what it mounts. Other parts are not decoded, to
    save time.
    """

    runtime: _Runtime | None = None
    permissions: _Permissions = msgspec.field(default_factory=_Permissions)
    requires: Any = None

    @property
    def has_packages(self) -> bool:
        return self.runtime is not None and bool(self.runtime.dependencies)

    @property
    def is_called(self) -> bool:
        """Whether each call of the skill is a separate run, with its own permissions."""
        return bool(self.permissions.network or self.permissions.secrets)


def declared_in(manifest_json: str) -> Declared:
    return msgspec.json.decode(manifest_json, type=Declared)


def declared_by(row: VersionRow) -> Declared:
    return declared_in(row.manifest_json)


def may_require(manifest_json: str) -> bool:
    """Return whether a stored manifest may require skills: a search in the text is faster than decoding it."""
    return '"requires"' in manifest_json


def ranges_of(row: VersionRow) -> dict[str, str]:
    """Return the ranges of versions that a version requires, by the names of their skills."""
    if not may_require(row.manifest_json):
        return {}
    return ranges_in({"requires": declared_by(row).requires})


def calls_of(closure: Iterable[Required]) -> tuple[str, ...]:
    """Return the names of the required skills with permissions, sorted."""
    return tuple(sorted(each.row.name for each in closure if declared_by(each.row).is_called))


def digests_of(closure: Iterable[Required]) -> dict[str, str]:
    """Return the digests of required versions, by the names of their skills."""
    return {each.row.name: each.row.digest for each in closure}


def is_open(name: str, visibility: str, required: str, its_visibility: str) -> bool:
    """Return whether all callers of a skill see a skill that it requires. Callers of a private skill are its
    publishers.
    """
    if its_visibility == "public" or visibility == "private":
        return True
    namespace = namespace_of(name)
    return its_visibility == visibility == "namespace" and namespace != "" and is_within(required, namespace)


def withdrawn_finding(required: VersionRow, verb: str, reason: str) -> CheckFinding:
    """Return the finding about a version that requires a version which was yanked or purged: `verb`."""
    about = f"the required skill '{required.name}' {required.version} was {verb}"
    return CheckFinding(f"requires_{verb}", f"{about}: {one_line(reason, MOST_REASON)}", "warning")


def withdrawal_of(required: VersionRow) -> CheckFinding | None:
    """Return the finding about a version that requires this version, if it was yanked or purged since."""
    if required.status not in ("yanked", "purged"):
        return None
    standing = msgspec.json.decode(required.standing_json or "{}")
    return withdrawn_finding(required, required.status, standing.get(required.status, {}).get("reason", ""))


# -- The choice that is stored with a version --------------------------------------------------------------------------

_ROW = select_row(VersionRow, skill_versions, skills, version_id=skill_versions.c.id, labels_text=null()).join_from(
    skill_versions, skills, skills.c.id == skill_versions.c.skill_id
)
_closing = skill_versions.alias("closing")
_closing_skill = skills.alias("closing_skill")
_CLOSURES = (
    _ROW.add_columns(version_closure.c.depth, version_closure.c.version_id)
    .join(version_closure, version_closure.c.depends_on_id == skill_versions.c.id)
    .order_by(version_closure.c.depth, skills.c.name)
)
_CLOSURE = Statement(
    _CLOSURES.join(_closing, _closing.c.id == version_closure.c.version_id)
    .join(_closing_skill, _closing_skill.c.id == _closing.c.skill_id)
    .where(_closing_skill.c.name == bindparam("name"), _closing.c.digest == bindparam("digest"))
)
_VISIBILITY = Statement(select(skills.c.visibility).where(skills.c.name == bindparam("name")))
_ADD_REQUIRES = Change(insert(version_requires), ("version_id", "name", "spec"))
_ADD_CLOSURE = Change(insert(version_closure), ("version_id", "depends_on_id", "depth"))


def closure_of(connection: Connection, name: str, digest: str) -> list[Required]:
    """Return the versions that a stored version requires, the direct ones first. Purged versions are included."""
    rows = _CLOSURE.rows(connection, name=name, digest=digest)
    return [Required(row[-2], VersionRow(*row[:-2])) for row in rows]


def closure_of_row(connection: Connection, row: VersionRow) -> list[Required]:
    """Return the versions that a version requires, without a statement if it requires none."""
    return closure_of(connection, row.name, row.digest) if may_require(row.manifest_json) else []


class SeenClosure(NamedTuple):
    """The required skills of a version that a caller sees, and the number of the others."""

    required: list[Required]
    hidden: int = 0


def seen_closure(connection: Connection, identity: Identity, row: VersionRow) -> SeenClosure:
    """Return the versions that a version requires, without the names of skills that the identity may not see."""
    return _seen(closure_of_row(connection, row), sees_skills(connection, identity))


def seen_closures(connection: Connection, identity: Identity, version_ids: Iterable[int]) -> Mapping[int, SeenClosure]:
    """Return what `seen_closure` returns, for several versions by their id."""
    closures = defaultdict[int, list[Required]](list)
    for row in connection.execute(_CLOSURES.where(version_closure.c.version_id.in_(ids := list(version_ids)))):
        closures[row[-1]].append(Required(row[-2], VersionRow(*row[:-2])))
    sees = sees_skills(connection, identity)
    return {version_id: _seen(closures[version_id], sees) for version_id in ids}


def _seen(closure: Sequence[Required], sees: Callable[[VersionRow], bool]) -> SeenClosure:
    seen = [each for each in closure if sees(each.row)]
    return SeenClosure(seen, len(closure) - len(seen))


def sees_skills(connection: Connection, identity: Identity) -> Callable[[VersionRow], bool]:
    """Return a function that says whether the identity sees the skill of a row. Each skill is looked up once."""

    @cache
    def sees(skill_id: int, name: str, visibility: str) -> bool:
        return sees_skill(connection, identity, skill_id, name, visibility)

    return lambda row: sees(row.skill_id, row.name, row.visibility)


def seen_calls(connection: Connection, identity: Identity, diff: PermissionsDiff) -> PermissionsDiff:
    """Return the permissions diff with the number of skills that the identity may not see, instead of their names."""
    names = {name for each in (diff.added, diff.removed) for name in each.calls or ()}
    if not names:
        return diff
    seen = seen_names(connection, identity, names)

    def without_hidden(permissions: PermissionNames) -> PermissionNames:
        calls = tuple(name for name in permissions.calls or () if name in seen)
        hidden = len(permissions.calls or ()) - len(calls)
        return msgspec.structs.replace(permissions, calls=calls or msgspec.UNSET, calls_hidden=hidden or msgspec.UNSET)

    return msgspec.structs.replace(diff, added=without_hidden(diff.added), removed=without_hidden(diff.removed))


def count_dependents(connection: Connection, version_id: int) -> int:
    """Return the number of versions that require a version, directly or not."""
    of_version = version_closure.c.depends_on_id == version_id
    return connection.scalar(select(func.count()).select_from(version_closure).where(of_version)) or 0


def hidden_in(connection: Connection, name: str, closure: Sequence[Required]) -> list[str]:
    """Return the required skills that callers of the skill may not see any more: a visibility has changed."""
    hidden = [each.row for each in closure if each.row.visibility != "public"]
    [[visibility]] = _VISIBILITY.rows(connection, name=name) if hidden else [["public"]]
    return [row.name for row in hidden if not is_open(name, visibility, row.name, row.visibility)]


def insert_requires(
    connection: Connection, version_id: int, requires: Mapping[str, str], closure: Sequence[Required]
) -> None:
    """Store the ranges of a new version, and the versions that were chosen for them."""
    if requires:
        ranges = [{"version_id": version_id, "name": name, "spec": spec} for name, spec in requires.items()]
        _ADD_REQUIRES.run_many(connection, ranges)
        closed = [
            {"version_id": version_id, "depends_on_id": each.row.version_id, "depth": each.depth} for each in closure
        ]
        _ADD_CLOSURE.run_many(connection, closed)


def read_rows(connection: Connection, version_ids: Iterable[int]) -> list[VersionRow]:
    return [VersionRow(*row) for row in connection.execute(_ROW.where(skill_versions.c.id.in_(list(version_ids))))]
