"""A version compared with an earlier one, in the order of danger: permissions, instructions, files."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from skillery.context.threads import COMPARISONS
from skillery.errors import NotFound
from skillery.formats.version_spec import parse_version_spec
from skillery.versions.version_diffs import digests_of
from skillery.web.differences import FileDiff, WordBudget, file_diff, size_of
from skillery.web.frame import PageRequest
from skillery.web.kept import RENDERER, Key
from skillery.web.reviews.renames import with_renames
from skillery.web.skills.opened import reader_of

_MODEL_READS = ("description", "inputs", "tools", "tags")
_IN_WORKSPACES = "Other code may have written these files."


RightKind = Literal["more", "less", "same"]


class Right(NamedTuple):
    """A permission, or a limit. `tick` is the value of its tick box: a reviewer confirms each new permission."""

    words: str
    value: str
    kind: RightKind = "same"
    tick: str = ""
    note: str = ""

    @property
    def is_more(self) -> bool:
        return self.kind == "more"


class Compared(NamedTuple):
    against: str | None
    """The earlier version, or None for a first version."""
    rights: list[Right]
    runtime: list[dict[str, Any]]
    """Changed values of the manifest that say how code runs: limits, packages, entrypoint."""
    texts: list[dict[str, Any]]
    """Changed values of the manifest that models read."""
    others: list[dict[str, Any]]
    instructions: FileDiff | None
    files: list[FileDiff]
    left_out: int


async def compare(request: PageRequest, name: str, old: str, new: str, skill_md: str) -> Compared:
    """Return what `new` changes. `skill_md` is SKILL.md of `new`.

    Raise CallFailed if the caller does not see one of the versions.
    """
    kept, digests = request.site.texts.kept, await _digests(request, name, old, new)
    if digests is not None and (known := kept.get(_key(name, old, new, *digests))) is not None:
        shown: Compared = known
        return shown
    found = await request.call("diff_versions", {"name": name, "from_version": old, "to_version": new})
    shown = await COMPARISONS.run(_compared, old, found, skill_md)
    # The digests of the result: a development version may have changed since they were read.
    kept.keep(_key(name, old, new, found["old"]["digest"], found["new"]["digest"]), shown, _size(shown))
    return shown


def _key(*parts: str) -> Key:
    return ("diff", *parts, RENDERER)


async def _digests(request: PageRequest, name: str, old: str, new: str) -> tuple[str, str] | None:
    """Return the digests of both versions, or None if the caller does not see both."""
    identity, before, after = reader_of(request), parse_version_spec(old), parse_version_spec(new)
    try:
        return await request.site.core.registry.read(
            lambda connection: digests_of(connection, identity, name=name, old=before, new=after)
        )
    except NotFound:
        return None  # diff_versions says which one is absent


def _compared(old: str, found: dict[str, Any], skill_md: str) -> Compared:
    instructions, files = _files(found, skill_md)
    by_kind: dict[str, list[dict[str, Any]]] = {"runtime": [], "texts": [], "others": []}
    for one in found["manifest"]:
        first = one["path"].partition(".")[0].partition("[")[0]
        by_kind["runtime" if first == "runtime" else "texts" if first in _MODEL_READS else "others"].append(one)
    return Compared(
        old,
        rights_of(found["permissions"]),
        **by_kind,
        instructions=instructions,
        files=files,
        left_out=found["left_out"],
    )


def _size(compared: Compared) -> int:
    """Return about the number of bytes that a comparison takes in memory."""
    files = [*compared.files, *([compared.instructions] if compared.instructions else [])]
    values = [*compared.runtime, *compared.texts, *compared.others]
    return 1000 + sum(map(size_of, files)) + sum(len(str(value)) + 500 for value in values)


def _files(found: dict[str, Any], skill_md: str) -> tuple[FileDiff | None, list[FileDiff]]:
    instructions = found["instructions"]
    budget = WordBudget()
    shown = file_diff(instructions, skill_md, is_code=False, budget=budget) if instructions else None
    return shown, [file_diff(rename, budget=budget) for rename in with_renames(found["files"])]


def first_version(manifest: dict[str, Any]) -> Compared:
    """Return the comparison of a first version: all its permissions are new."""
    return Compared(None, rights_of({"added": permissions_in(manifest)}), [], [], [], None, [], 0)


def permissions_in(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the permissions of a manifest in the form of PermissionNames."""
    permissions, runtime = manifest.get("permissions") or {}, manifest.get("runtime") or {}
    named = {key: permissions.get(key) or [] for key in ("network", "secrets")}
    return {**named, "workspace": runtime.get("workspace") is True and any(named.values())}


def rights_of(difference: dict[str, Any]) -> list[Right]:
    """Return the permissions of a PermissionsDiff, new ones first."""
    added, removed = difference["added"], difference.get("removed") or {}
    found = [Right("May send to and read from", one, "more", f"network:{one}") for one in added.get("network") or ()]
    found += [Right("May read the secret", one, "more", f"secret:{one}") for one in added.get("secrets") or ()]
    if added.get("workspace"):
        found.append(Right("May use its permissions on files of", "workspaces", "more", "workspace:", _IN_WORKSPACES))
    found += [Right("No longer reaches", one, "less") for one in removed.get("network") or ()]
    found += [Right("No longer reads the secret", one, "less") for one in removed.get("secrets") or ()]
    if removed.get("workspace"):
        found.append(Right("No longer uses its permissions on files of", "workspaces", "less"))
    return found


def with_stored(rights: list[Right], stored: dict[str, Any] | None) -> list[Right]:
    """Return the rights, with new permissions that only the comparison at the time of publishing has found.

    That comparison considers more versions than one.
    """
    known = {right.tick for right in rights}
    more = [one for one in rights_of({"added": (stored or {}).get("added") or {}}) if one.tick not in known]
    return [*more, *rights]
