"""Development versions: versions in memory that only one identity sees, and that have no rows in the database.

`skillery dev` sends the folder of a skill after each change. The identity then finds the development version by the
name of the skill alone, by its exact version and by its digest. Labels and ranges select only stored versions.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from skillery.backends import Identity
from skillery.errors import RateLimited, TooLarge, VersionNotFound
from skillery.formats.bundle import Bundle
from skillery.formats.foreign_skill import audience_of
from skillery.formats.version_spec import Digest, Exact, Latest, VersionSpec
from skillery.registry.requires import Required
from skillery.registry.tool_rows import tool_item
from skillery.registry.version_rows import Unstored, VersionRow, item_texts, text_of

KEPT_SECONDS = 30.0
"""A development version is removed if it is not renewed for this number of seconds."""
MOST_OF_IDENTITY = 50
"""The maximum number of development versions of one identity."""
MIB = 1024 * 1024
MOST_BYTES = 128 * MIB
"""The maximum size of the files of all development versions of a server."""
MOST_BYTES_OF_IDENTITY = 32 * MIB
_ids = itertools.count(-1, -1)
Row = TypeVar("Row", bound=tuple[Any, ...])


class DevelopmentVersion(NamedTuple):
    """A development version. `items` are its items in list_skills as JSON, by the param `detail`."""

    row: VersionRow
    namespace: str
    items: Mapping[str, str]
    size_bytes: int


class OfferedTool(NamedTuple):
    """A tool of a skill, with its item in list_tools as JSON."""

    skill: str
    name: str
    item_json: str


class Overlay:
    """The development versions of one identity at one time. They replace the latest versions of their skills."""

    def __init__(self, versions: Mapping[str, DevelopmentVersion]) -> None:
        """`versions` are the development versions by skill name."""
        self._versions = versions

    @property
    def names(self) -> list[str]:
        """The names of the skills."""
        return list(self._versions)

    def find(self, name: str, spec: VersionSpec) -> VersionRow | None:
        """Return the development version that `spec` selects, or None.

        Raise VersionNotFound if `spec` is an earlier development version of the skill, which was replaced.
        """
        entry = self._versions.get(name)
        if entry is None:
            return None
        row = entry.row
        match spec:
            case Latest():
                return row
            case Digest(digest):
                return row if digest == row.digest else None
            case Exact(version) if str(version) == row.version:
                return row
            case Exact(version) if is_development(version.prerelease):
                raise _replaced(row, str(version))
            case _:
                return None

    def find_tool(self, name: str) -> VersionRow | None:
        """Return a development version that offers a tool of this name, or None."""
        rows = (version.row for version in self._versions.values())
        return next((row for row in rows if row.unstored and name in row.unstored.tools), None)

    def items(self, detail: str, namespace: str) -> list[tuple[str, str, str]]:
        """Return (namespace, name, item) of each version in the namespace or below. A `namespace` of "" selects all."""
        return [
            (version.namespace, name, version.items[detail])
            for name, version in self._versions.items()
            if not namespace or version.namespace == namespace or version.namespace.startswith(f"{namespace}.")
        ]

    def tools(self) -> list[OfferedTool]:
        """Return the tools of the development versions."""
        return [
            OfferedTool(skill, name, item)
            for skill, version in self._versions.items()
            for name, (_, item) in (version.row.unstored.tools if version.row.unstored else {}).items()
        ]


class DevelopingIdentity(Identity, frozen=True):
    """An identity with its development versions."""

    overlay: Overlay = Overlay({})


class EvaluatingIdentity(DevelopingIdentity, frozen=True):
    """The agent of an evaluation, with a copy of the evaluated version. `closure` are the versions that it requires.

    Neither its runs nor the skills that they call get permissions: a model decides what they do.
    """

    closure: tuple[Required, ...] = ()


def overlay_of(identity: Identity) -> Overlay | None:
    """Return the development versions of the identity, or None."""
    return identity.overlay if isinstance(identity, DevelopingIdentity) else None


def is_development(prerelease: Iterable[object]) -> bool:
    """Return whether a pre-release such as `dev.3` is the one of a development version. `prerelease` are its parts."""
    first, *rest = (*prerelease, "", "")
    return first == "dev" and str(rest[0]).isdecimal()


def merged(
    read: Callable[[int, tuple[str, str]], list[Row]],
    own: Iterable[Row],
    is_hidden: Callable[[Row], bool],
    count: int,
    after: tuple[str, str],
) -> list[Row]:
    """Return the first `count` rows after the position `after`, from stored rows and the rows `own` of an overlay.

    The first two values of a row are its position. `read(count, after)` returns stored rows, sorted by position.
    `is_hidden` returns whether the overlay replaces a stored row.
    """
    visible: list[Row] = []
    position, is_end = after, False
    while len(visible) < count and not is_end:
        stored = read(count, position)
        visible += [row for row in stored if not is_hidden(row)]
        is_end = len(stored) < count
        position = position if is_end else _position(stored[-1])
    in_range = (row for row in own if _position(row) > after and (is_end or _position(row) <= position))
    return sorted((*visible, *in_range), key=_position)[:count]


def _position(row: tuple[Any, ...]) -> tuple[str, str]:
    return row[0], row[1]


class _Kept(NamedTuple):
    """A development version, and the monotonic time of its end."""

    version: DevelopmentVersion
    until: float


class Overlays:
    """The development versions of all identities of this server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._versions: dict[str, dict[str, _Kept]] = {}
        """The versions by identity and skill name."""

    def put(self, identity: Identity, bundle: Bundle, warnings: tuple[str, ...]) -> VersionRow:
        """Serve a bundle to the identity, in place of its development version of the same skill. Return the row.

        Raise RateLimited or TooLarge if a limit is reached.
        """
        new_version = developed(identity, bundle, warnings)
        with self._lock:
            self._remove_ended()
            own_versions = self._versions.setdefault(identity.name, {})
            self._check_limits(own_versions, new_version)
            own_versions[new_version.row.name] = _Kept(new_version, self._clock() + KEPT_SECONDS)
        return new_version.row

    def renew(self, identity: Identity, names: Iterable[str]) -> list[str]:
        """Keep the versions of these skills for another KEPT_SECONDS. Return the names of the existing ones."""
        with self._lock:
            self._remove_ended()
            own_versions = self._versions.get(identity.name, {})
            renewed = [name for name in names if name in own_versions]
            for name in renewed:
                own_versions[name] = own_versions[name]._replace(until=self._clock() + KEPT_SECONDS)
        return renewed

    def remove(self, identity: Identity, names: Iterable[str]) -> list[str]:
        """Remove the versions of these skills. Return the names of the removed ones."""
        with self._lock:
            own_versions = self._versions.get(identity.name, {})
            removed = [name for name in names if own_versions.pop(name, None)]
            self._remove_ended()
        return removed

    def of(self, identity: Identity) -> Identity:
        """Return the identity with its development versions, or the unchanged identity if it has none."""
        if not self._versions:
            return identity
        with self._lock:
            self._remove_ended()
            own_versions = {name: kept.version for name, kept in self._versions.get(identity.name, {}).items()}
        if not own_versions:
            return identity
        return DevelopingIdentity(
            identity.name,
            identity.kind,
            identity.scopes,
            identity.namespaces,
            identity.provenance,
            identity.through_mcp,
            Overlay(own_versions),
        )

    def _check_limits(self, own_versions: Mapping[str, _Kept], new_version: DevelopmentVersion) -> None:
        """Raise RateLimited or TooLarge if the new version would exceed a limit.

        `own_versions` are the versions that its identity develops, by name.
        """
        replaced = own_versions.get(new_version.row.name)
        if replaced is None and len(own_versions) >= MOST_OF_IDENTITY:
            raise RateLimited(
                f"this caller develops {MOST_OF_IDENTITY} skills on this server, which is the limit",
                hint="End the development of one of them, or wait until one expires.",
                retry_after_ms=int(KEPT_SECONDS * 1000),
            )
        more_bytes = new_version.size_bytes - (replaced.version.size_bytes if replaced else 0)
        if _size(own_versions) + more_bytes > MOST_BYTES_OF_IDENTITY:
            raise TooLarge(
                f"with '{new_version.row.name}', the development versions of this caller would exceed "
                f"{MOST_BYTES_OF_IDENTITY // MIB} MiB",
                hint="End the development of another skill, or leave large files out.",
            )
        if sum(map(_size, self._versions.values())) + more_bytes > MOST_BYTES:
            raise TooLarge(
                f"with '{new_version.row.name}', the development versions of all callers would exceed "
                f"{MOST_BYTES // MIB} MiB",
                hint="Try again in a minute: other callers may have ended their development.",
            )

    def _remove_ended(self) -> None:
        """Remove the versions that were not renewed in time."""
        now = self._clock()
        for identity, own_versions in list(self._versions.items()):
            for name in [name for name, kept in own_versions.items() if kept.until <= now]:
                del own_versions[name]
            if not own_versions:
                del self._versions[identity]


