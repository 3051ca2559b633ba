"""What a version may do and an earlier version may not: permissions, limits, packages and executable files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skillery.backends import Limits
from skillery.formats.version_diffs import ManifestChange
from skillery.method import or_none
from skillery.registry.visibility import view_of
from skillery.skills.descriptions import Skill
from skillery.skills.figures import count_host_uses
from skillery.web.frame import PageRequest
from skillery.web.reviews.compared import Compared, Right, RightKind, with_stored
from skillery.web.skills.opened import reader_of

LIMIT_WORDS = {
    "timeout_ms": ("of time", "ms"),
    "memory_mb": ("of memory", "MiB"),
    "processes": ("processes", ""),
    "cpus": ("processors", ""),
    "disk_mb": ("of files in /workspace", "MiB"),
}
MOST_PACKAGES = 500


class Package(NamedTuple):
    """A package whose locked version differs. None: the version has no such package."""

    name: str
    before: str | None
    now: str | None


class Dangers(NamedTuple):
    """What a version may do. Larger permissions come first."""

    rights: list[Right]
    limits: list[Right]
    packages: list[Package]
    is_locked: bool
    """Whether the version has packages."""
    runtime: list[ManifestChange]
    """Other changed values of the manifest that say how code runs."""
    executables: list[str]
    """Files that are executable, and were not in the earlier version."""

    @property
    def news(self) -> list[Right]:
        """The permissions that a reviewer confirms one by one."""
        return [right for right in self.rights if right.is_more]

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of permissions that are more, less and unchanged."""
        more, less = (sum(right.kind == kind for right in self.rights) for kind in ("more", "less"))
        return more, less, len(self.rights) - more - less


async def dangers_of(request: PageRequest, new: Skill, old: Skill | None, compared: Compared) -> Dangers:
    """Return what `new` may do, compared with `old`. Both are results of describe_skill in full."""
    defaults = request.site.core.runner.default_limits
    rights = with_stored(compared.rights, or_none(new.permissions_diff))
    executables = _executables(old)
    return Dangers(
        rights=[*await _with_uses(request, new.name, rights), *_unchanged(new.manifest, rights)],
        limits=_limits(new.manifest, old.manifest if old else {}, defaults),
        packages=_packages(new, old)[:MOST_PACKAGES],
        is_locked=bool(_locked(new)),
        runtime=[change for change in compared.runtime if not change.path.startswith("runtime.limits")],
        executables=[path for path in _executables(new) if path not in executables],
    )


async def _with_uses(request: PageRequest, name: str, rights: Sequence[Right]) -> list[Right]:
    """Return the rights with the number of other skills that reach each new host."""
    hosts = [right.value for right in rights if right.is_more and right.tick.startswith("network:")]
    if not hosts:
        return list(rights)
    identity = reader_of(request)
    uses = await request.read_page(lambda connection: count_host_uses(connection, identity, name, hosts))
    where = "of this server" if view_of(identity) is None else "that you see"
    return [
        right._replace(note=_note_of_uses(uses[right.value], where)) if right.is_more and right.value in uses else right
        for right in rights
    ]


def _note_of_uses(count: int, where: str) -> str:
    if not count:
        return f"No other published skill {where} reaches this host."
    return f"{count:,} other published skill{'s' * (count != 1)} {where} reach{'es' * (count == 1)} this host."


def _unchanged(manifest: Mapping[str, Any], rights: Sequence[Right]) -> list[Right]:
    permissions = manifest.get("permissions") or {}
    news = {right.value for right in rights if right.is_more}
    words = {"network": "Reaches", "secrets": "Reads the secret"}
    return [
        Right(text, value) for key, text in words.items() for value in permissions.get(key) or () if value not in news
    ]


def _limits(new: Mapping[str, Any], old: Mapping[str, Any], defaults: Limits) -> list[Right]:
    """Return the limits of `new` that are above the defaults of this server, and those that `new` no longer raises."""
    rights = []
    now, before = (((manifest.get("runtime") or {}).get("limits") or {}) for manifest in (new, old))
    for key, (words, unit) in LIMIT_WORDS.items():
        usual = getattr(defaults, key)
        value, earlier = now.get(key, usual), before.get(key, usual)
        if value <= usual and earlier <= usual:
            continue
        kind: RightKind = "more" if value > earlier else "less" if value < earlier else "same"
        note = f"The default of this server is {_amount(usual, unit)}."
        if kind != "same":
            note += f" The earlier version has {_amount(earlier, unit)}." if old else ""
        rights.append(Right("May use", f"{_amount(value, unit)} {words}", kind=kind, note=note))
    return rights


def _amount(value: float, unit: str) -> str:
    if unit == "ms":
        return f"{value / 1000:g} s"
    return f"{value:,g} {unit}".strip()


def _locked(skill: Skill | None) -> dict[str, str]:
    lock = or_none(skill.lock) if skill else None
    return {package.name: package.version for package in (lock.packages if lock else None) or ()}


def _packages(new: Skill, old: Skill | None) -> list[Package]:
    """Return the packages whose versions differ, new packages first."""
    now, before = _locked(new), _locked(old)
    names = [name for name in sorted({*now, *before}) if now.get(name) != before.get(name)]
    packages = [Package(name, before.get(name), now.get(name)) for name in names]
    return sorted(packages, key=lambda package: (package.before is not None, package.now is None))


def _executables(skill: Skill | None) -> dict[str, None]:
    """Return the paths of the executable files, in order."""
    return {file.path: None for file in (or_none(skill.files) if skill else None) or () if file.executable}
