"""From a request to a run that nothing stands against: what it names is there, allowed and mounted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from skillery.backends import (
    BlobMount,
    CodeCall,
    Failure,
    HandlerCall,
    Identity,
    Job,
    ScriptCall,
    SkillCall,
    SkillMount,
)
from skillery.contents.blobs import BlobRow, find_blob
from skillery.context.threads import JSON
from skillery.database import Database
from skillery.environments import Environments
from skillery.environments.definitions import Named
from skillery.environments.named import NamedEnvironments
from skillery.errors import InvalidParams, NotExecutable
from skillery.formats.ids import new_run_id
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.formats.version_spec import parse_version_spec
from skillery.registry import FoundTool, VersionRow, find_tool, resolve
from skillery.registry.files import check_file, find_module
from skillery.registry.tool_lookup import tool_run_by
from skillery.runs.arguments import checked_arguments
from skillery.runs.cache import Cache
from skillery.runs.calling import called_job, has_permissions
from skillery.runs.files import InputFiles
from skillery.runs.limits import LimitRules
from skillery.runs.mounting import check_mounts, parse_mounts
from skillery.runs.packages import NONE, GivenEnvironment, Needing, Packages, chosen_for, packages_of, packages_of_code
from skillery.runs.parsed import Declarations
from skillery.runs.recording import Method
from skillery.runs.requests import CodeRequest, SkillRequest
from skillery.runs.scripts import script_call
from skillery.runs.tool_calls import SESSION_SKILL, ToolRequest, session_files, tool_args
from skillery.runs.trying import Trial, Unpublished, trial_job
from skillery.runs.withholding import no_secrets, permitted, withheld

MOST_BLOBS = 1_000


class Prepared(msgspec.Struct, frozen=True):
    """A run that nothing stands against: everything it names is there and allowed."""

    method: Method
    job: Job
    version: VersionRow | Unpublished | None = None
    failure: Failure | None = None
    """Set where the run fails before any code: args that the skill's inputs refuse."""
    secrets: tuple[str, ...] = ()
    """What the skill declares; it gets them where they are granted to it."""
    stubs: Mapping[str, VersionRow] = {}
    """Mounted skills with permissions of their own, by name: what the code may call."""
    parent_run_id: str | None = None
    """The run whose code called it."""
    why_less: str = ""
    """Why it lacks some of what its skill lists."""
    tool: str | None = None
    """The tool that was called."""
    waited_ms: float = 0.0
    """For its packages."""
    environment: GivenEnvironment | None = None

    def asked_by(self, identity: Identity) -> Prepared:
        """Return the run with the name of its identity in its job."""
        return msgspec.structs.replace(self, job=msgspec.structs.replace(self.job, identity=identity.name))


