"""A version compared with an earlier one, in the order of risk: permissions, instructions, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from skillery.backends import Limits
from skillery.formats.check_results import PermissionNames, beyond
from skillery.formats.manifest import Permissions
from skillery.formats.version_diffs import ValueChange, VersionsDiff, listed_permissions
from skillery.method import or_none
from skillery.registry.visibility import view_of
from skillery.skills.catalogue_order import LOOK_ALIKE, find_original
from skillery.skills.descriptions import Skill
from skillery.skills.figures import count_host_uses
from skillery.versions.checks import DiffVersions, diff_versions
from skillery.web.differences import FileDiff
from skillery.web.display import LIMITS, Language, limit_in_words
from skillery.web.frame import PageRequest
from skillery.web.skill_opened import permissions_of, reader_of, without_value

_MODEL_READS = ("description", "inputs", "tools", "tags")
_NOTHING = PermissionNames()

RightKind = Literal["more", "less", "same"]


class Right(NamedTuple):
    """A permission or a limit as a page shows it."""

    of: Literal["name", "network", "secret", "workspace", "call", "limit"]
    value: str
    kind: RightKind
    note: str = ""

    @property
    def is_more(self) -> bool:
        return self.kind == "more"

    @property
    def tick(self) -> str:
        """The value of its tick box: a reviewer confirms each new permission."""
        return f"{self.of}:{self.value}"


class Compared(NamedTuple):
    """The differences of a version from an earlier version."""

    against: str | None
    """The earlier version, or None for a first version."""
    rights: list[Right]
    runtime: list[ValueChange]
    """Changed manifest values that say how code runs: limits, packages, entrypoint."""
    texts: list[ValueChange]
    """Changed manifest values that models read."""
    others: list[ValueChange]
    instructions: FileDiff | None
    files: list[FileDiff]
    left_out: int
    """The number of changed files that are not in `files`."""


async def compare(request: PageRequest, name: str, old: str, new: str, skill_md: str) -> Compared:
    """Return the changes from the version `old` to the version `new`. `skill_md` is the SKILL.md of `new`.

    Raise NotFound if the caller does not see one of the versions.
    """
    diff = await request.do(diff_versions, DiffVersions(name=name, from_version=old, to_version=new))
    return compared_of(diff, await differences_of(request, diff, skill_md))


async def differences_of(request: PageRequest, diff: VersionsDiff, skill_md: str) -> list[FileDiff]:
    """Return the changed files as HTML. If SKILL.md has changed, it is the first one; `skill_md` is its new text."""
    changes = [*([diff.instructions] if diff.instructions else ()), *diff.files]
    return with_renames(await request.site.texts.differences(changes, skill_md, diff.old.digest, diff.new.digest))


def compared_of(diff: VersionsDiff, files: list[FileDiff]) -> Compared:
    """Return the result of diff_versions in the form of a page. If it has instructions, they are the first file."""
    by_kind: dict[str, list[ValueChange]] = {"runtime": [], "texts": [], "others": []}
    for change in diff.manifest:
        first = change.path.partition(".")[0].partition("[")[0]
        other_kind = "texts" if first in _MODEL_READS else "others"
        by_kind["runtime" if first == "runtime" else other_kind].append(change)
    by_kind["others"] += [ValueChange(f"required skill {each.name}", each.old, each.new) for each in diff.requires]
    return Compared(
        diff.old.version,
        rights_of(diff.permissions.added, diff.permissions.removed),
        **by_kind,
        instructions=files[0] if diff.instructions else None,
        files=files[1:] if diff.instructions else files,
        left_out=diff.left_out,
    )


def with_renames(diffs: Iterable[FileDiff]) -> list[FileDiff]:
    """Return changed files, with an added and a removed file of equal content as one rename."""
    removed: dict[str, list[str]] = {}
    for diff in diffs:
        if diff.change.old and not diff.change.new:
            removed.setdefault(diff.change.old.sha256, []).append(diff.change.path)
    merged: list[FileDiff] = []
    renamed_paths: set[str] = set()
    for diff in diffs:
        paths = removed.get(diff.change.new.sha256) if diff.change.new and not diff.change.old else None
        merged.append(FileDiff(diff.change, [], 0, 0, paths.pop(0)) if paths else diff)
        renamed_paths.add(merged[-1].before)
    return [diff for diff in merged if diff.change.new or diff.change.path not in renamed_paths]


def first_version(manifest: dict[str, Any]) -> Compared:
    """Return the comparison of a first version: all permissions of its manifest are new."""
    return Compared(None, rights_of(beyond(listed_permissions(manifest), Permissions())), [], [], [], None, [], 0)


def rights_of(added: PermissionNames, removed: PermissionNames = _NOTHING) -> list[Right]:
    """Return added and removed permissions in the form of a page, added ones first."""
    return [*_rights("more", added), *_rights("less", removed)]


def _rights(kind: RightKind, names: PermissionNames) -> list[Right]:
    rights = [Right("network", host, kind) for host in names.network]
    rights += [Right("call", name, kind) for name in names.calls or ()]
    rights += [Right("call", f"{names.calls_hidden} hidden", kind)] if names.calls_hidden else []
    rights += [Right("secret", secret, kind) for secret in names.secrets]
    return [*rights, Right("workspace", "workspaces", kind)] if names.workspace is True else rights


# -- What a version may do and an earlier version may not: permissions, limits, packages and executable files ----------


MOST_PACKAGES = 500


class Dangers(NamedTuple):
    """The permissions, limits, packages and executable files of a version, compared with an earlier version.

    Larger permissions come first.
    """

    rights: list[Right]
    limits: list[Right]
    packages: list[ValueChange]
    """The packages with a changed locked version, by name."""
    is_locked: bool
    """Whether the version has locked packages."""
    runtime: list[ValueChange]
    """Other changed manifest values that say how code runs."""
    executables: list[str]
    """Paths of executable files that are not executable files of the earlier version."""

    @property
    def news(self) -> list[Right]:
        """The new permissions, which a reviewer confirms one by one."""
        return [right for right in self.rights if right.is_more]


async def dangers_of(
    request: PageRequest, new: Skill, old: Skill | None, compared: Compared, publisher: str
) -> Dangers:
    """Return the permissions, limits, packages and executables of `new`, compared with `old`.

    `publisher` is the identity that has published `new`. Both are results of describe_skill with `detail` full.
    """
    stored, known = or_none(new.permissions_diff), {right.tick for right in compared.rights}
    # The comparison at publishing considers several earlier versions, so it may have found more.
    further = [right for right in rights_of(stored.added if stored else _NOTHING) if right.tick not in known]
    rights = [*further, *compared.rights]
    news = {right.value for right in rights if right.is_more}
    kept = ([name for name in listed if name not in news] for listed in permissions_of(new.manifest))
    hosts, secrets = map(tuple, kept)
    return Dangers(
        rights=[
            *await _alike(request, new, publisher),
            *await _with_notes(request, new, [*rights, *_rights("same", PermissionNames(hosts, secrets))]),
        ],
        limits=_limits(new.manifest, old, request.site.core.runner.default_limits, request.language),
        packages=_packages(new, old)[:MOST_PACKAGES],
        is_locked=bool(_locked(new)),
        runtime=[change for change in compared.runtime if not change.path.startswith("runtime.limits")],
        executables=sorted(_executables(new) - _executables(old)),
    )


async def _alike(request: PageRequest, new: Skill, publisher: str) -> list[Right]:
    """Return the skill that a version looks like, if a finding says so that no reviewer has waived."""
    findings = or_none(new.findings) or []
    if all(finding.rule != LOOK_ALIKE or finding.waiver for finding in findings):
        return []
    about = partial(find_original, name=new.name, description=new.manifest["description"], publisher=publisher)
    original = await request.read_page(about)
    note = "An older skill of another publisher has nearly this name or description."
    return [Right("name", original, "more", note)] if original else []


async def _with_notes(request: PageRequest, new: Skill, rights: Sequence[Right]) -> list[Right]:
    """Return the rights with notes: at a new host how many other skills reach the host, at a new call what the called
    skill may use, and at a secret that it has no value.
    """
    identity, hosts = reader_of(request), [right.value for right in rights if right.is_more and right.of == "network"]
    valueless = await without_value(request, [right.value for right in rights if right.of == "secret"])
    uses = await request.read_page(lambda connection: count_host_uses(connection, identity, new.name, hosts))
    where = "of this server" if view_of(identity) is None else "that you see"
    notes = {host: _note_of_uses(count, where) for host, count in uses.items()}
    for each in or_none(new.requires) or ():
        notes[each.name] = f"Version {each.version} may use {', '.join([*each.network, *each.secrets])}."
    notes |= dict.fromkeys(valueless, "It has no value on this server.")
    noted = (right.is_more or (right.of == "secret" and right.kind == "same") for right in rights)
    return [
        right._replace(note=notes.get(right.value, "")) if has_note else right
        for right, has_note in zip(rights, noted, strict=True)
    ]


def _note_of_uses(count: int, where: str) -> str:
    if not count:
        return f"No other published skill {where} reaches this host."
    return f"{count:,} other published skill{'s' * (count != 1)} {where} reach{'es' * (count == 1)} this host."


def _limits(new: Mapping[str, Any], old: Skill | None, defaults: Limits, language: Language) -> list[Right]:
    """Return the limits of `new` above the defaults of this server, and those that only `old` has above them."""
    rights = []
    now, before = (
        ((manifest.get("runtime") or {}).get("limits") or {}) for manifest in (new, old.manifest if old else {})
    )
    for name in LIMITS:
        default = getattr(defaults, name)
        value, earlier = now.get(name, default), before.get(name, default)
        if value <= default and earlier <= default:
            continue
        kind: RightKind = "more" if value > earlier else "less" if value < earlier else "same"
        note = f"The default of this server is {limit_in_words(name, default, language)}."
        if kind != "same" and old:
            note += f" The earlier version has {limit_in_words(name, earlier, language)}."
        rights.append(Right("limit", limit_in_words(name, value, language), kind, note))
    return rights


def _locked(skill: Skill | None) -> dict[str, str]:
    """Return the locked version of each package of a skill version. Packages of npm have `npm:` before their names."""
    lock = or_none(skill.lock) if skill else None
    npm = or_none(lock.npm) if lock else None
    python_packages = (or_none(lock.packages) if lock else None) or ()
    npm_packages = (npm.packages if npm else None) or ()
    versions = {package.name: package.version for package in python_packages}
    return versions | {f"npm:{package.name}": package.version for package in npm_packages}


def _packages(new: Skill, old: Skill | None) -> list[ValueChange]:
    """Return the packages whose locked versions differ, new packages first."""
    now, before = _locked(new), _locked(old)
    names = [name for name in sorted({*now, *before}) if now.get(name) != before.get(name)]
    packages = [ValueChange(name, before.get(name), now.get(name)) for name in names]
    return sorted(packages, key=lambda package: (package.old is not None, package.new is None))


def _executables(skill: Skill | None) -> set[str]:
    return {file.path for file in (or_none(skill.files) if skill else None) or () if file.executable}
