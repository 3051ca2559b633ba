"""Preparation: from a request to a job with its skills, blobs, files and packages, all of them checked and mounted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from skillery.attestations.policies import Policies
from skillery.backends import CodeCall, Failure, HandlerCall, Identity, Job, Limits, ScriptCall, SkillCall
from skillery.context.queue import Watch, ignore
from skillery.context.threads import JSON
from skillery.database import Database
from skillery.environments.definitions import Named
from skillery.environments.named import NamedEnvironments
from skillery.environments.store import Environments
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.formats.requirements import LOCK
from skillery.formats.texts import new_run_id
from skillery.formats.version_spec import parse_version_spec
from skillery.method import or_none
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow, standing_warnings
from skillery.runs.cache import Cache
from skillery.runs.declarations import NO_ARGUMENTS, Arguments, Declarations, checked_arguments
from skillery.runs.limits import LimitRules, timeout_warnings
from skillery.runs.mounts import ImportableSkills, InputFiles, Mounts, checked_outputs
from skillery.runs.packages import GivenEnvironment, Needing, RunPackages, chosen_for, packages_for, packages_now
from skillery.runs.requests import (
    CallTool,
    ExecuteSkill,
    Granted,
    Method,
    RunCode,
    WorkspaceTargets,
    check_no_handler,
    granted,
    granted_to_call,
    has_entrypoint,
    has_permissions,
    not_executable,
)
from skillery.runs.run_host import called_job
from skillery.runs.scripts import SESSION_SKILL, OwnNeeds, own_needs, script_call, tool_args
from skillery.runs.trials import Trial, Unpublished, code_job, trial_job
from skillery.skills.files import find_module, stored_path
from skillery.tools.tool_lookup import FoundTool, find_tool
from skillery.workspaces.usage import RunWorkspaces, Target


class Prepared(msgspec.Struct, frozen=True):
    """A run that can be started: the request is allowed, and its skills, blobs and files exist."""

    method: Method
    job: Job
    version: VersionRow | Unpublished | None = None
    failure: Failure | None = None
    """Set if the run fails before its code starts, for example because its args are invalid."""
    secrets: tuple[str, ...] = ()
    """The names of the secrets that the run gets. Their values are read when the run starts."""
    stubs: Mapping[str, VersionRow] = {}
    """The mounted skills with permissions, by name. A call of one of their functions is a separate run."""
    parent_run_id: str | None = None
    """The id of the run whose code called this run, or None."""
    why_less: str = ""
    """The reason why the run has fewer permissions than its skill declares, or ""."""
    tool: str | None = None
    """The name of the called tool, or None."""
    waited_ms: float = 0.0
    """The time in milliseconds that the run waited for its packages."""
    environment: GivenEnvironment | None = None
    waiting: Callable[[Watch], Awaitable[RunPackages]] | None = None
    """Function that waits for the packages of the run and returns them. None if the run has its packages."""
    warnings: tuple[str, ...] = ()
    """Remarks on the request for the caller, for example on undeclared args."""
    workspace: Target | None = None
    """The workspace or snapshot that the request names, or None."""

    def for_caller(self, identity: Identity) -> Prepared:
        """Return this run with the name of the caller in its job."""
        return msgspec.structs.replace(self, job=msgspec.structs.replace(self.job, identity=identity.name))

    async def with_packages(self, watch: Watch = ignore) -> Prepared:
        """Return the run with its packages. Wait for them if necessary, and pass the progress to `watch`."""
        return self if self.waiting is None else self.having(await self.waiting(watch))

    def requiring(self, required: ImportableSkills) -> Prepared:
        """Return this run with the skills that its skills require."""
        if not required.mounts and required.failure is None:
            return self
        job = msgspec.structs.replace(self.job, skills=(*self.job.skills, *required.mounts))
        stubs, failure = {**self.stubs, **required.stubs}, self.failure or required.failure
        return msgspec.structs.replace(self, job=job, stubs=stubs, failure=failure)

    def having(self, packages: RunPackages) -> Prepared:
        """Return the run with these packages."""
        return msgspec.structs.replace(
            self,
            job=packages.in_job(self.job),
            failure=packages.failure,
            waited_ms=packages.waited_ms,
            environment=packages.environment,
            waiting=None,
        )


class Preparer:
    """Prepares runs. Each method raises SkilleryError if the run cannot be started.

    Some problems raise no error, for example invalid args or packages that cannot be installed: the run gets a
    `failure`, and fails before its code starts.
    """

    def __init__(
        self,
        database: Database,
        cache: Cache,
        limits: LimitRules,
        environments: Environments,
        named: NamedEnvironments,
        workspaces: RunWorkspaces,
        policies: Policies,
        pythons: Callable[[], Mapping[str, str]],
    ) -> None:
        """`policies` decide whose runs of an unapproved version get the permissions of the version. `pythons` returns
        the other interpreters for scripts.
        """
        self._policies, self._pythons = policies, pythons
        self._workspaces = WorkspaceTargets(workspaces)
        self._environments = environments
        self._named = named
        self._database = database
        self._limits = limits
        self._declarations = Declarations()
        self._mounts = Mounts(database, cache, self._declarations)
        self._files = InputFiles(database, cache)

    @property
    def default_limits(self) -> Limits:
        """The limits of a run if neither its skill nor its caller sets limits."""
        return self._limits.defaults

    async def skill(self, identity: Identity, request: ExecuteSkill) -> Prepared:
        """Prepare a run of the entrypoint of a skill, or of the script or module that the request names."""
        spec = parse_version_spec(request.version)
        version = await self._database.read(lambda connection: resolve(connection, identity, request.name, spec))
        manifest = await self._declarations.manifest(version)
        if request.script or request.module:
            return await self._script(identity, request, version, manifest)
        if manifest.called is None:
            raise not_executable(version, manifest)
        return await self._entrypoint(identity, request, version, manifest, manifest.called)

    async def _entrypoint(
        self, identity: Identity, request: ExecuteSkill, version: VersionRow, manifest: Manifest, runtime: Runtime
    ) -> Prepared:
        """Prepare a run of the entrypoint of a version. `runtime` is the one of its manifest."""
        args = await checked_arguments(version.name, manifest.inputs, request.args, runtime)
        rows = await self._mounts.find_blobs(identity, [*request.input_blobs, *args.blobs])
        rights = granted(identity, version, manifest, self._policies)
        limits = self._limits.for_skill(runtime.limits, or_none(request.timeout_ms))
        job = Job(
            run_id=new_run_id(),
            call=SkillCall(version.name, runtime.export),
            args=args.text,
            skills=(await self._mounts.skill(version),),
            blobs=await self._mounts.blobs(rows),
            limits=limits,
            network=rights.network,
            files=await self._files.find(identity, request.files, limits, rights.permissions),
            outputs=checked_outputs(request.outputs, rights.permissions),
        )
        needing = Needing(version.name, manifest, job.skills[0].folder)
        return await self._of_skill(identity, request, _prepared("execute_skill", job, version, rights, args), needing)

    async def _script(
        self, identity: Identity, request: ExecuteSkill, version: VersionRow, manifest: Manifest
    ) -> Prepared:
        """Prepare a run of the script or module that the request names. Raise NotExecutable if the skill has an
        entrypoint.
        """
        if manifest.called is not None:
            raise has_entrypoint(version, manifest.called)
        find = partial(stored_path, version=version, path=request.script)
        if request.module:
            find = partial(find_module, version=version, module=request.module)
        path = await self._database.read(find)
        rights = granted(identity, version, manifest, self._policies)
        if has_permissions(manifest):
            await self._database.read(partial(check_no_handler, version=version, path=path))
        skills = (await self._mounts.skill(version),)
        own = OwnNeeds()
        if not request.module and path.endswith(".py"):  # the block is foreign text of up to half a megabyte
            own = await asyncio.to_thread(own_needs, skills[0].folder, path, self._pythons())
        script = ScriptCall(version.name, path, (), b"", {}, request.module, own.python, request.cwd == "skill")
        call, failure = script_call(script, request.args, rights.permissions)
        args = Arguments(b"{}", [], failure or own.failure)
        own_limits = manifest.runtime.limits if manifest.runtime else {}
        limits = self._limits.for_skill(own_limits, or_none(request.timeout_ms))
        rows = await self._mounts.find_blobs(identity, request.input_blobs)
        job = Job(
            run_id=new_run_id(),
            call=call,
            args=args.text,
            skills=skills,
            blobs=await self._mounts.blobs(rows),
            limits=limits,
            network=rights.network,
            files=await self._files.find(identity, request.files, limits, rights.permissions),
            outputs=checked_outputs(request.outputs, rights.permissions),
        )
        prepared = _prepared("execute_skill", job, version, rights, args)
        needing = Needing(version.name, manifest, skills[0].folder, own.lock)
        return await self._of_skill(identity, request, prepared, needing, path)

    async def _of_skill(
        self, identity: Identity, request: ExecuteSkill, prepared: Prepared, needing: Needing, script: str = ""
    ) -> Prepared:
        """Return the run with the workspace and the packages of the request."""
        target = await self._workspaces.find(identity, request, needing.manifest)
        prepared = msgspec.structs.replace(prepared, workspace=target)
        environment, alone = or_none(request.environment), needing.lock != LOCK
        chosen = chosen_for(self._named.defined, needing.manifest, environment, script, alone=alone)
        return await self._with_packages(identity, prepared, [needing], chosen, request.timeout_ms)

    async def tool(self, identity: Identity, request: CallTool, tool: FoundTool, script: str) -> Prepared:
        """Prepare a call of `tool`. Its handler is the file `script`."""
        args = await checked_arguments(request.name, await self._declarations.inputs(tool), tool_args(request.args))
        rows = await self._mounts.find_blobs(identity, request.input_blobs)
        version = tool.version
        manifest = await self._declarations.manifest(version) if version else None
        own_limits = manifest.runtime.limits if manifest and manifest.runtime else {}
        rights = granted(identity, version, manifest, self._policies) if version and manifest else Granted()
        limits = self._limits.for_skill(own_limits, or_none(request.timeout_ms))
        job = Job(
            run_id=new_run_id(),
            call=HandlerCall(version.name if version else SESSION_SKILL, script),
            args=args.text,
            skills=(await self._mounts.tool(tool),),
            blobs=await self._mounts.blobs(rows),
            limits=limits,
            network=rights.network,
            files=await self._files.find(identity, request.files, limits, rights.permissions),
            outputs=checked_outputs(request.outputs, rights.permissions),
        )
        prepared = msgspec.structs.replace(_prepared("call_tool", job, version, rights, args), tool=tool.name)
        target = await self._workspaces.find(identity, request, manifest)
        prepared = msgspec.structs.replace(prepared, workspace=target)
        needing = [Needing(version.name, manifest, job.skills[0].folder)] if version and manifest else []
        chosen = chosen_for(self._named.defined, manifest, or_none(request.environment), script)
        return await self._with_packages(identity, prepared, needing, chosen, request.timeout_ms)

    async def find_tool(self, identity: Identity, request: CallTool) -> FoundTool:
        """Return the tool that the request names.

        Raise ToolNotFound, SkillNotFound, VersionNotFound or LabelNotFound if the identity sees no such tool.
        """
        skill = (request.skill, parse_version_spec(request.version)) if request.skill else None
        look = partial(find_tool, name=request.name, skill=skill, session=request.session)
        return await self._database.read(partial(look, identity=identity))

    async def trial(self, identity: Identity, trial: Trial, code: str = "") -> Prepared:
        """Prepare a run of files that are not stored as a version.

        If `code` is not "", the code runs and the files are mounted. Else the entrypoint or the handler of the trial
        runs.
        """
        job, failure = await JSON.run(partial(code_job, code=code) if code else trial_job, trial, self._limits)
        subject = Unpublished(trial.manifest.name, str(trial.manifest.version), trial.digest)
        prepared = Prepared("execute_skill", job, subject, failure, trial.permissions.secrets, why_less=trial.why_less)
        needing = Needing(trial.manifest.name, trial.manifest, trial.folder)
        chosen = chosen_for(self._named.defined, trial.manifest, script=trial.script)
        return await self._with_packages(identity, prepared, [needing], chosen)

    async def code(self, identity: Identity, request: RunCode) -> Prepared:
        """Prepare a run of run_code: the code in the request, with its mounted skills."""
        limits = self._limits.for_code(request.limits)
        chosen = self._named.defined.chosen(or_none(request.environment), request.language)
        versions = await self._mounts.find_skills(identity, request.mount_skills)
        mounted = await self._mounts.importable(versions)
        rows = await self._mounts.find_blobs(identity, request.input_blobs)
        job = Job(
            run_id=new_run_id(),
            call=CodeCall(request.code, request.entrypoint, request.language),
            args=msgspec.json.encode(request.args),
            skills=mounted.mounts,
            blobs=await self._mounts.blobs(rows),
            limits=limits,
            files=await self._files.find(identity, request.files, limits, Permissions()),
            outputs=tuple(request.outputs),
        )
        warnings = [
            f"'{version.name}' is {text}" for version in versions for text in standing_warnings(version.standing_json)
        ]
        target = await self._workspaces.find(identity, request)
        prepared = Prepared("run_code", job, stubs=mounted.stubs, workspace=target, warnings=tuple(warnings))
        return await self._with_packages(identity, prepared, mounted.needing, chosen, request.limits.get("timeout_ms"))

    async def called(
        self, identity: Identity, caller: Job, version: VersionRow, function: str, args: bytes, left_ms: int
    ) -> Prepared:
        """Prepare a run of `function` of a skill that the code of the job `caller` calls.

        The run has only the permissions of the called skill, and at most `left_ms` of time.
        """
        manifest = await self._declarations.manifest(version)
        limits = self._limits.for_skill(manifest.runtime.limits if manifest.runtime else {}, None)
        limits = msgspec.structs.replace(limits, timeout_ms=min(limits.timeout_ms, left_ms))
        rights = await granted_to_call(self._database, identity, version, manifest, self._policies)
        job = called_job(caller, version.name, rights.network, function, args, limits)
        prepared = _prepared("execute_skill", job, version, rights)
        prepared = msgspec.structs.replace(prepared, parent_run_id=caller.run_id)
        skills = [Needing(skill.name, manifest, skill.folder) for skill in job.skills]
        return await self._with_packages(identity, prepared, skills, chosen_for(self._named.defined, manifest))

    async def _with_packages(
        self,
        identity: Identity,
        prepared: Prepared,
        skills: Sequence[Needing],
        chosen: Named | None = None,
        requested_ms: object = None,
    ) -> Prepared:
        """Return the run with the skills that its skills require, and with its packages or the function that waits for
        them. `requested_ms` is the time limit of the request, or None.
        """
        required = await self._mounts.required(identity, prepared.job, skills)
        prepared, skills = prepared.requiring(required), (*skills, *required.needing)
        warnings = (*prepared.warnings, *timeout_warnings(requested_ms, prepared.job.limits))
        prepared = msgspec.structs.replace(prepared, warnings=warnings) if warnings else prepared
        needs = chosen is not None or any(skill.may_have_packages for skill in skills)
        if prepared.failure is not None or not needs:
            return prepared
        packages = await packages_now(self._environments, self._named, chosen, skills)
        if packages is None:
            timeout_ms = prepared.job.limits.timeout_ms
            waiting = partial(packages_for, self._environments, self._named, chosen, skills, timeout_ms)
            return msgspec.structs.replace(prepared, waiting=waiting)
        return prepared.having(packages)


def _prepared(
    method: Method, job: Job, version: VersionRow | None, rights: Granted, args: Arguments = NO_ARGUMENTS
) -> Prepared:
    """Return a run with its permissions and args, but without packages and workspace."""
    failure, secrets = args.failure or rights.failure, rights.permissions.secrets
    warnings = (*(standing_warnings(version.standing_json) if version else ()), *args.warnings)
    return Prepared(method, job, version, failure, secrets, why_less=rights.why_less, warnings=warnings)
