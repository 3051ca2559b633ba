"""Execution: read the secrets of a job, run the job in the sandbox, and redact the secrets in its outcome."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from skillery.backends import (
    Capability,
    Failure,
    FailureType,
    Identity,
    Job,
    Log,
    Outcome,
    RunHost,
    Sandbox,
    Secrets,
    SecretValues,
)
from skillery.context.queue import Queue
from skillery.context.request import span
from skillery.context.threads import REDACTION
from skillery.database import Database
from skillery.errors import BlobNotFound, NotAllowed, SkilleryError
from skillery.formats.texts import new_blob_id
from skillery.identity.secret_grants import granted
from skillery.jobs.outcomes import with_stack
from skillery.runs.active_run import ActiveRun
from skillery.runs.declarations import checked
from skillery.runs.hints import name_missing_program, with_hint
from skillery.runs.limits import degraded, needs_of, why_refused
from skillery.runs.live_output import LiveOutput, with_text
from skillery.runs.preparation import Prepared, Preparer
from skillery.runs.redaction import Redaction
from skillery.runs.run_host import CalledHost, Host
from skillery.runs.trials import Trial

log = logging.getLogger(__name__)


class Execution:
    """Executes jobs in the sandbox of this server."""

    def __init__(self, sandbox: Sandbox, sandbox_name: str, secrets: GrantedSecrets) -> None:
        self._sandbox = sandbox
        self._sandbox_name = sandbox_name
        self._secrets = secrets

    async def has(self, capability: Capability) -> bool:
        """Return whether the sandbox has the capability. Return False if the sandbox cannot be started."""
        try:
            await self._sandbox.start()
        except SkilleryError:
            return False
        return capability in self._sandbox.capabilities

    async def execute(self, run: ActiveRun) -> Outcome:
        """Execute a run and return its outcome, with secrets redacted.

        Raise Stopped if the run is stopped. Answer, record and blobs of the run use this outcome.
        """
        run.start_clock()
        return await run.until_stopped(self._outcome(run))

    async def execute_unrecorded(self, prepared: Prepared, host: RunHost) -> Outcome:
        """Execute a run that gets no secrets and no record. Return its outcome. No hints are added."""
        job = prepared.job
        failure = prepared.failure or await self._refusal(job, has_secrets=False)
        if failure is not None:
            return Outcome(failure=failure)
        try:
            return await checked(await self._sandbox.run(job, host))
        except SkilleryError as error:
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, error.message))
        except Exception:
            log.exception("the sandbox raised in a check")
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, "the sandbox of this server failed"))

    async def _outcome(self, run: ActiveRun) -> Outcome:
        """Return the outcome: a failure of the preparation, a refusal, or the result of the sandbox."""
        prepared, job, host = run.prepared, run.job, run.host
        if prepared.failure is not None:
            return Outcome(failure=prepared.failure)
        if run.workspace is not None:
            try:
                job = msgspec.structs.replace(job, workspace=await run.workspace.open())
            except SkilleryError as error:
                return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, f"the workspace: {error.message}"))
            if isinstance(host, Host):
                host.saver = run.workspace.saver
        refusal = await self._refusal(job, has_secrets=bool(prepared.secrets))
        if refusal is not None:
            return Outcome(failure=refusal)
        if prepared.version is None or not prepared.secrets:
            return await checked(await self._sandboxed(job, host, Redaction({}), prepared.why_less))
        try:
            values = await asyncio.to_thread(self._secrets.values, prepared.version.name, prepared.secrets)
        except SecretsRefused as refused:
            return Outcome(failure=refused.failure)
        return await self._with_secrets(job, host, values)

    async def secrets_problem(self, skill: str, declared: Sequence[str]) -> str:
        """Return why a run of the skill would not get its secrets, or ""."""
        try:
            await asyncio.to_thread(self._secrets.values, skill, declared)
        except SecretsRefused as refused:
            return refused.failure.message
        return ""

    async def _with_secrets(self, job: Job, host: Host | CalledHost, values: SecretValues) -> Outcome:
        """Run the job with the secrets `values` in its environment. Return the outcome with the values redacted."""
        redaction = await REDACTION.run(Redaction, values)
        host.live.redact(redaction)
        job = msgspec.structs.replace(job, environment=values)
        outcome = await checked(await self._sandboxed(job, host, redaction))
        redacted = await REDACTION.run(redaction.outcome, outcome)
        # If the log was followed live, readers may have seen it: the live log, already redacted, stays the log.
        return msgspec.structs.replace(redacted, log=outcome.log) if host.live.is_used else redacted

    async def _refusal(self, job: Job, *, has_secrets: bool) -> Failure | None:
        """Return the failure if the sandbox cannot start or cannot run the job, else None. Read no secret for this."""
        needs = needs_of(job) | ({Capability.SECRETS} if has_secrets else frozenset())
        try:
            await self._sandbox.start()
        except SkilleryError as error:
            return Failure(FailureType.SANDBOX_ERROR, error.message)
        except Exception:
            log.exception("the sandbox could not be started for %s", job.run_id)
            return Failure(FailureType.SANDBOX_ERROR, "the sandbox of this server failed")
        return why_refused(self._sandbox_name, self._sandbox.capabilities, job, needs)

    async def _sandboxed(self, job: Job, host: Host | CalledHost, redaction: Redaction, why_less: str = "") -> Outcome:
        """Run the job in the sandbox. Return the outcome with hints, or a failure if the sandbox raises.

        `why_less` is the reason for reduced permissions, or "".
        """
        try:
            with span("sandbox run", **{"skillery.run_id": job.run_id}):
                outcome = _with_live_log(host.live, await self._sandbox.run(job, host))
            hinted = name_missing_program(job, with_hint(job, outcome, why_less))
            outcome = _with_added_lines(host.live, outcome.log, hinted)
            return msgspec.structs.replace(outcome, degraded=degraded(outcome, self._sandbox.capabilities))
        except SkilleryError as error:
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, error.message))
        except Exception:  # noqa: BLE001 - logged with its traceback, but redacted, which log.exception would not do
            # A backend promises not to raise. If one raises, the run still ends, and the server's log has the reason.
            log.error("the sandbox raised in %s\n%s", job.run_id, redaction.text(traceback.format_exc()))
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, "the sandbox of this server failed"))


def _with_live_log(live: LiveOutput, outcome: Outcome) -> Outcome:
    """Return the outcome with the log that the sandbox passed on while the code ran.

    If the sandbox passed on nothing, return the outcome with its own log and the notes of the server.
    """
    live.flush()
    if not live.is_used:
        return msgspec.structs.replace(outcome, log=with_text(outcome.log, live.notes)) if live.notes else outcome
    log_, failure = live.log(), outcome.failure
    if failure is not None and failure.type == FailureType.TIMEOUT:
        # Readers may have seen the log with the stack, so it stays as it is.
        failure, _ = with_stack(failure, log_)
    return msgspec.structs.replace(outcome, log=log_, failure=failure)


def _with_added_lines(live: LiveOutput, log_: Log, hinted: Outcome) -> Outcome:
    """Return the outcome `hinted`, whose log is `log_` with added lines. Append the added lines to the live log, if
    there is one.
    """
    if not live.is_used or hinted.log is log_:
        return hinted
    live.add((hinted.log.head + hinted.log.tail)[len(log_.head) + len(log_.tail) :])
    return _with_live_log(live, hinted)


# -- Runs of the server's own code, which checks unpublished files. These runs have no record and no permissions -------


UNBOUNDED = 1 << 40
"""The length of the queue, which is never reached: the server already limits the requests of its callers."""


class UnrecordedRuns:
    """Executes checks of unpublished files, at most `at_once` at a time.

    They have their own queue, so that long runs do not delay a publisher. Callers take turns.
    """

    def __init__(self, preparer: Preparer, execution: Execution, at_once: int) -> None:
        self._preparer = preparer
        self._execution = execution
        self._queue = Queue(at_once, UNBOUNDED, UNBOUNDED)

    async def run(self, identity: Identity, trial: Trial, code: str) -> Outcome:
        """Run `code` with `trial.args`, and return the outcome. The skill and its packages are mounted.

        If the sandbox cannot run the code, the outcome has a failure. Raise Unavailable if the client disconnects while
        the run waits. Cancelling the call ends the run.
        """
        prepared = await (await self._preparer.trial(identity, trial, code)).with_packages()
        slot = await self._queue.enter(identity.name, 0)
        try:
            return await self._execution.execute_unrecorded(prepared.for_caller(identity), DroppingHost())
        finally:
            slot.leave()


class DroppingHost(RunHost):
    """A host that accepts blobs and does not store them. Code that is imported by a check may write blobs."""

    async def begin_blob(self, kind: str, path: str | None = None) -> DroppedBlob:
        return DroppedBlob()

    async def read_blob(self, blob_id: str) -> bytes:
        raise BlobNotFound(f"no blob {blob_id[:80]}")

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed("a file cannot call skills while it is imported")


class DroppedBlob:
    """The `BlobWriter` of a blob that is not stored."""

    async def write(self, chunk: bytes) -> None:
        """Discard the chunk."""

    async def commit(self) -> str:
        return new_blob_id()

    async def abort(self) -> None:
        """Do nothing."""


# -- The secrets of a run: the skill declares them, an admin grants them, and the server reads them at its start -------


T = TypeVar("T")


class SecretsRefused(Exception):
    """Raised if a run cannot have a secret, before its code starts.

    `failure` has the reason, and the commands of an admin that would help, if there are any.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class GrantedSecrets:
    """Reads the secrets of runs. Blocking: call the methods in worker threads."""

    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._database = database
        self._secrets = secrets

    def values(self, skill: str, declared: Sequence[str]) -> SecretValues:
        """Return the values of all secrets that the skill has `declared`, by name.

        Raise SecretsRefused if a secret is not granted to the skill, has no value or cannot be read.
        """
        allowed = _answer_of(lambda: self._database.read_now(lambda connection: granted(connection, skill, declared)))
        # Grants are checked before any value is read: a skill must not learn which other secrets exist.
        if refused := [name for name in declared if name not in allowed]:
            raise SecretsRefused(_not_granted(skill, refused))
        stored = _answer_of(lambda: {name: self._secrets.get(name) for name in declared})
        values = SecretValues({name: value for name, value in stored.items() if value})
        if missing := [name for name in declared if name not in values]:
            raise SecretsRefused(_missing(skill, missing))
        return values


