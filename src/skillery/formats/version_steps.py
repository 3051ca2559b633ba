"""The step of a new version (major, minor or patch), derived from what its callers notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from skillery.formats.permissions import beyond
from skillery.formats.semver import Version
from skillery.formats.version_diffs import listed_permissions

Part = Literal["patch", "minor", "major"]
PARTS: tuple[Part, ...] = ("patch", "minor", "major")


class Facts(NamedTuple):
    """What callers use of a version: its manifest, its tools with their parameters, and the paths of its files."""

    manifest: Mapping[str, Any]
    tools: Mapping[str, Mapping[str, Any]]
    paths: frozenset[str]


class Step(NamedTuple):
    """The derived step, and its reasons."""

    part: Part
    reasons: tuple[str, ...]


def derived_step(old: Facts, new: Facts) -> Step:
    """Return the step from `old` to `new`: major if a caller must change or grant something, minor if there is
    something new, else patch.
    """
    for part, reasons in (("major", tuple(_breaking(old, new))), ("minor", tuple(_added(old, new)))):
        if reasons:
            return Step(part, reasons)  # type: ignore[arg-type]
    return Step("patch", ("inputs, tools, permissions and the list of files are the same",))


def step_between(old: Version, new: Version) -> Part:
    """Return the step that the numbers of two versions make."""
    if new.major != old.major:
        return "major"
    return "minor" if new.minor != old.minor else "patch"


def _breaking(old: Facts, new: Facts) -> Iterator[str]:
    before, after = _inputs(old), _inputs(new)
    yield from _parameters("input", before, after, _is_required)
    for name in old.tools:
        if name not in new.tools:
            yield f"the tool '{name}' is removed"
        else:
            of_tool = f"parameter of '{name}'"
            yield from _parameters(
                of_tool, old.tools[name], new.tools[name], lambda one: one.get("optional") is not True
            )
    added = beyond(listed_permissions(new.manifest), listed_permissions(old.manifest))
    for permission in (*added.network, *added.secrets):
        yield f"the permission '{permission}' is new"
    if added.workspace is True:
        yield "the permissions also apply in workspaces"
    if _entrypoint(old) and not _entrypoint(new):
        yield "the entrypoint is removed"


def _parameters(what: str, before: Mapping[str, Any], after: Mapping[str, Any], is_required: Any) -> Iterator[str]:
    for name, one in before.items():
        if name not in after:
            yield f"the {what} '{name}' is removed"
        elif (was := one.get("type")) != (now := after[name].get("type")):
            yield f"the {what} '{name}' is {now} instead of {was}"
    for name, one in after.items():
        if is_required(one) and not (name in before and is_required(before[name])):
            yield f"the {what} '{name}' is newly required"


def _added(old: Facts, new: Facts) -> Iterator[str]:
    rows = (
        ("input", _inputs(old), _inputs(new)),
        ("tool", old.tools, new.tools),
        ("file", old.paths, new.paths - {"requirements.lock"}),
    )
    for what, before, after in rows:
        for name in sorted(set(after) - set(before)):
            yield f"the {what} '{name}' is new"
    for name in old.tools:
        for parameter in new.tools.get(name, {}):
            if parameter not in old.tools[name]:
                yield f"the parameter '{parameter}' of '{name}' is new"


def _inputs(facts: Facts) -> dict[str, Mapping[str, Any]]:
    inputs = facts.manifest.get("inputs")
    given = inputs if isinstance(inputs, Mapping) else {}
    return {name: one if isinstance(one, Mapping) else {} for name, one in given.items()}


def _is_required(declared: Mapping[str, Any]) -> bool:
    return declared.get("required") is True and "default" not in declared


def _entrypoint(facts: Facts) -> bool:
    runtime = facts.manifest.get("runtime")
    return isinstance(runtime, Mapping) and bool(runtime.get("entrypoint"))
