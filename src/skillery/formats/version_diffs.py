"""Two versions of a skill compared: permissions first, then manifest, instructions and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from skillery.formats.bundle import SKILL_MD
from skillery.formats.check_results import PermissionsDiff, beyond, permissions_diff
from skillery.formats.json_values import join, same
from skillery.formats.manifest import Permissions
from skillery.formats.network import parse_network_pattern
from skillery.formats.semver import Version
from skillery.formats.texts import MOST_TEXT_BYTES, NO_LINES, text_of, unified_diff

MOST_CHANGES = 200
"""Limit on the changes of a manifest that are listed."""
MOST_VALUE = 1_000
"""Limit on the JSON of a value, in characters."""
MOST_DEPTH = 32
MOST_FILES = 512
MOST_LINED = 64
"""Limit on the files that are compared by lines."""
MOST_DIFFS = 256 * 1024
"""Limit on all differences by lines together, in characters."""

Change = Literal["added", "removed", "changed", "mode"]


class DiffSide(msgspec.Struct, frozen=True):
    """One of the two compared versions. `digest` is empty for a folder that is not published."""

    name: str
    version: str
    digest: str
    provenance: Annotated[dict[str, str] | None, Meta(description="The CI job that published the version")] = None


class ValueChange(msgspec.Struct, frozen=True):
    """A value that differs, as JSON text, cut if long. null: there is no such value."""

    path: str
    old: str | None
    new: str | None


class RequiredChange(msgspec.Struct, frozen=True):
    """A required skill whose chosen version differs. null: the version does not require the skill."""

    name: str
    old: str | None
    new: str | None


class FileFacts(msgspec.Struct, frozen=True):
    """A file of a version."""

    sha256: str
    size_bytes: int
    executable: bool


class FileChange(msgspec.Struct, frozen=True):
    """A file that differs. `diff` has the hunks of a unified diff. If its lines cannot be shown, `note` says why."""

    path: str
    change: Change
    old: FileFacts | None
    new: FileFacts | None
    diff: str = ""
    note: str = ""


class VersionsDiff(msgspec.Struct, frozen=True):
    """Two versions compared. `instructions` is the change of SKILL.md. `left_out` counts further changes."""

    same: bool
    old: DiffSide
    new: DiffSide
    permissions: PermissionsDiff
    manifest: tuple[ValueChange, ...]
    instructions: FileChange | None
    files: tuple[FileChange, ...]
    left_out: int
    requires: tuple[RequiredChange, ...] = ()


class Compared(NamedTuple):
    """One of the two compared versions, with its content."""

    side: DiffSide
    manifest: Mapping[str, Any]
    """The JSON values. The manifest of an unpublished folder may have no `kind` and `namespace`: they are then not
    compared.
    """
    files: Mapping[str, FileFacts]
    read: Callable[[str], bytes]
    """Return the content of a file. It is called only for files of at most MOST_TEXT_BYTES."""
    requires: Mapping[str, str] = {}
    """The chosen versions of required skills. A folder has none: publishing chooses them."""
    calls: tuple[str, ...] = ()
    """The required skills with permissions."""

    @property
    def permissions(self) -> Permissions:
        return msgspec.structs.replace(listed_permissions(self.manifest), calls=self.calls)


def compare_versions(old: Compared, new: Compared) -> VersionsDiff:
    """Compare two versions. The result, the time and the bytes read are bounded."""
    inferred = {"kind", "namespace"} & (old.manifest.keys() ^ new.manifest.keys())
    known, values = (
        {key: value for key, value in version.manifest.items() if key not in inferred} for version in (old, new)
    )
    changes = list(value_changes(known, values))
    paths = sorted(path for path in {*old.files, *new.files} if old.files.get(path) != new.files.get(path))
    differ = _Differ(old, new)
    instructions = differ.change(SKILL_MD) if SKILL_MD in paths else None
    other_paths = [path for path in paths if path != SKILL_MD]
    left_out = max(0, len(changes) - MOST_CHANGES) + max(0, len(other_paths) - MOST_FILES)
    return VersionsDiff(
        same=not paths,
        old=old.side,
        new=new.side,
        permissions=permissions_diff(new.permissions, old.permissions, (), old.side.version),
        manifest=tuple(changes[:MOST_CHANGES]),
        instructions=instructions,
        files=tuple(differ.change(path) for path in other_paths[:MOST_FILES]),
        left_out=left_out,
        requires=tuple(
            RequiredChange(name, before, after)
            for name in sorted({*old.requires, *new.requires})
            if (before := old.requires.get(name)) != (after := new.requires.get(name))
        ),
    )


class _Differ:
    """Compares files by lines until the limits are used up."""

    def __init__(self, old: Compared, new: Compared) -> None:
        self._old = old
        self._new = new
        self._lined = 0
        self._left = MOST_DIFFS

    def change(self, path: str) -> FileChange:
        old, new = self._old.files.get(path), self._new.files.get(path)
        diff, note = self._diff(path, old, new)
        return FileChange(path, _kind(old, new), old, new, diff, note)

    def _diff(self, path: str, old: FileFacts | None, new: FileFacts | None) -> tuple[str, str]:
        """Return the diff of a file and a note. The note says why there is no diff, else it is ""."""
        if old and new and old.sha256 == new.sha256:
            return "", ""
        if max(facts.size_bytes for facts in (old, new) if facts) > MOST_TEXT_BYTES:
            return "", f"larger than {MOST_TEXT_BYTES} bytes"
        if self._lined == MOST_LINED or not self._left:
            return "", "too many files differ to show this one by lines"
        self._lined += 1
        old_text = text_of(self._old.read(path)) if old else ""
        new_text = text_of(self._new.read(path)) if new else ""
        if old_text is None or new_text is None:
            return "", "not UTF-8 text"
        diff = unified_diff(old_text, new_text)
        if diff is None:
            return "", NO_LINES
        if len(diff) > self._left:
            self._left = 0
            return "", "too many lines differ to show this file"
        self._left -= len(diff)
        return diff, "" if diff else "only line ends differ" if old and new else "an empty file"


def _kind(old: FileFacts | None, new: FileFacts | None) -> Change:
    if old is None or new is None:
        return "added" if old is None else "removed"
    return "mode" if old.sha256 == new.sha256 else "changed"


def listed_permissions(manifest: Mapping[str, Any]) -> Permissions:
    """Return the permissions that a manifest lists. Values that are not valid are left out."""
    table = manifest.get("permissions")
    permissions = table if isinstance(table, Mapping) else {}
    texts = {
        key: [text for text in value if isinstance(text, str)]
        if isinstance(value := permissions.get(key), list)
        else []
        for key in ("network", "secrets")
    }
    patterns = [parse_network_pattern(text) for text in texts["network"]]
    network, secrets = tuple(pattern for pattern in patterns if not isinstance(pattern, str)), tuple(texts["secrets"])
    runtime = manifest.get("runtime")
    in_workspaces = isinstance(runtime, Mapping) and runtime.get("workspace") is True
    return Permissions(network, secrets, in_workspaces and bool(network or secrets))


def value_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], path: str = "", depth: int = MOST_DEPTH
) -> Iterator[ValueChange]:
    """Yield the values that differ, in the order of their keys. The key `permissions` of the whole is left out.

    Values below `depth` objects are compared as a whole.
    """
    for key in sorted({*old, *new}):
        key_path = join(path, key)
        if key_path == "permissions":
            continue
        old_value, new_value = old.get(key), new.get(key)
        if depth and isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            yield from value_changes(old_value, new_value, key_path, depth - 1)
        elif key not in old or key not in new or _differs(old_value, new_value):
            yield ValueChange(key_path, _json(old, key), _json(new, key))


def _differs(old: object, new: object) -> bool:
    try:
        return not same(old, new)
    except RecursionError:  # args of a run may have more levels than Python compares
        return msgspec.json.encode(old, order="sorted") != msgspec.json.encode(new, order="sorted")


def _json(table: Mapping[str, Any], key: str) -> str | None:
    if key not in table:
        return None
    text = msgspec.json.encode(table[key]).decode()
    return text if len(text) <= MOST_VALUE else f"{text[:MOST_VALUE]}…"


# -- The step of a new version (major, minor or patch), derived from what its callers notice ---------------------------


Part = Literal["patch", "minor", "major"]
PARTS: tuple[Part, ...] = ("patch", "minor", "major")


class Facts(NamedTuple):
    """The properties of a version that its callers use: its manifest, its tools with their parameters, and the paths of
    its files.
    """

    manifest: Mapping[str, Any]
    tools: Mapping[str, Mapping[str, Any]]
    paths: frozenset[str]


class Step(NamedTuple):
    """A step of a version number (major, minor or patch), and the reasons for it."""

    part: Part
    reasons: tuple[str, ...]


def derived_step(old: Facts, new: Facts) -> Step:
    """Return the step that the changes from `old` to `new` need: major if a caller must change or grant something,
    minor if there is something new, else patch.
    """
    for part, reasons in (("major", tuple(_breaking(old, new))), ("minor", tuple(_added(old, new)))):
        if reasons:
            return Step(part, reasons)  # type: ignore[arg-type]
    return Step("patch", ("inputs, tools, permissions and the list of files are the same",))


def step_between(old: Version, new: Version) -> Part:
    """Return the first part (major, minor or patch) in which two version numbers differ."""
    if new.major != old.major:
        return "major"
    return "minor" if new.minor != old.minor else "patch"


def _breaking(old: Facts, new: Facts) -> Iterator[str]:
    """Yield the changes for which a caller must change or grant something, as sentences without a full stop."""
    old_inputs, new_inputs = _inputs(old), _inputs(new)
    yield from _parameters("input", old_inputs, new_inputs, _is_required)
    for name in old.tools:
        if name not in new.tools:
            yield f"the tool '{name}' is removed"
        else:
            of_tool = f"parameter of '{name}'"
            yield from _parameters(
                of_tool, old.tools[name], new.tools[name], lambda parameter: parameter.get("optional") is not True
            )
    added = beyond(listed_permissions(new.manifest), listed_permissions(old.manifest))
    for permission in (*added.network, *added.secrets):
        yield f"the permission '{permission}' is new"
    if added.workspace is True:
        yield "the permissions also apply in workspaces"
    if _entrypoint(old) and not _entrypoint(new):
        yield "the entrypoint is removed"


def _parameters(subject: str, before: Mapping[str, Any], after: Mapping[str, Any], is_required: Any) -> Iterator[str]:
    """Yield the breaking changes of parameters: one is removed, has another type, or is new and required. `is_required`
    takes a declaration.
    """
    for name, parameter in before.items():
        if name not in after:
            yield f"the {subject} '{name}' is removed"
        elif (was := parameter.get("type")) != (now := after[name].get("type")):
            yield f"the {subject} '{name}' is {now} instead of {was}"
    for name, parameter in after.items():
        if is_required(parameter) and not (name in before and is_required(before[name])):
            yield f"the {subject} '{name}' is newly required"


def _added(old: Facts, new: Facts) -> Iterator[str]:
    """Yield the additions that no caller has to notice: new inputs, tools, files and parameters."""
    rows = (
        ("input", _inputs(old), _inputs(new)),
        ("tool", old.tools, new.tools),
        ("file", old.paths, new.paths - {"requirements.lock"}),
    )
    for subject, before, after in rows:
        for name in sorted(set(after) - set(before)):
            yield f"the {subject} '{name}' is new"
    for name in old.tools:
        for parameter in new.tools.get(name, {}):
            if parameter not in old.tools[name]:
                yield f"the parameter '{parameter}' of '{name}' is new"


def _inputs(facts: Facts) -> dict[str, Mapping[str, Any]]:
    inputs = facts.manifest.get("inputs")
    values = inputs if isinstance(inputs, Mapping) else {}
    return {name: declaration if isinstance(declaration, Mapping) else {} for name, declaration in values.items()}


def _is_required(declared: Mapping[str, Any]) -> bool:
    return declared.get("required") is True and "default" not in declared


def _entrypoint(facts: Facts) -> bool:
    runtime = facts.manifest.get("runtime")
    return isinstance(runtime, Mapping) and bool(runtime.get("entrypoint"))
