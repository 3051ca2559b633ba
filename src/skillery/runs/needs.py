"""The capabilities that a job needs, and the failure if the sandbox does not have all of them."""

from __future__ import annotations

from collections.abc import Callable

from skillery.backends import LIMITS, Capability, CodeCall, Failure, FailureType, HandlerCall, Job, Outcome, ScriptCall

ENDINGS = {".js": Capability.JAVASCRIPT, ".mjs": Capability.JAVASCRIPT, ".sh": Capability.BASH}


def language(job: Job) -> Capability:
    """Return the language of the code. Scripts without an ending in ENDINGS count as Python, because Python starts
    them.
    """
    if isinstance(job.call, CodeCall):
        return Capability(job.call.language)
    if isinstance(job.call, HandlerCall | ScriptCall):
        return next((needed for ending, needed in ENDINGS.items() if job.call.path.endswith(ending)), Capability.PYTHON)
    return Capability.PYTHON


NEEDS: tuple[tuple[Capability, Callable[[Job], object]], ...] = (
    (Capability.PYTHON, lambda job: language(job) is Capability.PYTHON),
    (Capability.JAVASCRIPT, lambda job: language(job) is Capability.JAVASCRIPT),
    (Capability.BASH, lambda job: language(job) is Capability.BASH),
    (Capability.STUBS, lambda job: any(skill.stub for skill in job.skills)),
    (Capability.BLOBS, lambda job: job.blobs),
    (Capability.FILES, lambda job: job.files),
    (Capability.OUTPUTS, lambda job: job.outputs),
    (Capability.WORKSPACE, lambda job: job.workspace),
    (Capability.PACKAGES, lambda job: job.packages),
    (Capability.SECRETS, lambda job: job.environment),
    (Capability.NETWORK, lambda job: job.network),
)


def needs_of(job: Job) -> frozenset[str]:
    """Return all capabilities that the job needs."""
    return frozenset(capability for capability, asked in NEEDS if asked(job))


def why_refused(backend: str, capabilities: frozenset[str], job: Job, needs: frozenset[str]) -> Failure | None:
    """Return the failure if the sandbox `backend` does not have all needed capabilities, else None."""
    lacking = sorted(needs - capabilities)
    if not lacking:
        return None
    who = "this code" if isinstance(job.call, CodeCall) else f"the skill '{job.call.skill}'"
    return Failure(
        FailureType.SANDBOX_ERROR,
        f"the sandbox '{backend}' of this server does not have {', '.join(lacking)}, which {who} needs; nothing "
        "was run. Ask the admin for another sandbox (the setting `sandbox`; `skillery doctor` shows the sandboxes)",
    )


def degraded(outcome: Outcome, capabilities: frozenset[str]) -> tuple[str, ...]:
    """Return the limits that are enforced by weaker means: limits in the outcome, and limits not in `capabilities`."""
    return (*outcome.degraded, *sorted(LIMITS - capabilities - set(outcome.degraded)))
