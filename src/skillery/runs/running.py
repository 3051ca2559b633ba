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
    HandlerCall,
    Identity,
    Job,
    Language,
    Log,
    Moments,
    Outcome,
    Sandbox,
    SecretValues,
    SkillCall,
    SkillMount,
)
from skillery.blobs import BlobRow, Blobs, find_blob
from skillery.database import Database
from skillery.errors import InvalidParams, NotExecutable, QuotaExceeded, SkilleryError, Unavailable
from skillery.formats.ids import new_run_id
from skillery.formats.inputs import InputInvalid, apply_inputs, blob_args
from skillery.formats.manifest import Manifest, Permissions, parse_manifest
from skillery.formats.version_spec import parse_version_spec
from skillery.idempotency import claimed
from skillery.quotas import Quotas
from skillery.registry import FoundTool, VersionRow, find_tool, resolve
from skillery.runs.advice import advised
from skillery.runs.answering import (
    checked,
    error_of,
    large_output,
    logs_preview,
    small_output,
    summary_of,
    whole_log,
)
from skillery.runs.cache import Cache
from skillery.runs.calling import CalledHost, Calls, called_job, has_permissions
from skillery.runs.granted_secrets import GrantedSecrets, SecretsRefused
from skillery.runs.hosting import Host
from skillery.runs.limits import LimitRules
from skillery.runs.mounting import check_mounts, parse_mounts
from skillery.runs.needs import degraded, needs_of, why_refused
from skillery.runs.queueing import Place, Queue
from skillery.runs.reading import get_run
from skillery.runs.recording import Method, NewRun, begin_run, drop_run, finish_run, start_run
from skillery.runs.redaction import Redaction
from skillery.runs.stopping import CALLER_ENDED, Stopped, Stopper, Stoppers, cancelled_by, request_cancel
from skillery.runs.tool_calls import SESSION_SKILL, ToolRequest, session_files, stub_answer, tool_answer, tool_args
from skillery.runs.trying import Trial, Tried, Unpublished, trial_job
from skillery.runs.withholding import no_secrets, permitted, withheld
from skillery.threads import REDACTION
from skillery.tracing import span

