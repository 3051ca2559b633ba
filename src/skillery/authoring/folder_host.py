"""The host of the runs of a folder: their blobs, which are files, and the skills that the folder requires.

Required skills are found among other folders and in a registry, in the versions that publishing would choose now.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import msgspec

from skillery.backends import Job, Outcome, Progress, RunHost, SkillMount
from skillery.errors import (
    BlobNotFound,
    InvalidParams,
    InvalidVersion,
    NotAllowed,
    RequiresCycle,
    RequiresUnsolvable,
    SkilleryError,
    TooLarge,
)
from skillery.formats.bundle import SKILL_TOML, BundleFile, digest_of
from skillery.formats.manifest import Manifest, Permissions, parse_manifest, toml_manifest
from skillery.formats.manifest_tables import ranges_in
from skillery.formats.semver import Version
from skillery.formats.texts import new_blob_id
from skillery.formats.version_spec import parse_version_spec, selects
from skillery.publishing.folders import SkillFolder, read_skill_folder
from skillery.publishing.gate import Gate
from skillery.runs.hints import with_hint
from skillery.runs.packages import Needing
from skillery.runs.requests import has_permissions
from skillery.runs.run_host import Calls, SkillCalls, called_job

if TYPE_CHECKING:
    from skillery.authoring.folder_runs import FolderRuns
    from skillery.client import AsyncClient

MEBIBYTE = 1024 * 1024


class FolderHost(RunHost):
    """The RunHost of one run of a folder: blobs are files in `folder`."""

    def __init__(self, folder: Path, job: Job, on_progress: Callable[[Progress], None] | None = None) -> None:
        """`on_progress` is called with each progress that the code reports."""
        self._folder = folder
        self._limits = job.limits
        self._bytes_left = job.limits.blobs_mb * MEBIBYTE
        self._on_progress = on_progress
        self._begun = 0
        self.written: dict[str, Path] = {}
        self.calls: SkillCalls | None = None

    async def begin_blob(self, kind: str, path: str | None = None) -> FileWriter:
        if self._begun >= self._limits.blobs:
            raise TooLarge(f"this run has written {self._limits.blobs} blobs, which is its limit")
        self._begun += 1
        blob_id = new_blob_id()
        return FileWriter(self, blob_id, self._folder / blob_id.replace(":", "-"))

    async def read_blob(self, blob_id: str) -> bytes:
        if blob_id not in self.written:
            raise BlobNotFound(f"the blob '{blob_id}' is neither an input nor an output of this run")
        return await asyncio.to_thread(self.written[blob_id].read_bytes)

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        if self.calls is None:
            raise NotAllowed(f"this run mounts no skill '{skill[:128]}' that has permissions")
        return await self.calls.call_skill(skill, function, args)

    def for_called(self, job: Job) -> FolderHost:
        """Return the host of a called run, which shares the blobs of this run."""
        host = FolderHost(self._folder, job)
        host.written = self.written
        return host

    def progressed(self, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    def spend(self, size: int) -> None:
        """Count written bytes. Raise TooLarge if the run exceeds its limit."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooLarge(f"the blobs of this run would exceed its limit of {self._limits.blobs_mb} MiB")