def _answer_of(ask: Callable[[], T]) -> T:
    """Return the result of `ask`, a call to the database or to the backend of secrets.

    Raise SecretsRefused if the call fails.
    """
    try:
        return ask()
    except SkilleryError as error:
        failure = Failure(FailureType.SECRET_UNAVAILABLE, error.message)
    except Exception as error:  # noqa: BLE001 - logged without its message, which may contain a value
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("the backend of secrets raised %s\n%s", type(error).__name__, frames)
        failure = Failure(FailureType.SECRET_UNAVAILABLE, "the secrets of this server cannot be read now")
    raise SecretsRefused(failure)


def _not_granted(skill: str, names: Sequence[str]) -> Failure:
    commands = "; ".join(f"skillery secret grant {name} {skill}" for name in names)
    return Failure(
        FailureType.SECRET_NOT_GRANTED,
        f"'{skill}' declares {_listed(names)}, but has no secret grant. "
        f"An admin of this server can grant it: {commands}",
    )


def _missing(skill: str, names: Sequence[str]) -> Failure:
    commands = "; ".join(f"skillery secret set {name}" for name in names)
    return Failure(
        FailureType.SECRET_MISSING,
        f"'{skill}' declares {_listed(names)}, but this server has no value. "
        f"An admin of this server can set it: {commands}",
    )


def _listed(names: Sequence[str]) -> str:
    return f"the secret{'s' * (len(names) > 1)} {', '.join(repr(name) for name in names)}"