log = logging.getLogger(__name__)
MOST_BLOBS = 1_000
SERVER_STOPPED = Failure("SandboxError", "the server was stopped while this ran")
CLIENT_GONE = Failure("Cancelled", "whoever asked for it went away while it waited for a place")
END_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds between the tries to record how a run ended, where the database is away."""
CANCEL_SECONDS = 10.0
CANCEL_LOOK_SECONDS = 0.05
QUEUED_SECONDS = 0.2
"""A run that waits for a place longer than this is on record meanwhile, to be seen and cancelled."""


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


class _Recorded(NamedTuple):
    outcome: Outcome
    answer: dict[str, Any]


class _Turn(NamedTuple):
    """What became of a run that wanted a place: it got one, or why not."""

    place: Place | None
    on_record: bool = False
    error: Stopped | SkilleryError | None = None


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
        quotas: Quotas,
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
        self._quotas = quotas
        self._server = server
        self._active: set[asyncio.Task[_Recorded]] = set()
        self._waiting: set[str] = set()
        """Those of them that have no place yet."""
        self._stoppers = Stoppers(database, server)
        self._closed = False
        self.ended: Counter[tuple[str, str]] = Counter()
        """Runs that have ended, by method and status."""

    @property
    def active(self) -> int:
        """How many have their place."""
        return len(self._active) - len(self._waiting)

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
        permissions = permitted(identity, version, manifest)
        why_less = withheld(permissions, version, manifest)
        failure = failure or no_secrets(why_less, manifest)
        job = Job(
            run_id=new_run_id(),
            call=SkillCall(version.name, manifest.runtime.export),
            args=msgspec.json.encode(args),
            skills=await self._mounts([version]),
            blobs=await self._blob_mounts(rows),
            limits=limits,
            network=tuple(pattern.text for pattern in permissions.network),
        )
        prepared = _Prepared("execute_skill", job, version, failure, permissions.secrets, why_less=why_less)
        return (await self._run(identity, prepared)).answer

    async def call_tool(self, identity: Identity, request: ToolRequest) -> dict[str, Any]:
        """A fresh run of the tool's handler, as an agent is answered; of a tool without a handler no run at all. Raises
        SkilleryError only for what stands against starting it."""
        look = partial(find_tool, name=request.name, skill=request.skill, session=request.session)
        tool = await self._database.read(partial(look, identity=identity))
        if tool.script is None:
            return stub_answer(tool)
        args, failure = tool_args(tool, request.args)
        rows = await self._find_blobs(identity, request.input_blobs)
        version = tool.version
        manifest = _manifest_of(version) if version else None
        own_limits = manifest.runtime.limits if manifest and manifest.runtime else {}
        permissions = permitted(identity, version, manifest) if version and manifest else Permissions()
        why_less = withheld(permissions, version, manifest) if version and manifest else ""
        job = Job(
            run_id=new_run_id(),
            call=HandlerCall(version.name if version else SESSION_SKILL, tool.script),
            args=args,
            skills=(await self._tool_mount(tool),),
            blobs=await self._blob_mounts(rows),
            limits=self._limits.for_skill(own_limits, request.timeout_ms),
            network=tuple(pattern.text for pattern in permissions.network),
        )
        failure = failure or (no_secrets(why_less, manifest) if manifest else None)
        secrets = permissions.secrets
        prepared = _Prepared("call_tool", job, version, failure, secrets, why_less=why_less, tool=tool.name)
        return tool_answer((await self._run(identity, prepared)).answer)

    async def has(self, capability: Capability) -> bool:
        """Whether the sandbox can do that here; False where it cannot be started."""
        try:
            await self._sandbox.start()
        except SkilleryError:
            return False
        return capability in self._sandbox.capabilities

    async def try_skill(self, identity: Identity, trial: Trial) -> Tried:
        """As execute_skill, for files that are no version yet. Raises Busy, Unavailable."""
        job, failure = trial_job(trial, self._limits)
        subject = Unpublished(trial.manifest.name, str(trial.manifest.version), trial.digest)
        secrets = trial.permissions.secrets
        prepared = _Prepared("execute_skill", job, subject, failure, secrets, why_less=trial.why_less)
        return Tried(job.run_id, (await self._run(identity, prepared)).outcome)

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
        return (await self._run(identity, _Prepared("run_code", job, stubs=stubs))).answer

    async def close(self, grace_seconds: float) -> None:
        """Let the runs under way finish, up to a grace period; kill and record the rest, and start no more."""
        deadline = time.monotonic() + grace_seconds
        while self._active and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._active, timeout=left)
        self._closed = True
        self._stoppers.stop_all(SERVER_STOPPED)
        await asyncio.gather(*self._active, return_exceptions=True)
        self._stoppers.close()

    def under_way(self) -> list[str]:
        """The ids of the runs that this server works on."""
        return self._stoppers.ids()

    async def cancel_run(self, identity: Identity, run_id: str) -> dict[str, Any]:
        """Stop a run, on whichever server of this database it is: the run as it ended, or as it is where that takes
        long. Raises RunNotFound, RunEnded."""
        await self._database.write(partial(request_cancel, identity=identity, run_id=run_id))
        self._stoppers.stop(run_id, cancelled_by(identity.name))
        until = time.monotonic() + CANCEL_SECONDS
        while True:
            run = await self._database.read(partial(get_run, identity=identity, run_id=run_id))
            if run["finished_at"] is not None or time.monotonic() > until:
                return run
            await asyncio.sleep(CANCEL_LOOK_SECONDS)

    # -- the three steps -----------------------------------------------------------------------------------------

    async def _run(self, identity: Identity, prepared: _Prepared) -> _Recorded:
        """The run goes on and is recorded even where whoever asked for it has gone."""
        if self._closed:
            raise _stopping()
        run = self._new_run(identity, prepared)
        host = Host(self._blobs, identity, prepared.job)
        if prepared.stubs:
            call = partial(self._run_called, identity, prepared.job, host)
            host.calls = Calls(prepared.stubs, prepared.job.limits, call)
        stopper = self._stoppers.add(run.run_id)
        task = self._begin(self._in_its_turn(run, prepared, host, stopper, self._queue.enter_now()), run.run_id)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if run.run_id in self._waiting:
                stopper.stop(CLIENT_GONE)
            raise

    def _begin(self, work: Coroutine[Any, Any, _Recorded], run_id: str) -> asyncio.Task[_Recorded]:
        task = asyncio.create_task(work)
        self._active.add(task)
        task.add_done_callback(partial(self._ended, run_id))
        return task

    def _ended(self, run_id: str, task: asyncio.Task[_Recorded]) -> None:
        self._active.discard(task)
        self._stoppers.discard(run_id)

    async def _in_its_turn(
        self, run: NewRun, prepared: _Prepared, host: Host, stopper: Stopper, place: Place | None
    ) -> _Recorded:
        turn = _Turn(place) if place else await self._wait_for_place(run, _size(prepared.job), stopper)
        if turn.place is None:
            return await self._unbegun(run, prepared, host, turn)
        try:
            if self._closed:
                return await self._unbegun(run, prepared, host, turn._replace(error=Stopped(SERVER_STOPPED)))
            return await self._run_and_record(run, prepared, host, stopper, on_record=turn.on_record)
        finally:
            turn.place.leave()

    async def _wait_for_place(self, run: NewRun, size: int, stopper: Stopper) -> _Turn:
        """What waits for long is on record meanwhile: it is seen, and can be cancelled, on every server."""
        on_record = False
        entering = asyncio.ensure_future(stopper.wait(self._queue.enter(run.identity.name, size)))
        self._waiting.add(run.run_id)
        try:
            await asyncio.wait({entering}, timeout=QUEUED_SECONDS)
            if not entering.done():
                await self._database.write(partial(start_run, run=run, quotas=self._quotas, queued=True))
                on_record = True
            return _Turn(await entering, on_record)
        except (Stopped, SkilleryError) as error:
            entering.cancel()
            await asyncio.wait({entering})
            if not entering.cancelled() and entering.exception() is None:
                entering.result().leave()
            return _Turn(None, on_record, error)
        finally:
            self._waiting.discard(run.run_id)

    async def _unbegun(self, run: NewRun, prepared: _Prepared, host: Host, turn: _Turn) -> _Recorded:
        """The end of a run that never got a place. Whoever cancelled it knows its id: then it is on record and an
        answer; else it is an error, for nothing was run."""
        stopped = turn.error.reason if isinstance(turn.error, Stopped) else None
        if turn.on_record and stopped is not None and stopped not in {SERVER_STOPPED, CLIENT_GONE}:
            return await self._record(run, prepared, host, Outcome(failure=stopped), stopped=True)
        if turn.on_record:
            await self._database.write(partial(drop_run, run_id=run.run_id))
        raise turn.error if isinstance(turn.error, SkilleryError) else _stopping()

    def _new_run(self, identity: Identity, prepared: _Prepared) -> NewRun:
        version, parent = prepared.version, prepared.parent_run_id
        return NewRun(
            run_id=prepared.job.run_id,
            method=prepared.method,
            identity=identity,
            server=self._server,
            limits=prepared.job.limits,
            version_id=version.version_id if version else None,
            skill_id=version.skill_id if version else None,
            tool=prepared.tool,
            parent_run_id=parent,
            # The call that publishes is not answered by the runs that try its examples.
            claim=None if parent or isinstance(version, Unpublished) else claimed.get(),
        )

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
        permissions = permitted(identity, version, manifest)
        why_less = withheld(permissions, version, manifest)
        job = called_job(caller, version, permissions, function, args, limits)
        prepared = _Prepared(
            "execute_skill",
            job,
            version,
            no_secrets(why_less, manifest),
            permissions.secrets,
            parent_run_id=caller.run_id,
            why_less=why_less,
        )
        run = self._new_run(identity, prepared)
        stopper = self._stoppers.add(run.run_id)
        work = self._run_and_record(run, prepared, CalledHost(host), stopper, on_record=False)
        task = self._begin(work, run.run_id)
        try:
            return (await asyncio.shield(task)).outcome
        except asyncio.CancelledError:
            stopper.stop(CALLER_ENDED)
            await asyncio.wait({task})
            raise

    async def _run_and_record(
        self, run: NewRun, prepared: _Prepared, host: Host | CalledHost, stopper: Stopper, *, on_record: bool
    ) -> _Recorded:
        """What is stopped is the sandbox and nothing else: a run that was begun is always recorded to its end."""
        if on_record:
            await self._database.write(partial(begin_run, run=run))
        else:
            await self._database.write(partial(start_run, run=run, quotas=self._quotas))
        if self._closed:
            stopper.stop(SERVER_STOPPED)
        began = time.monotonic()
        try:
            outcome = await stopper.wait(self._outcome(prepared, host))
        except Stopped as stopped:
            outcome = Outcome(failure=stopped.reason, duration_ms=(time.monotonic() - began) * 1000)
            return await self._record(run, prepared, host, outcome, stopped=True)
        return await self._record(run, prepared, host, outcome, stopped=False)

    async def _record(
        self, run: NewRun, prepared: _Prepared, host: Host | CalledHost, outcome: Outcome, *, stopped: bool
    ) -> _Recorded:
        try:
            answer = await self._answer(prepared, outcome, host)
        except SkilleryError as error:  # a full disk or a quota, when the output became a blob
            kind = "QuotaExceeded" if isinstance(error, QuotaExceeded) else "SandboxError"
            failure = Failure(kind, f"the output could not be stored: {error.message}")
            outcome = msgspec.structs.replace(outcome, result=None, failure=failure)
            answer = await self._answer(prepared, outcome, host)
        await self._store_log(run, outcome.log, answer)
        await self._write_end(run, answer, stopped)
        self.ended[run.method, answer["status"]] += 1
        await self._moments.run_finished(_finished(run.identity, prepared, answer))
        return _Recorded(outcome, answer)

    async def _write_end(self, run: NewRun, answer: dict[str, Any], stopped: bool) -> None:
        """What has run cannot be run again for want of a database that is away for a moment."""
        work = partial(finish_run, run=run, answer=answer, stopped=stopped)
        for pause in END_PAUSES:
            try:
                await self._database.write(work)
            except Unavailable as error:
                log.warning("the end of %s could not be recorded, once more in %s s: %s", run.run_id, pause, error)
                await asyncio.sleep(pause)
                work = partial(work, again=True)
            else:
                return
        await self._database.write(work)

    async def _store_log(self, run: NewRun, log_: Log, answer: dict[str, Any]) -> None:
        """The whole log as a blob, named in the answer, where the preview is not all of it. No run fails for want of
        room for its log."""
        whole = whole_log(log_, answer["logs_preview"])
        if whole is None:
            return
        try:
            row = await self._blobs.keep_beside(run.identity, whole, "text/plain")
        except SkilleryError as error:
            log.warning("the log of %s could not be stored: %s", run.run_id, error.message)
        else:
            answer["logs_blob"] = row.id

    async def _outcome(self, prepared: _Prepared, host: Host | CalledHost) -> Outcome:
        """Nothing in it is a secret's value, as far as redaction goes: what is answered, recorded and kept is made of
        this."""
        if prepared.failure is not None:
            return Outcome(failure=prepared.failure)
        refusal = await self._refusal(prepared)
        if refusal is not None:
            return Outcome(failure=refusal)
        if prepared.version is None or not prepared.secrets:
            return await checked(await self._sandboxed(prepared.job, host, Redaction({}), prepared.why_less))
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

    async def _sandboxed(self, job: Job, host: Host | CalledHost, redaction: Redaction, why_less: str = "") -> Outcome:
        try:
            with span("sandbox run", **{"skillery.run_id": job.run_id}):
                outcome = advised(job, await self._sandbox.run(job, host), why_less)
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

    async def _tool_mount(self, tool: FoundTool) -> SkillMount:
        if tool.version is not None:
            return await self._mount(tool.version, stubs=False)
        assert tool.session is not None, "a tool is of a version or of a session"
        return SkillMount(SESSION_SKILL, await asyncio.to_thread(self._cache.keep, session_files(tool.session)))

    async def _blob_mounts(self, rows: Sequence[BlobRow]) -> tuple[BlobMount, ...]:
        return tuple([BlobMount(row.id, await asyncio.to_thread(self._cache.blob, row)) for row in rows])


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", hint="Nothing was run. Try again in a moment.")


def _size(job: Job) -> int:
    """Bytes that a job holds while it waits."""
    return len(job.args) + (len(job.call.code) if isinstance(job.call, CodeCall) else 0)


def _manifest_of(version: VersionRow) -> Manifest:
    return _parsed(version.manifest_json, version.kind == "action")


@lru_cache(maxsize=1024)
def _parsed(manifest_json: str, is_action: bool) -> Manifest:
    return parse_manifest(msgspec.json.decode(manifest_json), has_tools=is_action)


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
        tool=prepared.tool,
    )
