"""What a prepared run comes to in the sandbox, with its secrets on the way in and without them on the way out."""

from __future__ import annotations

import asyncio
import logging
import traceback

import msgspec

from skillery.backends import Capability, Failure, FailureType, Job, Outcome, Sandbox, SecretValues
from skillery.context.threads import REDACTION
from skillery.context.tracing import span
from skillery.errors import SkilleryError
from skillery.runs.advice import advised
from skillery.runs.answering import checked
from skillery.runs.calling import CalledHost
from skillery.runs.granted_secrets import GrantedSecrets, SecretsRefused
from skillery.runs.hosting import Host
from skillery.runs.missing_programs import name_missing_program
from skillery.runs.needs import degraded, needs_of, why_refused
from skillery.runs.preparing import Prepared
from skillery.runs.redaction import Redaction

log = logging.getLogger(__name__)


class Outcomes:
    def __init__(self, sandbox: Sandbox, sandbox_name: str, secrets: GrantedSecrets) -> None:
        self._sandbox = sandbox
        self._sandbox_name = sandbox_name
        self._secrets = secrets

    async def outcome(self, prepared: Prepared, host: Host | CalledHost) -> Outcome:
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

    async def _refusal(self, prepared: Prepared) -> Failure | None:
        """Before a secret is asked for and anything is started."""
        needs = needs_of(prepared.job) | ({Capability.SECRETS} if prepared.secrets else frozenset())
        try:
            await self._sandbox.start()
        except SkilleryError as error:
            return Failure(FailureType.SANDBOX_ERROR, error.message)
        except Exception:
            log.exception("the sandbox could not be started for %s", prepared.job.run_id)
            return Failure(FailureType.SANDBOX_ERROR, "the sandbox of this server failed")
        return why_refused(self._sandbox_name, self._sandbox.capabilities, prepared.job, needs)

    async def _sandboxed(self, job: Job, host: Host | CalledHost, redaction: Redaction, why_less: str = "") -> Outcome:
        try:
            with span("sandbox run", **{"skillery.run_id": job.run_id}):
                outcome = name_missing_program(job, advised(job, await self._sandbox.run(job, host), why_less))
            return msgspec.structs.replace(outcome, degraded=degraded(outcome, self._sandbox.capabilities))
        except SkilleryError as error:
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, error.message))
        except Exception:  # noqa: BLE001 - logged whole, but redacted, which log.exception would not do
            # A backend promises not to raise; where one does, the run still ends and the reason is in the server's log.
            log.error("the sandbox raised in %s\n%s", job.run_id, redaction.text(traceback.format_exc()))
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, "the sandbox of this server failed"))
