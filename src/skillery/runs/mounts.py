"""The mounts of a run: skills, tools of sessions and blobs. Also the input files and kept files of its workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from sqlalchemy import Connection

from skillery.backends import BlobMount, Failure, FailureType, Identity, InputFile, Job, Limits, SkillMount
from skillery.contents.blob_rows import BlobRow, find_blob
from skillery.database import Database
from skillery.errors import InputFilesTooLarge, InvalidParams, InvalidPath
from skillery.formats.manifest import Permissions
from skillery.formats.names import import_name
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.version_spec import VersionSpec, parse_reference
from skillery.formats.wording import quoted
from skillery.registry.development import EvaluatingIdentity
from skillery.registry.required_choice import choose
from skillery.registry.requires import closure_of, hidden_in, sees_skills
from skillery.registry.resolution import resolve
from skillery.registry.revocations import require_runnable, revocation_of
from skillery.registry.version_rows import VersionRow
from skillery.runs.cache import Cache
from skillery.runs.declarations import Declarations
from skillery.runs.packages import Needing
from skillery.runs.requests import has_permissions
from skillery.runs.scripts import SESSION_SKILL, session_files
from skillery.tools.tool_lookup import FoundTool
from skillery.workspaces.manifests import RunFile

MOST_MOUNTS = 100
MOST_BLOBS = 1_000


class Reference(NamedTuple):
    """A skill, and the version spec that selects one of its versions."""

    name: str
    spec: VersionSpec


def parse_mounts(texts: Sequence[str]) -> list[Reference]:
    """Return the references that the param `mount_skills` names. Each text is `name` or `name@<version spec>`.

    Raise InvalidParams if there are too many texts, or the error of `parse_reference` if a text is invalid.
    """
    if len(texts) > MOST_MOUNTS:
        raise InvalidParams(
            f"'mount_skills' names {len(texts)} skills, at most {MOST_MOUNTS} are allowed", param="mount_skills"
        )
    return [Reference(*parse_reference(text)) for text in texts]


def check_mounts(identity: Identity, versions: Sequence[VersionRow]) -> list[VersionRow]:
    """Return the versions in the given order, without duplicates.

    Raise InvalidParams if two of them are different versions of one skill, or if two skills have one import name, and
    RunRevoked if the identity may not run one of them.
    """
    by_import: dict[str, VersionRow] = {}
    for version in versions:
        require_runnable(identity, version)
        mounted = by_import.setdefault(import_name(version.name), version)
        _check_same(mounted, version)
    return list(by_import.values())


def _check_same(mounted: VersionRow | SkillMount, version: VersionRow, unseen: Sequence[str] = ()) -> None:
    """Raise InvalidParams if a run cannot mount both. The error does not name the `unseen` skills."""
    if mounted.digest != version.digest and not {mounted.name, version.name}.isdisjoint(unseen):
        raise InvalidParams(
            "the skills of this run require a skill that you may not see: it would be mounted in two versions, or has "
            "the import name of another skill",
            hint="Mount one of these skills, or ask their publishers.",
        )
    if mounted.name != version.name:
        raise InvalidParams(
            f"'{mounted.name}' and '{version.name}' would both be imported as {import_name(version.name)}",
            hint="Mount one of the two.",
        )
    if mounted.digest != version.digest:
        raise InvalidParams(
            f"'{version.name}' is mounted in two versions, {mounted.version} and {version.version}",
            hint="Mount one version of a skill.",
        )


def _without_names(needing: Iterable[Needing], unseen: Sequence[str]) -> Iterator[Needing]:
    """Yield the skills with a number instead of the name of each one that the caller may not see."""
    for skill in needing:
        number = unseen.index(skill.name) + 1 if skill.name in unseen else 0
        yield skill._replace(hidden=f"required skill {number} (hidden)") if number else skill


class ImportableSkills(NamedTuple):
    """Skills that the code of a run imports. Those with permissions are stubs: each call is a separate run."""

    mounts: tuple[SkillMount, ...] = ()
    needing: tuple[Needing, ...] = ()
    """The skills that are no stubs, for their packages."""
    stubs: Mapping[str, VersionRow] = {}
    failure: Failure | None = None
    """Set if a skill of the run requires a version that no run may use."""


class Mounts:
    """Finds the skills, tools and blobs that a run mounts, and provides them as folders and files on this machine."""

    def __init__(self, database: Database, cache: Cache, declarations: Declarations) -> None:
        self._database = database
        self._cache = cache
        self._declarations = declarations

    async def find_blobs(self, identity: Identity, blob_ids: Sequence[str]) -> list[BlobRow]:
        """Return the rows of the blobs, without duplicates.

        Raise BlobNotFound if the identity has no such blob, and InvalidParams if there are more than MOST_BLOBS ids.
        """
        unique_ids = list(dict.fromkeys(blob_ids))
        if len(unique_ids) > MOST_BLOBS:
            raise InvalidParams(f"a run was given {len(unique_ids)} blobs, at most {MOST_BLOBS} are allowed")

        def work(connection: Connection) -> list[BlobRow]:
            return [find_blob(connection, identity=identity, blob_id=blob_id) for blob_id in unique_ids]

        return await self._database.read(work) if unique_ids else []

    async def find_skills(self, identity: Identity, texts: Sequence[str]) -> list[VersionRow]:
        """Return the versions of the param `mount_skills`. Raise the errors of `parse_mounts` and `check_mounts`."""
        versions = [
            await self._database.read(partial(resolve, identity=identity, name=reference.name, spec=reference.spec))
            for reference in parse_mounts(texts)
        ]
        return check_mounts(identity, versions)

    async def skill(self, version: VersionRow) -> SkillMount:
        """Return the mount of a version whose code the run starts."""
        return await self._skill(version, stubs=False)

    async def importable(self, versions: Sequence[VersionRow]) -> ImportableSkills:
        """Return the mounts of versions that the code of a run imports, in the same order."""
        mounts = [await self._skill(version, stubs=True) for version in versions]
        pairs = list(zip(versions, mounts, strict=True))
        needing = [
            Needing(version.name, await self._declarations.manifest(version), mount.folder)
            for version, mount in pairs
            if not mount.stub
        ]
        stubs = {version.name: version for version, mount in pairs if mount.stub}
        return ImportableSkills(tuple(mounts), tuple(needing), stubs)

    async def required(self, identity: Identity, job: Job, skills: Sequence[Needing]) -> ImportableSkills:
        """Return the mounts of the versions that `skills` of the job require. Those with permissions are stubs.

        Files without a stored version get the versions that a publication by the identity would choose now. Raise the
        errors of `choose`. Raise InvalidParams if a skill would be mounted in two versions.
        """
        requiring = [skill for skill in skills if skill.manifest.requires]
        if not requiring:
            return ImportableSkills()
        mounted = {import_name(mount.name): mount for mount in job.skills}

        def work(connection: Connection) -> tuple[list[VersionRow], list[str], list[str]]:
            rows, hidden, sees = list[VersionRow](), list[str](), sees_skills(connection, identity)
            for skill in requiring:
                closure = closure_of(connection, skill.name, mounted[import_name(skill.name)].digest)
                if not closure and isinstance(identity, EvaluatingIdentity):
                    closure = [*identity.closure]
                hidden += hidden_in(connection, skill.name, closure)
                chosen = closure or choose(connection, identity, skill.name, skill.manifest.requires.items())
                rows += [each.row for each in chosen]
            return rows, hidden, list(dict.fromkeys(row.name for row in rows if not sees(row)))

        versions = dict[str, VersionRow]()
        # The choice takes up to MOST_SECONDS.
        rows, hidden, unseen = await asyncio.to_thread(self._database.read_now, work)
        for row in rows:
            other = mounted.get(import_name(row.name)) or versions.setdefault(import_name(row.name), row)
            _check_same(other, row, unseen)
            is_malicious = (revocation_of(row) or {}).get("severity") == "malicious"
            if row.status == "purged" or is_malicious or row.name in hidden:
                why = "was purged" if row.status == "purged" else "is malicious" if is_malicious else "is hidden now"
                about = (
                    f"the required skill '{row.name}' {row.version}" if row.name not in unseen else "a required skill"
                )
                message = f"{about} {why}: publish a version that does not need it"
                return ImportableSkills(failure=Failure(FailureType.DEPENDENCY_GONE, message))
        required = await self.importable([*versions.values()])
        return required._replace(needing=tuple(_without_names(required.needing, unseen)))

    async def tool(self, tool: FoundTool) -> SkillMount:
        """Return the mount of the skill that has the tool. A tool of a session is mounted as a skill of its own."""
        if tool.version is not None:
            return await self.skill(tool.version)
        assert tool.session is not None, "a tool belongs to a version or to a session"
        folder = await asyncio.to_thread(self._cache.keep, session_files(tool.session))
        # The cache names the folder by its digest.
        return SkillMount(SESSION_SKILL, folder, digest=folder.name.replace("-", ":"))

    async def blobs(self, rows: Sequence[BlobRow]) -> tuple[BlobMount, ...]:
        """Return the mounts of blobs, in the same order. Copy their contents to this machine if necessary."""
        return tuple([BlobMount(row.id, await asyncio.to_thread(self._cache.blob, row), row.sha256) for row in rows])

    async def _skill(self, version: VersionRow, *, stubs: bool) -> SkillMount:
        manifest = await self._declarations.manifest(version)
        runtime = manifest.called
        ready = self._cache.is_ready(version)
        folder = self._cache.bundle(version) if ready else await asyncio.to_thread(self._cache.bundle, version)
        is_stub = stubs and runtime is not None and has_permissions(manifest)
        entrypoint = runtime.entrypoint if runtime is not None else None
        return SkillMount(version.name, folder, entrypoint, is_stub, version.version, version.digest)


# -- The input files of a run, which are copied into its workspace: checks of paths, blobs and space -------------------


PAGE = 4096
"""The size of a file in a workspace is rounded up to a multiple of this many bytes."""
IMPORTED = (".py", ".pyc", ".so", ".pth")
"""Endings of files that Python may import or read at its start."""


def check_harmless(files: Sequence[RunFile], permissions: Permissions) -> None:
    """Raise InvalidPath if a skill with permissions gets an input file that could change which code runs.

    The workspace is the working directory and the home folder of a run. With such a file, a caller could read the
    secrets of the skill.
    """
    if not (permissions.secrets or permissions.network):
        return
    for file in files:
        if changes_what_runs(file.path):
            raise InvalidPath(
                f"the file {quoted(file.path)} could change which code runs, and the skill has permissions",
                hint="Rename the file: its path may have no segment that starts with '.' or is 'node_modules', and may "
                f"not end with {', '.join(IMPORTED)}.",
                param="files",
            )


def changes_what_runs(path: str) -> bool:
    """Return whether an interpreter or another program may read a file of this path without being told to."""
    lower = path.casefold()
    segments = lower.split("/")
    return lower.endswith(IMPORTED) or any(segment.startswith(".") or segment == "node_modules" for segment in segments)


def check_room(files: Sequence[RunFile], sizes: Sequence[int], limits: Limits) -> None:
    """Raise InputFilesTooLarge if copies of `files` with these `sizes` in bytes exceed `disk_mb` or `disk_files`."""
    taken = sum(-(-size // PAGE) * PAGE for size in sizes)
    disk_bytes = limits.disk_mb << 20
    if taken > disk_bytes:
        raise InputFilesTooLarge(
            f"the {len(files)} input files of this run take {taken} bytes, and its /workspace has {disk_bytes}",
            hint="Set a higher limit disk_mb, or pass large blobs in input_blobs: a run reads them from "
            "/blobs/<blob_id> without a copy.",
            size_bytes=taken,
            limit=disk_bytes,
        )
    folders = {folder for file in files for folder in list(accumulate(file.path.split("/"), "{}/{}".format))[:-1]}
    entries = len(files) + len(folders)
    if entries > limits.disk_files:
        raise InputFilesTooLarge(
            f"the input files of this run are {entries} files and folders, and its /workspace has room for "
            f"{limits.disk_files}",
            hint="Pack them into an archive and unpack it in /tmp.",
            files=entries,
            limit=limits.disk_files,
        )


class InputFiles:
    """Finds the blobs of input files, and provides their contents as files on this machine."""

    def __init__(self, database: Database, cache: Cache) -> None:
        self._database = database
        self._cache = cache

    async def find(
        self, identity: Identity, files: Sequence[RunFile], limits: Limits, permissions: Permissions
    ) -> tuple[InputFile, ...]:
        """Return the input files, with the paths of their contents on this machine.

        Raise BlobNotFound if the identity has no such blob, InputFilesTooLarge if the files exceed the limits, and
        InvalidPath if a file could change which code of a skill with permissions runs.
        """
        if not files:
            return ()
        check_harmless(files, permissions)

        def work(connection: Connection) -> list[BlobRow]:
            return [find_blob(connection, identity=identity, blob_id=file.blob_id) for file in files]

        rows = await self._database.read(work)
        check_room(files, [row.size_bytes for row in rows], limits)
        return await asyncio.to_thread(self._on_this_machine, files, rows)

    def _on_this_machine(self, files: Sequence[RunFile], rows: Sequence[BlobRow]) -> tuple[InputFile, ...]:
        return tuple(
            InputFile(file.path, self._cache.blob(row), row.size_bytes, file.executable, row.sha256)
            for file, row in zip(files, rows, strict=True)
        )


# -- The globs of a run: files in its workspace that it keeps in addition to those in `out` ----------------------------


MOST_GLOBS = 100
HINT = (
    "A glob is relative to /workspace, with '/' between at most 8 segments, e.g. 'report/*.pdf' or '**/*.csv'. '*' is "
    "any part of a segment, '**' any number of folders."
)


def parse_outputs(globs: Sequence[str]) -> tuple[str, ...]:
    """Return the globs of the param `outputs`, without duplicates.

    Raise InvalidPath if a glob breaks the rules of bundle paths, and InvalidParams if there are more than MOST_GLOBS.
    """
    if len(globs) > MOST_GLOBS:
        raise InvalidParams(
            f"a run was given {len(globs)} globs in 'outputs', at most {MOST_GLOBS} are allowed",
            hint="Write '**' for any number of folders: one glob can match many files.",
            param="outputs",
        )
    globs = list(dict.fromkeys(map(plain_path, globs)))
    for glob in globs:
        problem = path_problem(glob)
        if problem:
            raise InvalidPath(f"The glob {quoted(glob)} {problem}.", hint=HINT, param="outputs")
    return tuple(globs)


def checked_outputs(globs: Sequence[str], permissions: Permissions) -> tuple[str, ...]:
    """Return the globs as a tuple. Raise InvalidParams if there are globs and the skill has permissions.

    Such a skill may write its secrets, or what it read with them, to files that its author does not give to callers.
    """
    if globs and (permissions.secrets or permissions.network):
        raise InvalidParams(
            "'outputs' names files of a skill that has permissions",
            hint="Leave 'outputs' out. The skill chooses the files: it writes them to /workspace/out.",
            param="outputs",
        )
    return tuple(globs)