def _size(versions: Mapping[str, _Kept]) -> int:
    """Return the size of the files of all versions in bytes."""
    return sum(kept.version.size_bytes for kept in versions.values())


def developed(identity: Identity, bundle: Bundle, warnings: tuple[str, ...]) -> DevelopmentVersion:
    """Return the development version of a bundle."""
    manifest = bundle.manifest
    version = str(manifest.version)
    tools = {tool.name: (tool.script, tool_item(tool, manifest.name, version)) for tool in bundle.tools}
    row = VersionRow(
        version_id=next(_ids),
        name=manifest.name,
        version=version,
        digest=bundle.digest,
        kind=manifest.kind,
        # Like a draft, it gets its permissions only in runs of a caller who could approve it.
        status="draft",
        manifest_json=text_of(manifest.raw),
        frontmatter_json=text_of(bundle.skill_md.typed),
        warnings_json=text_of(warnings),
        skill_id=0,
        visibility="private",
        publisher=identity.name,
        publisher_kind=identity.kind,
        standing_json=None,
        labels_text=None,
        checks_json=None,
        provenance_json=None,
        audience=audience_of(bundle.skill_md.typed),
        unstored=Unstored({file.path: file for file in bundle.files}, dict(sorted(tools.items()))),
    )
    names, summary = item_texts(bundle)
    return DevelopmentVersion(row, manifest.namespace, {"names": names, "summary": summary}, bundle.size_bytes)


def _replaced(row: VersionRow, text: str) -> VersionNotFound:
    """Return the error for a development version that a newer one has replaced."""
    return VersionNotFound(
        f"'{row.name}' has no development version '{text}' any more",
        hint=f"The newest is {row.version}: leave the version out to get the newest.",
        name=row.name,
        version=text,
        versions=[row.version],
    )