class Preparer:
    """Each method raises SkilleryError for what stands against starting a run; what the code itself would be told
    (args that do not fit) is a `failure` of a run that is recorded as any other."""

    def __init__(
        self,
        database: Database,
        cache: Cache,
        limits: LimitRules,
        environments: Environments,
        named: NamedEnvironments,
    ) -> None:
        self._environments = environments
        self._named = named
        self._database = database
        self._cache = cache
        self._files = InputFiles(database, cache)
        self._limits = limits
        self._declarations = Declarations()

    async def skill(self, identity: Identity, request: SkillRequest) -> Prepared:
        spec = parse_version_spec(request.version)
        version = await self._database.read(lambda connection: resolve(connection, identity, request.name, spec))
        manifest = await self._declarations.manifest(version)
        if request.script or request.module:
            return await self._script(identity, request, version, manifest)
        if manifest.called is None:
            raise _not_executable(version, manifest)
        return await self._entrypoint(identity, request, version, manifest, manifest.called)

    async def _entrypoint(
        self, identity: Identity, request: SkillRequest, version: VersionRow, manifest: Manifest, runtime: Runtime
    ) -> Prepared:
        args = await checked_arguments(manifest.inputs, request.args)
        rows = await self._find_blobs(identity, [*request.input_blobs, *args.blobs])
        permissions = permitted(identity, version, manifest)
        why_less = withheld(permissions, version, manifest)
        limits = self._limits.for_skill(runtime.limits, request.timeout_ms)
        job = Job(
            run_id=new_run_id(),
            call=SkillCall(version.name, runtime.export),
            args=args.text,
            skills=await self._mounts([version]),
            blobs=await self._blob_mounts(rows),
            limits=limits,
            network=_network(permissions),
            files=await self._files.find(identity, request.files, limits, permissions),
        )
        failure = args.failure or no_secrets(why_less, manifest)
        made = Prepared("execute_skill", job, version, failure, permissions.secrets, why_less=why_less)
        chosen = chosen_for(self._named.defined, manifest, request.environment)
        return await self._with_packages(made, [Needing(version.name, manifest, job.skills[0].folder)], chosen)

    async def _script(
        self, identity: Identity, request: SkillRequest, version: VersionRow, manifest: Manifest
    ) -> Prepared:
        if manifest.called is not None:
            raise _has_entrypoint(version, manifest.called)
        path = await self._script_path(request, version)
        permissions = permitted(identity, version, manifest)
        if has_permissions(manifest):
            await self._database.read(partial(_check_no_handler, version=version, path=path))
        why_less = withheld(permissions, version, manifest)
        script = ScriptCall(version.name, path, module=request.module, in_skill=request.in_skill)
        call, failure = script_call(script, request.args, permissions)
        limits = self._limits.for_skill(manifest.runtime.limits if manifest.runtime else {}, request.timeout_ms)
        rows = await self._find_blobs(identity, request.input_blobs)
        job = Job(
            run_id=new_run_id(),
            call=call,
            args=b"{}",
            skills=await self._mounts([version]),
            blobs=await self._blob_mounts(rows),
            limits=limits,
            network=_network(permissions),
            files=await self._files.find(identity, request.files, limits, permissions),
        )
        failure = failure or no_secrets(why_less, manifest)
        made = Prepared("execute_skill", job, version, failure, permissions.secrets, why_less=why_less)
        chosen = chosen_for(self._named.defined, manifest, request.environment, path)
        return await self._with_packages(made, [Needing(version.name, manifest, job.skills[0].folder)], chosen)

    async def _script_path(self, request: SkillRequest, version: VersionRow) -> str:
        if request.module:
            return await self._database.read(partial(find_module, version=version, module=request.module))
        await self._database.read(partial(check_file, version=version, path=request.script))
        return request.script

    async def tool(self, identity: Identity, request: ToolRequest, tool: FoundTool, script: str) -> Prepared:
        """`script` is the tool's."""
        args = await checked_arguments(await self._declarations.inputs(tool), tool_args(request.args))
        rows = await self._find_blobs(identity, request.input_blobs)
        version = tool.version
        manifest = await self._declarations.manifest(version) if version else None
        own_limits = manifest.runtime.limits if manifest and manifest.runtime else {}
        permissions = permitted(identity, version, manifest) if version and manifest else Permissions()
        why_less = withheld(permissions, version, manifest) if version and manifest else ""
        limits = self._limits.for_skill(own_limits, request.timeout_ms)
        job = Job(
            run_id=new_run_id(),
            call=HandlerCall(version.name if version else SESSION_SKILL, script),
            args=args.text,
            skills=(await self._tool_mount(tool),),
            blobs=await self._blob_mounts(rows),
            limits=limits,
            network=_network(permissions),
            files=await self._files.find(identity, request.files, limits, permissions),
        )
        failure = args.failure or (no_secrets(why_less, manifest) if manifest else None)
        made = Prepared("call_tool", job, version, failure, permissions.secrets, why_less=why_less, tool=tool.name)
        needing = [Needing(version.name, manifest, job.skills[0].folder)] if version and manifest else []
        chosen = chosen_for(self._named.defined, manifest, request.environment, script)
        return await self._with_packages(made, needing, chosen)

    async def find_tool(self, identity: Identity, request: ToolRequest) -> FoundTool:
        look = partial(find_tool, name=request.name, skill=request.skill, session=request.session)
        return await self._database.read(partial(look, identity=identity))

    async def trial(self, trial: Trial) -> Prepared:
        job, failure = await JSON.run(trial_job, trial, self._limits)
        subject = Unpublished(trial.manifest.name, str(trial.manifest.version), trial.digest)
        made = Prepared("execute_skill", job, subject, failure, trial.permissions.secrets, why_less=trial.why_less)
        needing = Needing(trial.manifest.name, trial.manifest, trial.folder)
        return await self._with_packages(made, [needing], chosen_for(self._named.defined, trial.manifest))

    async def code(self, identity: Identity, request: CodeRequest) -> Prepared:
        limits = self._limits.for_code(request.limits)
        chosen = self._named.defined.chosen(request.environment, request.language)
        references = parse_mounts(request.mount_skills)
        versions = [
            await self._database.read(partial(resolve, identity=identity, name=one.name, spec=one.spec))
            for one in references
        ]
        mounted = check_mounts(versions)
        rows = await self._find_blobs(identity, request.input_blobs)
        job = Job(
            run_id=new_run_id(),
            call=CodeCall(request.code, request.entrypoint, request.language),
            args=msgspec.json.encode(request.args),
            skills=await self._mounts(mounted, stubs=True),
            blobs=await self._blob_mounts(rows),
            limits=limits,
            files=await self._files.find(identity, request.files, limits, Permissions()),
        )
        stubs = {version.name: version for version, mount in zip(mounted, job.skills, strict=True) if mount.stub}
        needing = [
            Needing(version.name, await self._declarations.manifest(version), mount.folder)
            for version, mount in zip(mounted, job.skills, strict=True)
            if not mount.stub
        ]
        return await self._with_packages(Prepared("run_code", job, stubs=stubs), needing, chosen)

    async def called(
        self, identity: Identity, caller: Job, version: VersionRow, function: str, args: bytes, left_ms: int
    ) -> Prepared:
        """A run that the code of another asked for: with the permissions of the called skill alone."""
        manifest = await self._declarations.manifest(version)
        limits = self._limits.for_skill(manifest.runtime.limits if manifest.runtime else {}, None)
        limits = msgspec.structs.replace(limits, timeout_ms=min(limits.timeout_ms, left_ms))
        permissions = permitted(identity, version, manifest)
        why_less = withheld(permissions, version, manifest)
        job = called_job(caller, version, permissions, function, args, limits)
        made = Prepared(
            "execute_skill",
            job,
            version,
            no_secrets(why_less, manifest),
            permissions.secrets,
            parent_run_id=caller.run_id,
            why_less=why_less,
        )
        needing = [Needing(one.name, manifest, one.folder) for one in job.skills]
        return await self._with_packages(made, needing, chosen_for(self._named.defined, manifest))

    async def _with_packages(self, made: Prepared, skills: Sequence[Needing], chosen: Named | None = None) -> Prepared:
        if made.failure is not None or (chosen is None and not any(one.manifest.runtime for one in skills)):
            return made
        found = await self._packages(skills, made.job.limits.timeout_ms, chosen)
        if found is NONE:
            return made
        return msgspec.structs.replace(
            made,
            job=found.in_job(made.job),
            failure=found.failure,
            waited_ms=found.waited_ms,
            environment=found.environment,
        )

    async def _packages(self, skills: Sequence[Needing], timeout_ms: int, chosen: Named | None) -> Packages:
        if chosen is None:
            return await packages_of(self._environments, skills, timeout_ms)
        return await packages_of_code(self._environments, self._named, chosen, skills, timeout_ms)

    # -- what a job needs ----------------------------------------------------------------------------------------

    async def _find_blobs(self, identity: Identity, blob_ids: Sequence[str]) -> list[BlobRow]:
        wanted = list(dict.fromkeys(blob_ids))
        if len(wanted) > MOST_BLOBS:
            raise InvalidParams(f"a run was given {len(wanted)} blobs, at most {MOST_BLOBS} are allowed")

        def work(connection: Any) -> list[BlobRow]:
            return [find_blob(connection, identity=identity, blob_id=blob_id) for blob_id in wanted]

        return await self._database.read(work) if wanted else []

    async def _mounts(self, versions: Sequence[VersionRow], *, stubs: bool = False) -> tuple[SkillMount, ...]:
        """With `stubs`, those that have permissions of their own are mounted as such."""
        return tuple([await self._mount(version, stubs=stubs) for version in versions])

    async def _mount(self, version: VersionRow, *, stubs: bool) -> SkillMount:
        manifest = await self._declarations.manifest(version)
        runtime = manifest.called
        ready = self._cache.is_ready(version)
        folder = self._cache.bundle(version) if ready else await asyncio.to_thread(self._cache.bundle, version)
        if runtime is None:
            return SkillMount(version.name, folder)
        return SkillMount(version.name, folder, runtime.entrypoint, stub=stubs and has_permissions(manifest))

    async def _tool_mount(self, tool: FoundTool) -> SkillMount:
        if tool.version is not None:
            return await self._mount(tool.version, stubs=False)
        assert tool.session is not None, "a tool is of a version or of a session"
        return SkillMount(SESSION_SKILL, await asyncio.to_thread(self._cache.keep, session_files(tool.session)))

    async def _blob_mounts(self, rows: Sequence[BlobRow]) -> tuple[BlobMount, ...]:
        return tuple([BlobMount(row.id, await asyncio.to_thread(self._cache.blob, row)) for row in rows])


