"""execute_skill and run_code: from a request to a recorded run."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from skillery.backends import (
    BlobMount,
    Capability,
    CodeCall,
    Failure,
    FinishedRun,
    Identity,
    Job,
    Language,
    Moments,
    Outcome,
    Sandbox,
    SecretValues,
    SkillCall,
    SkillMount,
)
from skillery.blobs import BlobRow, Blobs, find_blob
from skillery.database import Database
from skillery.errors import InvalidParams, NotExecutable, SkilleryError, Unavailable
from skillery.formats.ids import new_run_id
from skillery.formats.inputs import InputInvalid, apply_inputs, blob_args
from skillery.formats.manifest import Manifest, parse_manifest
from skillery.formats.version_spec import parse_version_spec
from skillery.registry import VersionRow, resolve
from skillery.runs.advice import advised
from skillery.runs.answering import checked, error_of, large_output, logs_preview, small_output, summary_of
from skillery.runs.cache import Cache
from skillery.runs.calling import CalledHost, Calls, called_job, has_permissions
from skillery.runs.granted_secrets import GrantedSecrets, SecretsRefused
from skillery.runs.hosting import Host
from skillery.runs.limits import LimitRules
from skillery.runs.mounting import check_mounts, parse_mounts
from skillery.runs.needs import degraded, needs_of, why_refused
from skillery.runs.queueing import Place, Queue
from skillery.runs.recording import Method, finish_run, start_run
from skillery.runs.redaction import Redaction
from skillery.threads import REDACTION
from skillery.tracing import span

log = logging.getLogger(__name__)
MOST_BLOBS = 1_000
SERVER_STOPPED = Failure("SandboxError", "the server was stopped while this ran")
CALLER_ENDED = Failure("ProcessKilled", "the run that called this has ended")


class SkillRequest(msgspec.Struct, frozen=True):
    name: str
    version: str
    args: Mapping[str, Any]
    input_blobs: Sequence[str]
    timeout_ms: int | None


class CodeRequest(msgspec.Struct, frozen=True):
    code: str
    entrypoint: str
    args: Mapping[str, Any]
    mount_skills: Sequence[str]
    input_blobs: Sequence[str]
    limits: Mapping[str, Any]
    language: Language = "python"


class _Prepared(msgspec.Struct, frozen=True):
    """A run that nothing stands against: everything it names is there and allowed."""

    method: Method
    job: Job
    version: VersionRow | None = None
    failure: Failure | None = None
    """Set where the run fails before any code: args that the skill's inputs refuse."""
    secrets: tuple[str, ...] = ()
    """What the skill declares; it gets them where they are granted to it."""
    stubs: Mapping[str, VersionRow] = {}
    """Mounted skills with permissions of their own, by name: what the code may call."""
    parent_run_id: str | None = None
    """The run whose code called it."""


class _Recorded(NamedTuple):
    outcome: Outcome
    answer: dict[str, Any]