class FileWriter:
    """The BlobWriter of one blob."""

    def __init__(self, host: FolderHost, blob_id: str, path: Path) -> None:
        self._host = host
        self._blob_id = blob_id
        self._path = path
        self._file: BinaryIO = path.open("xb")

    async def write(self, chunk: bytes) -> None:
        self._host.spend(len(chunk))
        self._file.write(chunk)

    async def commit(self) -> str:
        self._file.close()
        self._host.written[self._blob_id] = self._path
        return self._blob_id

    async def abort(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


# -- The choice of required skills -------------------------------------------------------------------------------------


OpenClient: TypeAlias = Callable[[], AbstractAsyncContextManager["AsyncClient"]]
"""Open the registry that has the required skills."""


async def published_skill(client: AsyncClient, name: str, version: str | None) -> SkillFolder:
    """Return a copy of a published skill."""
    described: Any = (await client.describe_skill(name=name, version=version, detail="full"))["skill"]
    digest, files = described["digest"], []
    for file in described["files"]:
        answer: Any = await client.read_skill_file(name=name, version=digest, path=file["path"])
        content = answer["content"]
        raw = base64.b64decode(content) if answer["encoding"] == "base64" else content.encode()
        files.append(BundleFile(file["path"], raw, file["executable"]))
    # The described manifest has defaults that skill.toml does not state.
    toml = next((file.content for file in files if file.path == SKILL_TOML), None)
    manifest = described["manifest"] if toml is None else toml_manifest(toml)
    return SkillFolder(manifest, described["skill_md"], files, [])


_REMEDY = "Publish it, or give its folder too. Options --url and --home name another registry."


class Finder:
    """Finds required skills: among the skills of a command, else in a registry, which is opened at the first need."""

    def __init__(self, folders: Iterable[Path | SkillFolder], open_client: OpenClient) -> None:
        self._folders = list(folders)
        self._open_client = open_client
        self._fetched: dict[tuple[str, ...], list[SkillFolder]] = {}

    async def find(self, skill: SkillFolder) -> list[SkillFolder]:
        """Return the skills that a skill requires, each after those that it requires itself.

        Raise InvalidParams with the name of the skill that is missing or does not fit. Blocking: folders are read in
        this thread.
        """
        name = str(skill.manifest.get("name"))
        others = dict(self._named()) if ranges_in(skill.manifest) else {}
        needs, local, names = list[str](), dict[str, SkillFolder](), [name]
        for by in names:  # grows: the folders of required skills require skills too
            for required, spec in ranges_in(skill.manifest if by == name else others[by].manifest).items():
                if required != name and required in others:
                    local[required] = _fitting(others[required], spec, by)
                    names += [required] if required not in names else []
                else:
                    needs.append(f"{required}@{spec}")
        fetched = await self._fetch(name, needs) if needs else []
        skills = {str(each.manifest["name"]): each for each in fetched} | local
        requires = {each: ranges_in(skills[each].manifest).keys() for each in skills}
        try:
            return [skills[each] for each in TopologicalSorter(requires).static_order()]
        except CycleError as error:
            path = error.args[1][::-1]
            raise RequiresCycle(
                f"these skills require each other: {', '.join(path)}",
                hint="Remove one of these requirements.",
                path=path,
            ) from None

    def _named(self) -> Iterable[tuple[str, SkillFolder]]:
        for folder in self._folders:
            with suppress(SkilleryError, OSError):  # the command reports the problem of this folder
                skill = read_skill_folder(folder) if isinstance(folder, Path) else folder
                yield str(skill.manifest.get("name")), skill

    async def _fetch(self, name: str, needs: list[str]) -> list[SkillFolder]:
        from skillery.client import AnsweredError

        key = (name, *needs)
        if key not in self._fetched:
            async with self._open_client() as client:
                try:
                    lock = (await client.resolve_skills(skills=needs, required_by=name))["lock"]
                    self._fetched[key] = [await published_skill(client, row["name"], row["version"]) for row in lock]
                except AnsweredError as error:
                    is_missing = error.type in {"requires_unknown", "requires_draft"}
                    hint = f"{error.hint or ''} {_REMEDY}".lstrip() if is_missing else error.hint
                    raise InvalidParams(error.message, hint=hint) from None
        return self._fetched[key]


def _fitting(skill: SkillFolder, spec: str, by: str) -> SkillFolder:
    """Return the skill. Raise RequiresUnsolvable if its version is not in the range."""
    name, text = skill.manifest["name"], str(skill.manifest.get("version", ""))
    with suppress(InvalidVersion):  # the checks of its folder report it
        version = Version.parse(text)
        if not selects(parse_version_spec(spec), version.precedence, is_release=version.is_release):
            raise RequiresUnsolvable(
                f"'{by}' requires '{name}' {spec}, and the folder has the version {text}",
                hint="Change the range, or leave the folder out to use a published version.",
            )
    return skill


# -- The mounts of required skills in runs of a folder -----------------------------------------------------------------


class RequiredSkill(NamedTuple):
    """A required skill. Its `mount` is a stub if the skill has permissions."""

    manifest: Manifest
    mount: SkillMount

    @property
    def needing(self) -> Needing:
        return Needing(self.manifest.name, self.manifest, self.mount.folder)


class RequiredSkills:
    """The required skills of the folder under test, and the calls of those that have permissions."""

    def __init__(self, runs: FolderRuns, skills: Mapping[str, RequiredSkill]) -> None:
        self._runs = runs
        self._skills = skills

    def of(self, manifest: Manifest) -> list[RequiredSkill]:
        """Return the skills that a skill requires, directly and indirectly."""
        names = [*manifest.requires]
        for name in names:  # grows: required skills require skills too
            names += [each for each in self._skills[name].manifest.requires if each not in names]
        return [self._skills[name] for name in names]

    def calls(self, host: FolderHost, job: Job) -> Calls[RequiredSkill] | None:
        """Return the calls of a job, or None if it mounts no skill with permissions."""
        stubs = {mount.name: self._skills[mount.name] for mount in job.skills if mount.stub}
        return Calls(stubs, job.limits, partial(self._run, host, job)) if stubs else None

    async def _run(
        self, host: FolderHost, caller: Job, skill: RequiredSkill, function: str, args: bytes, left_ms: int
    ) -> Outcome:
        """Run a function of a skill with its permissions, if the author gives them to runs."""
        manifest, runs = skill.manifest, self._runs
        permissions = manifest.permissions if runs.allowed.permits(manifest.permissions) else Permissions()
        limits = runs.limits.for_skill(manifest.runtime.limits if manifest.runtime else {}, None)
        limits = msgspec.structs.replace(limits, timeout_ms=min(limits.timeout_ms, left_ms))
        network = tuple(pattern.text for pattern in permissions.network)
        job = called_job(caller, manifest.name, network, function, args, limits)
        return with_hint(job, await runs.execute(await runs.complete(job, manifest), permissions, caller=host))


async def mounted(runs: FolderRuns, gate: Gate, skills: Sequence[SkillFolder]) -> RequiredSkills:
    """Return the required skills with their files in folders of this machine. Raise the errors of the gate."""
    return RequiredSkills(runs, {str(skill.manifest["name"]): await _mounted(runs, gate, skill) for skill in skills})


async def _mounted(runs: FolderRuns, gate: Gate, skill: SkillFolder) -> RequiredSkill:
    manifest, files = parse_manifest(skill.manifest, has_tools=True), skill.files
    runtime = manifest.called
    if runtime is not None and runtime.dependencies:  # a folder may have no lock yet
        bundle = await gate.bundle("", skill.manifest, skill.skill_md, files)
        files = [*(await gate.locked("", bundle, files, None, no_stored_lock))[0].files]
    folder = await asyncio.to_thread(runs.lend, files)
    entrypoint = runtime.entrypoint if runtime is not None else None
    is_stub = runtime is not None and has_permissions(manifest)
    mount = SkillMount(manifest.name, folder, entrypoint, is_stub, str(manifest.version), digest_of(files))
    return RequiredSkill(manifest, mount)


async def no_stored_lock(name: str, version: Version, path: str = "") -> tuple[str, bytes | None]:
    """Return no lock: a folder has no version in a registry."""
    return "", None