def _network(permissions: Permissions) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in permissions.network)


def _not_executable(version: VersionRow, manifest: Manifest) -> NotExecutable:
    if manifest.kind == "instruction":
        return NotExecutable(
            f"'{version.name}' is an instruction skill: there is nothing to execute",
            hint="Read its SKILL.md with read_skill_file and follow it; where that names a script of the skill, pass "
            "its path as 'script'.",
            name=version.name,
        )
    return NotExecutable(
        f"'{version.name}' has no [runtime]: it offers tools",
        hint="Call one with call_tool, or pass the path of one of its files as 'script'.",
        name=version.name,
    )


def _has_entrypoint(version: VersionRow, runtime: Runtime) -> NotExecutable:
    return NotExecutable(
        f"'{version.name}' has an entrypoint, {runtime.entrypoint}: its other files are not run by themselves",
        hint="Leave 'script' out.",
        name=version.name,
    )


def _check_no_handler(connection: Connection, version: VersionRow, path: str) -> None:
    """What is done with secrets and network by a tool is bounded by the arguments that it declares: nobody starts its
    handler past them."""
    tool = tool_run_by(connection, version.version_id, path)
    if tool is not None:
        raise NotExecutable(
            f"{path} is the handler of the tool '{tool}' of '{version.name}', which has permissions",
            hint=f"Call it with call_tool: '{version.name}/{tool}'.",
            name=version.name,
        )