class _Stopper:
    """Ends the sandbox of one run, now or as soon as it begins. The run is recorded nevertheless."""

    def __init__(self) -> None:
        self._reason: Failure | None = None
        self._task: asyncio.Future[Outcome] | None = None

    def stop(self, reason: Failure) -> None:
        self._reason = self._reason or reason
        if self._task is not None:
            self._task.cancel()

    async def outcome(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        self._task = task = asyncio.ensure_future(work)
        if self._reason is not None:
            task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            return Outcome(failure=self._reason or CALLER_ENDED)
        return task.result()


class Runner:
    """Runs skills and code, each in a fresh sandbox, and records every run."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        cache: Cache,
        sandbox: Sandbox,
        sandbox_name: str,
        secrets: GrantedSecrets,
        moments: Moments,
        limits: LimitRules,
        queue: Queue,
        server: str,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._cache = cache
        self._sandbox = sandbox
        self._sandbox_name = sandbox_name
        self._secrets = secrets
        self._moments = moments
        self._limits = limits
        self._queue = queue
        self._server = server
        self._active: set[asyncio.Task[_Recorded]] = set()
        self._stoppable: set[_Stopper] = set()
        self._closed = False
        self.ended: Counter[tuple[str, str]] = Counter()
        """Runs that have ended, by method and status."""

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def execute_skill(self, identity: Identity, request: SkillRequest) -> dict[str, Any]:
        """The run, as the protocol answers it. Raises SkilleryError only for what stands against starting it."""
        spec = parse_version_spec(request.version)
        version = await self._database.read(lambda connection: resolve(connection, identity, request.name, spec))
        manifest = _manifest_of(version)
        if manifest.runtime is None:
            raise _not_executable(version, manifest)
        failure: Failure | None = None
        try:
            args = apply_inputs(manifest.inputs, request.args)
        except InputInvalid as error:
            args, failure = dict(request.args), Failure("ValidationError", str(error))
        named = [*request.input_blobs, *(blob_args(manifest.inputs, args) if failure is None else ())]
        rows = await self._find_blobs(identity, named)
        limits = self._limits.for_skill(manifest.runtime.limits, request.timeout_ms)
        job = Job(
            run_id=new_run_id(),
            call=SkillCall(version.name, manifest.runtime.export),
            args=msgspec.json.encode(args),
            skills=await self._mounts([version]),
            blobs=await self._blob_mounts(rows),
            limits=limits,
            network=tuple(pattern.text for pattern in manifest.permissions.network),
        )
        prepared = _Prepared("execute_skill", job, version, failure, manifest.permissions.secrets)
        return await self._run(identity, prepared)

    async def run_code(self, identity: Identity, request: CodeRequest) -> dict[str, Any]:
        """As execute_skill, for code that came with the request."""
        limits = self._limits.for_code(request.limits)
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
        )
        stubs = {version.name: version for version, mount in zip(mounted, job.skills, strict=True) if mount.stub}
        return await self._run(identity, _Prepared("run_code", job, stubs=stubs))

    async def close(self, grace_seconds: float) -> None:
        """Let the runs under way finish, up to a grace period; kill and record the rest, and start no more."""
        deadline = time.monotonic() + grace_seconds
        while self._active and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._active, timeout=left)
        self._closed = True
        for stopper in tuple(self._stoppable):
            stopper.stop(SERVER_STOPPED)
        await asyncio.gather(*self._active, return_exceptions=True)

    # -- the three steps -----------------------------------------------------------------------------------------

    async def _run(self, identity: Identity, prepared: _Prepared) -> dict[str, Any]:
        """The run goes on and is recorded even where whoever asked for it has gone."""
        place = await self._queue.enter(identity.name, _size(prepared.job))
        if self._closed:
            place.leave()
            raise Unavailable("the server is stopping", hint="Nothing was run. Try again in a moment.")
        host = Host(self._blobs, identity, prepared.job.limits)
        if prepared.stubs:
            run = partial(self._run_called, identity, prepared.job, host)
            host.calls = Calls(prepared.stubs, prepared.job.limits, run)
        task = asyncio.create_task(self._run_and_record(identity, prepared, host, _Stopper()))
        self._active.add(task)
        task.add_done_callback(partial(self._ended, place))
        return (await asyncio.shield(task)).answer

    def _ended(self, place: Place, task: asyncio.Task[_Recorded]) -> None:
        self._active.discard(task)
        place.leave()

    async def _run_called(
        self, identity: Identity, caller: Job, host: Host, version: VersionRow, function: str, args: bytes, left_ms: int
    ) -> Outcome:
        """A run with the permissions of the called skill alone. It has its caller's place in the queue: waiting for
        another, while the caller holds one, could be for ever. It ends with its caller."""
        if self._closed:
            raise Unavailable("the server is stopping")
        manifest = _manifest_of(version)
        limits = self._limits.for_skill(manifest.runtime.limits if manifest.runtime else {}, None)
        limits = msgspec.structs.replace(limits, timeout_ms=min(limits.timeout_ms, left_ms))
        job = called_job(caller, version, manifest, function, args, limits)
        secrets = manifest.permissions.secrets
        prepared = _Prepared("execute_skill", job, version, secrets=secrets, parent_run_id=caller.run_id)
        stopper = _Stopper()
        task = asyncio.create_task(self._run_and_record(identity, prepared, CalledHost(host), stopper))
        self._active.add(task)
        task.add_done_callback(self._active.discard)
        try:
            return (await asyncio.shield(task)).outcome
        except asyncio.CancelledError:
            stopper.stop(CALLER_ENDED)
            await asyncio.wait({task})
            raise

    async def _run_and_record(
        self, identity: Identity, prepared: _Prepared, host: Host | CalledHost, stopper: _Stopper
    ) -> _Recorded:
        job, version = prepared.job, prepared.version
        version_id = version.version_id if version else None
        await self._database.write(
            partial(
                start_run,
                run_id=job.run_id,
                method=prepared.method,
                version_id=version_id,
                identity=identity,
                server=self._server,
                parent_run_id=prepared.parent_run_id,
            )
        )
        outcome = await self._stoppable_outcome(prepared, host, stopper)
        try:
            answer = await self._answer(prepared, outcome, host)
        except SkilleryError as error:  # a full disk, when the output became a blob
            failure = Failure("SandboxError", f"the output could not be stored: {error.message}")
            outcome = msgspec.structs.replace(outcome, result=None, failure=failure)
            answer = await self._answer(prepared, outcome, host)
        await self._database.write(partial(finish_run, run_id=job.run_id, answer=answer, blobs=host.written))
        self.ended[prepared.method, answer["status"]] += 1
        await self._moments.run_finished(_finished(identity, prepared, answer))
        return _Recorded(outcome, answer)

    async def _stoppable_outcome(self, prepared: _Prepared, host: Host | CalledHost, stopper: _Stopper) -> Outcome:
        """What is stopped is this and nothing else: a run that was begun is always recorded to its end."""
        self._stoppable.add(stopper)
        if self._closed:
            stopper.stop(SERVER_STOPPED)
        try:
            return await stopper.outcome(self._outcome(prepared, host))
        finally:
            self._stoppable.discard(stopper)

    async def _outcome(self, prepared: _Prepared, host: Host | CalledHost) -> Outcome:
        """Nothing in it is a secret's value, as far as redaction goes: what is answered, recorded and kept is made of
        this."""
        if prepared.failure is not None:
            return Outcome(failure=prepared.failure)
        refusal = await self._refusal(prepared)
        if refusal is not None:
            return Outcome(failure=refusal)
        if prepared.version is None or not prepared.secrets:
            return await checked(await self._sandboxed(prepared.job, host, Redaction({})))
        try:
            values = await asyncio.to_thread(self._secrets.values, prepared.version.name, prepared.secrets)
        except SecretsRefused as refused:
            return Outcome(failure=refused.failure)
        return await self._with_secrets(prepared.job, host, values)

    async def _with_secrets(self, job: Job, host: Host | CalledHost, values: SecretValues) -> Outcome:
        redaction = await REDACTION.run(Redaction, values)
        job = msgspec.structs.replace(job, environment=values)
        outcome = await checked(await self._sandboxed(job, host, redaction))
        return await REDACTION.run(redaction.outcome, outcome)

    async def _refusal(self, prepared: _Prepared) -> Failure | None:
        """Before a secret is asked for and anything is started."""
        needs = needs_of(prepared.job) | ({Capability.SECRETS} if prepared.secrets else frozenset())
        try:
            await self._sandbox.start()
        except SkilleryError as error:
            return Failure("SandboxError", error.message)
        except Exception:
            log.exception("the sandbox could not be started for %s", prepared.job.run_id)
            return Failure("SandboxError", "the sandbox of this server failed")
        return why_refused(self._sandbox_name, self._sandbox.capabilities, prepared.job, needs)

    async def _sandboxed(self, job: Job, host: Host | CalledHost, redaction: Redaction) -> Outcome:
        try:
            with span("sandbox run", **{"skillery.run_id": job.run_id}):
                outcome = advised(job, await self._sandbox.run(job, host))
            return msgspec.structs.replace(outcome, degraded=degraded(outcome, self._sandbox.capabilities))
        except SkilleryError as error:
            return Outcome(failure=Failure("SandboxError", error.message))
        except Exception:  # noqa: BLE001 - logged whole, but redacted, which log.exception would not do
            # A backend promises not to raise; where one does, the run still ends and the reason is in the server's log.
            log.error("the sandbox raised in %s\n%s", job.run_id, redaction.text(traceback.format_exc()))
            return Outcome(failure=Failure("SandboxError", "the sandbox of this server failed"))

    async def _answer(self, prepared: _Prepared, outcome: Outcome, host: Host | CalledHost) -> dict[str, Any]:
        output: Any = None
        if outcome.result is not None:
            output = small_output(outcome.result)
            if output is None:
                output = large_output(outcome.result, await host.keep(outcome.result, "application/json"))
        answer: dict[str, Any] = {
            "status": "failed" if outcome.failure else "completed",
            "run_id": prepared.job.run_id,
            "summary": summary_of(outcome),
            "output": output,
            "output_blobs": [blob.id for blob in host.written],
            "logs_preview": logs_preview(outcome.log),
            "duration_ms": round(outcome.duration_ms, 3),
        }
        if outcome.failure:
            answer["error"] = error_of(outcome.failure)
        if prepared.version:
            version = prepared.version
            answer["skill"] = {"name": version.name, "version": version.version, "digest": version.digest}
        if outcome.degraded:
            answer["degraded"] = list(outcome.degraded)
        if outcome.network:
            answer["network"] = [msgspec.structs.asdict(use) for use in outcome.network]
        return answer

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
        manifest = _manifest_of(version)
        runtime = manifest.runtime
        ready = self._cache.is_ready(version)
        folder = self._cache.bundle(version) if ready else await asyncio.to_thread(self._cache.bundle, version)
        if runtime is None:
            return SkillMount(version.name, folder)
        return SkillMount(version.name, folder, runtime.entrypoint, stub=stubs and has_permissions(manifest))

    async def _blob_mounts(self, rows: Sequence[BlobRow]) -> tuple[BlobMount, ...]:
        return tuple([BlobMount(row.id, await asyncio.to_thread(self._cache.blob, row)) for row in rows])


def _size(job: Job) -> int:
    """Bytes that a job holds while it waits."""
    return len(job.args) + (len(job.call.code) if isinstance(job.call, CodeCall) else 0)


def _manifest_of(version: VersionRow) -> Manifest:
    return _parsed(version.manifest_json)


@lru_cache(maxsize=1024)
def _parsed(manifest_json: str) -> Manifest:
    return parse_manifest(msgspec.json.decode(manifest_json))


def _not_executable(version: VersionRow, manifest: Manifest) -> NotExecutable:
    if manifest.kind == "instruction":
        return NotExecutable(
            f"'{version.name}' is an instruction skill: there is nothing to execute",
            hint="Read its SKILL.md with read_skill_file and follow it.",
            name=version.name,
        )
    return NotExecutable(
        f"'{version.name}' has no [runtime]: it offers tools", hint="Call one with call_tool.", name=version.name
    )


def _finished(identity: Identity, prepared: _Prepared, answer: Mapping[str, Any]) -> FinishedRun:
    version = prepared.version
    return FinishedRun(
        run_id=prepared.job.run_id,
        method=prepared.method,
        status=answer["status"],
        skill=version.name if version else None,
        version=version.version if version else None,
        duration_ms=answer["duration_ms"],
        error_type=answer["error"]["type"] if "error" in answer else None,
        identity=identity,
        parent_run_id=prepared.parent_run_id,
    )
